//! What a piece of code is called.
//!
//! | module | what it knows |
//! |---|---|
//! | [`code`] | a piece of generated code, and what was inlined into it |
//! | [`java`] | parameters of methods, as class files have them |
//! | `demangle` | names that C++ and Rust compilers give |
//! | `perfmap` | perf-PID.map files |
//! | `clean` | words of others, made harmless |

pub(crate) mod clean;
pub mod code;
pub(crate) mod demangle;
pub mod java;
pub(crate) mod perfmap;

/// Those of the known names that somebody may have meant who wrote another: the most alike first,
/// a handful at most.
pub fn near(wanted: &str, known: impl IntoIterator<Item = String>) -> Vec<String> {
    /// Less alike than that, they have nothing to do with each other.
    const LEAST: f64 = 0.8;
    const MOST: usize = 5;
    let alike = |name: String| (strsim::jaro_winkler(wanted, &name), name);
    let mut near: Vec<_> =
        known.into_iter().map(alike).filter(|(alike, _)| *alike >= LEAST).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    near.into_iter().take(MOST).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_were_meant_are_near() {
        let known = || ["page-faults", "context-switches", "cpu", "cycles"].map(String::from);
        assert_eq!(near("pagefaults", known()), ["page-faults"]);
        assert_eq!(near("contextswitches", known()), ["context-switches"]);
        assert!(near("xyzzy", known()).is_empty());
    }
}
