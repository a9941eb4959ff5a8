//! Names of code.
//!
//! | module | contents |
//! |---|---|
//! | [`code`] | generated code, with the methods inlined into it |
//! | [`java`] | parameters of methods in class file format |
//! | `demangle` | mangled names of C++ and Rust compilers |
//! | `perfmap` | perf-PID.map files |
//! | `clean` | escaping of harmful characters in foreign text |

pub(crate) mod clean;
pub mod code;
pub(crate) mod demangle;
pub mod java;
pub(crate) mod perfmap;

/// Returns the known names that are similar to a misspelt one: at most five, the most similar first.
pub fn near(wanted: &str, known: impl IntoIterator<Item = String>) -> Vec<String> {
    /// Minimum similarity (Jaro-Winkler, 0 to 1).
    const MIN_SIMILARITY: f64 = 0.8;
    const MAX_NAMES: usize = 5;
    let alike = |name: String| (strsim::jaro_winkler(wanted, &name), name);
    let mut near: Vec<_> =
        known.into_iter().map(alike).filter(|(alike, _)| *alike >= MIN_SIMILARITY).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    near.into_iter().take(MAX_NAMES).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_returns_similar_names() {
        let known = || ["page-faults", "context-switches", "cpu", "cycles"].map(String::from);
        assert_eq!(near("pagefaults", known()), ["page-faults"]);
        assert_eq!(near("contextswitches", known()), ["context-switches"]);
        assert!(near("xyzzy", known()).is_empty());
    }
}
