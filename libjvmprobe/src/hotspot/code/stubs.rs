//! Names of HotSpot's stubs: arraycopy, CRC32, AES and others.
//!
//! Stubs lie in a few blobs, `StubRoutines (1)` and so on, each with about a hundred stubs. The
//! addresses of their entry points are private statics of the class StubRoutines
//! (hotspot/share/runtime/stubRoutines.hpp), so a stub has its own name
//! only if libjvm.so has a symbol table.

use std::{collections::HashMap, sync::Arc};

use crate::{
    Addr, Vaddr,
    elf::symbols::Symbol,
    hotspot::HotSpot,
    names::code::{Code, CodeKind},
};

/// Prefix of the names of blobs that hold stubs.
const BLOB: &str = "StubRoutines";
/// Maximum number of these blobs; HotSpot has at most five.
const MAX_BLOBS: usize = 64;
/// Statics that hold the address of an instruction inside a stub, not of its entry point.
const NOT_ENTRIES: [&str; 1] = ["StubRoutines::call_stub_return_address"];

/// Returns the variables that hold stubs' entry points: address of each variable in the file, and its stub's
/// name.
pub(in crate::hotspot) fn statics(symbols: &HashMap<String, Symbol>) -> Vec<(Vaddr, Arc<str>)> {
    // The names of statics begin with an underscore, those of functions do not.
    let name = |mangled: &str| {
        let (class, name) = member(mangled)?;
        let name = name.strip_prefix('_')?;
        let name = name.strip_suffix("_entry").unwrap_or(name);
        let name = format!("{class}::{name}");
        (class.starts_with(BLOB) && !NOT_ENTRIES.contains(&&*name)).then_some(name)
    };
    let of = |(mangled, symbol): (&String, &Symbol)| Some((symbol.value, name(mangled)?.into()));
    symbols.iter().filter(|(_, symbol)| symbol.size == 8).filter_map(of).collect()
}

/// Splits the mangled name of a class member, such as `_ZN12StubRoutines3x865_nameE`, into the class
/// with its enclosing classes and the member's name. Templates are not supported. Source: Itanium C++
/// ABI, 5.1.3.
fn member(mangled: &str) -> Option<(String, &str)> {
    let mut rest = mangled.strip_prefix("_ZN")?.strip_suffix('E')?;
    let mut class = String::new();
    loop {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let length: usize = rest[..digits].parse().ok()?;
        let (name, behind) = rest[digits..].split_at_checked(length)?;
        if behind.is_empty() {
            return Some((class, name)).filter(|(class, _)| !class.is_empty());
        }
        if !class.is_empty() {
            class += "::";
        }
        class += name;
        rest = behind;
    }
}

impl HotSpot {
    /// Splits the blobs of stubs into their stubs.
    pub(super) fn name_stubs(&self, code: &mut Vec<(Addr, u64, Code)>) {
        let is_blob = |code: &Code| code.kind == CodeKind::Stub && code.name.starts_with(BLOB);
        if self.build.stubs.is_empty() || !code.iter().any(|(_, _, code)| is_blob(code)) {
            return;
        }
        // The JVM sets these variables once, while it starts.
        let stubs = &self.build.stubs;
        let variables: Vec<_> =
            stubs.iter().map(|(at, _)| Addr(at.0.wrapping_add(self.bias))).collect();
        let addrs = self.memory.words(&variables).unwrap_or_default();
        let entries = stubs.iter().zip(addrs).filter_map(|((_, name), addr)| {
            Some((Addr(addr.filter(|&addr| addr != 0)?), Arc::clone(name)))
        });
        let entries: Vec<_> = entries.collect();
        let mut named = Vec::with_capacity(code.len() + entries.len());
        let mut remaining_blobs = MAX_BLOBS;
        for (start, size, code) in code.drain(..) {
            if remaining_blobs > 0 && is_blob(&code) {
                remaining_blobs -= 1;
                named.extend(divide(start, size, &code, &entries));
            } else {
                named.push((start, size, code));
            }
        }
        *code = named;
    }
}

/// Splits a blob into its stubs. Each stub ends where the next one begins.
fn divide(
    start: Addr,
    size: u64,
    blob: &Code,
    entries: &[(Addr, Arc<str>)],
) -> Vec<(Addr, u64, Code)> {
    let end = Addr(start.0.saturating_add(size));
    let mut inside: Vec<_> =
        entries.iter().filter(|(addr, _)| (start..end).contains(addr)).collect();
    // If an entry has several names, the shortest is used.
    inside.sort_by_key(|(addr, name)| (*addr, name.len(), Arc::clone(name)));
    inside.dedup_by_key(|(addr, _)| *addr);
    let first = inside.first().map_or(end, |(addr, _)| *addr);
    let head = (first > start).then(|| (start, first.0 - start.0, blob.clone()));
    let ends = inside.iter().skip(1).map(|(addr, _)| *addr).chain([end]);
    let stubs = inside
        .iter()
        .zip(ends)
        .map(|((addr, name), end)| (*addr, end.0 - addr.0, Code::new(CodeKind::Stub, name)));
    head.into_iter().chain(stubs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_is_divided_among_its_stubs() {
        let blob = Code::new(CodeKind::Stub, "StubRoutines (1)");
        let entry = |addr, name: &str| (Addr(addr), name.into());
        let entries =
            [entry(130, "long_name"), entry(130, "name"), entry(110, "a"), entry(99, "other")];
        let found: Vec<_> = divide(Addr(100), 50, &blob, &entries)
            .into_iter()
            .map(|(addr, size, code)| (addr.0, size, code.name.to_string()))
            .collect();
        let expected = [(100, 10, "StubRoutines (1)"), (110, 20, "a"), (130, 20, "name")];
        assert_eq!(found, expected.map(|(addr, size, name)| (addr, size, name.to_owned())));
        assert_eq!(divide(Addr(100), 50, &blob, &[]), [(Addr(100), 50, blob.clone())]);
    }

    #[test]
    fn stub_symbols_become_readable_names() {
        let symbol = |name: &str, size| {
            (name.to_owned(), Symbol { name: name.to_owned(), value: Vaddr(16), size })
        };
        let symbols = HashMap::from([
            symbol("_ZN12StubRoutines25_jbyte_disjoint_arraycopyE", 8),
            symbol("_ZN12StubRoutines24_forward_exception_entryE", 8),
            symbol("_ZN12StubRoutines25_call_stub_return_addressE", 8),
            symbol("_ZN12StubRoutines11initialize1Ev", 300),
        ]);
        assert_eq!(
            member("_ZN12StubRoutines3x8616_verify_mxcsr_ptE"),
            Some(("StubRoutines::x86".to_owned(), "_verify_mxcsr_pt"))
        );
        for other in
            ["_ZN12StubRoutinesE", "_ZN99xE", "_ZN12StubRoutines99999999999999999999xE", "f"]
        {
            assert_eq!(member(other), None, "{other}");
        }
        let mut names: Vec<_> =
            statics(&symbols).into_iter().map(|(at, name)| (at.0, name.to_string())).collect();
        names.sort();
        let expected =
            ["StubRoutines::forward_exception", "StubRoutines::jbyte_disjoint_arraycopy"];
        assert_eq!(names, expected.map(|name| (16, name.to_owned())));
    }
}
