//! Names of one JVM's classes.
//!
//! The kernel side sends a name with the first allocation of its class, so that the name is known even if the
//! class is unloaded later. If the kernel side could not read a name because its page was not resident, user
//! space reads the name from the JVM's memory.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::{
    Addr,
    hotspot::{
        HotSpot,
        classes::{ClassLayout, java_name},
    },
    trace::allocations::event::ClassId,
};

/// Maximum number of names in each map.
const MAX_NAMES: usize = 1 << 18;

/// Class names. `by_id` has the names of classes that the kernel side counts, by the kernel side's identifier
/// of the class. `by_symbol` has the names of classes found by reading TLABs, by two addresses: that of the
/// Klass and that of the Symbol with the name.
#[derive(Debug, Default)]
pub(crate) struct Names {
    by_id: HashMap<ClassId, Arc<str>>,
    by_symbol: HashMap<(Addr, Addr), Arc<str>>,
    /// Each distinct name once: classes of different loaders may share a name.
    texts: HashSet<Arc<str>>,
}

impl Names {
    /// Records a name that the kernel side has sent. Ignores a name that cannot be the name of `class`: the
    /// memory of the name may have been reused for the name of another class before the kernel side read it.
    pub(crate) fn insert(&mut self, class: ClassId, text: &[u8]) {
        if !class.may_be(text, class.len) {
            return;
        }
        let name = self.intern(&java_name(text, class.len));
        self.insert_id(class, name);
    }

    fn insert_id(&mut self, class: ClassId, name: Arc<str>) {
        if self.by_id.len() < MAX_NAMES || self.by_id.contains_key(&class) {
            self.by_id.insert(class, name);
        }
    }

    /// Returns the name of a class that the kernel side has counted.
    pub(crate) fn name_of_id(
        &mut self,
        class: ClassId,
        jvm: Option<(&HotSpot, &ClassLayout)>,
    ) -> Arc<str> {
        if let Some(name) = self.by_id.get(&class) {
            return Arc::clone(name);
        }
        let text = || {
            let (hotspot, layout) = jvm?;
            let (text, len) = hotspot.symbol(layout, Addr(class.symbol)).ok()?;
            // Another Symbol may be at this address by now.
            class.may_be(&text, len).then(|| java_name(&text, len))
        };
        let Some(text) = text() else {
            return self.intern("(unknown)");
        };
        let name = self.intern(&text);
        self.insert_id(class, Arc::clone(&name));
        name
    }

    /// Returns the name of a class of objects in the heap, given the address of its Klass. The address of the
    /// Symbol is read from the Klass each time, because the Klass of another class may be at `klass` by now.
    pub(crate) fn name_of_klass(
        &mut self,
        klass: Addr,
        hotspot: &HotSpot,
        layout: &ClassLayout,
    ) -> Option<Arc<str>> {
        let symbol = hotspot.class_symbol(layout, klass).ok()?;
        if let Some(name) = self.by_symbol.get(&(klass, symbol)) {
            return Some(Arc::clone(name));
        }
        let (text, len) = hotspot.symbol(layout, symbol).ok()?;
        let name = self.intern(&java_name(&text, len));
        if self.by_symbol.len() >= MAX_NAMES {
            self.by_symbol.clear();
        }
        self.by_symbol.insert((klass, symbol), Arc::clone(&name));
        Some(name)
    }

    fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(name) = self.texts.get(text) {
            return Arc::clone(name);
        }
        let name: Arc<str> = text.into();
        if self.texts.len() < MAX_NAMES {
            self.texts.insert(Arc::clone(&name));
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &[u8]) -> ClassId {
        let mut tail = [0; 8];
        let last = &name[name.len().saturating_sub(8)..];
        tail[..last.len()].copy_from_slice(last);
        ClassId { symbol: 1, tail: u64::from_ne_bytes(tail), len: name.len() as u32 }
    }

    #[test]
    fn number_of_cached_names_is_limited() {
        let mut names = Names::default();
        for symbol in 0..MAX_NAMES as u64 + 10 {
            names.insert(ClassId { symbol, tail: 0, len: 1 }, b"A");
        }
        assert_eq!((names.by_id.len(), names.texts.len()), (MAX_NAMES, 1));
        assert_eq!(&*names.name_of_id(ClassId { symbol: 7, tail: 0, len: 1 }, None), "A");
    }

    #[test]
    fn reported_name_is_returned_for_its_class() {
        let mut names = Names::default();
        names.insert(class(b"a/B"), b"a/B");
        assert_eq!(&*names.name_of_id(class(b"a/B"), None), "a.B");
        // Another class at the same address.
        assert_eq!(&*names.name_of_id(class(b"a/C"), None), "(unknown)");
    }

    #[test]
    fn name_of_a_different_class_is_ignored() {
        let mut names = Names::default();
        let own = class(b"app/Generated$$Lambda$17");
        names.insert(own, b"app/Generated$$Lambda$18");
        assert_eq!(&*names.name_of_id(own, None), "(unknown)");
        names.insert(own, b"app/Generated$$Lambda$17");
        assert_eq!(&*names.name_of_id(own, None), "app.Generated$$Lambda$17");
    }

    #[test]
    fn truncated_name_is_accepted_without_comparing_its_end() {
        let mut names = Names::default();
        let long = class(&[b'x'; 2000]);
        names.insert(long, &[b'x'; 1024]);
        assert!(names.name_of_id(long, None).starts_with("xxx"));
    }
}
