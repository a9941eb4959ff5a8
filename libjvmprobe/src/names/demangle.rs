//! Demangling of C++ and Rust symbol names.
//!
//! A mangled name may refer to parts of itself repeatedly, so its readable form can be longer by any factor.
//! The names come from libraries that may be hostile, so the length of both forms is limited.

use std::fmt::{self, Write};

/// Maximum length of a mangled name. Longer names are returned as they are.
const MAX_MANGLED: usize = 4096;
/// Maximum length of a readable name. If the readable name would be longer, the mangled name is returned as
/// it is.
const MAX_READABLE: usize = 8192;

/// Text of at most [`MAX_READABLE`] bytes: writing more fails, which ends the demangler.
#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_READABLE {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// Returns the readable form of a C++ or Rust name, without a function's parameters. Returns any other name, and
/// one whose readable form is too long, unchanged.
pub(crate) fn demangle(name: &str) -> String {
    readable(name).unwrap_or_else(|| name.to_owned())
}

fn readable(name: &str) -> Option<String> {
    if name.len() > MAX_MANGLED {
        return None;
    }
    let mut readable = Bounded::default();
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        write!(readable, "{rust:#}").ok()?;
    } else {
        let symbol = cpp_demangle::Symbol::new(Some(name).filter(|n| n.starts_with("_Z"))?).ok()?;
        let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
        symbol.structured_demangle(&mut readable, &options).ok()?;
    }
    Some(readable.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mangled_names_are_demangled() {
        for (name, readable) in [
            ("_ZN9JavaCalls11call_helperEP9JavaValueRK12methodHandle", "JavaCalls::call_helper"),
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
            ("f", "f"),
            ("_Znonsense", "_Znonsense"),
            ("vfs_read", "vfs_read"),
        ] {
            assert_eq!(demangle(name), readable);
        }
    }

    /// Returns a short name (less than 900 bytes for 90 levels) whose readable form doubles in length with each
    /// level. It is the name of a function template that is instantiated with the last of these types:
    /// `template <class A, class B> struct P {}; using T1 = P<int, int>; using T2 = P<T1, T1>; ...`.
    fn doubling(levels: usize) -> String {
        let base36 = |n: usize| {
            let digit = |n: usize| char::from(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[n % 36]);
            [n / 36, n % 36]
                .map(digit)
                .iter()
                .collect::<String>()
                .trim_start_matches('0')
                .to_owned()
        };
        let inner: String = (1..levels).map(|level| format!("ES{}_", base36(level))).collect();
        format!("_Z1fI1PI{}ii{inner}EEvv", "S0_I".repeat(levels - 1))
    }

    #[test]
    fn exponentially_expanding_name_stays_mangled() {
        assert_eq!(demangle(&doubling(2)), "f<P<P<int, int>, P<int, int> > >");
        let bomb = doubling(90);
        assert!(bomb.len() < 900);
        assert_eq!(demangle(&bomb), bomb);
        // Rust's v0 names refer to an earlier type by its offset in the name. Here, `u` is the code of the type
        // `()`, and each tuple's second element is such a reference to its first element.
        let rust = |levels: usize| {
            let prefix = "INvC1a1f";
            let inner: String = (1..=levels)
                .map(|level| format!("B{}_E", base62(prefix.len() + levels + 1 - level)))
                .collect();
            format!("_R{prefix}{}u{inner}E", "T".repeat(levels))
        };
        assert_eq!(demangle(&rust(2)), "a::f::<(((), ()), ((), ()))>");
        let bomb = rust(60);
        assert_eq!(demangle(&bomb), bomb);
        let too_long = format!("_ZN{}{}E", MAX_MANGLED, "a".repeat(MAX_MANGLED));
        assert_eq!(demangle(&too_long), too_long);
    }

    /// Encodes the number of a back reference, without the final `_`: empty for 0, else `n - 1` in base 62.
    fn base62(n: usize) -> String {
        const DIGITS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
        let Some(mut n) = n.checked_sub(1) else { return String::new() };
        let mut digits = Vec::new();
        loop {
            digits.push(char::from(DIGITS[n % 62]));
            n /= 62;
            if n == 0 {
                return digits.iter().rev().collect();
            }
        }
    }
}
