//! The readable form of the names that compilers give to functions.

/// The readable form of a C++ or Rust name, without a function's parameters;
/// any other name as it is.
pub(crate) fn demangle(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    if name.starts_with("_Z") {
        let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
        let cpp = cpp_demangle::Symbol::new(name)
            .ok()
            .and_then(|s| s.demangle_with_options(&options).ok());
        return cpp.unwrap_or_else(|| name.to_owned());
    }
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demangles_what_is_mangled_only() {
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
}
