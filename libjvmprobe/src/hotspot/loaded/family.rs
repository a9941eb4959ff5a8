//! Which classes are above and below which: whose methods a call that names a class may reach.
//!
//! Sources: hotspot/share/oops/klass.hpp, klass.cpp (`initialize_supers`): a class has itself and
//! its superclasses down to a depth of eight in `_primary_supers`, those that are deeper and all
//! interfaces, inherited ones among them, in `_secondary_supers`.

use crate::{
    Addr, Error, Result,
    hotspot::{
        hashing::NumberMap,
        layout::Item,
        loaded::{AT_ONCE, Reader, at, class::ClassReader, walk::Listed},
        resolved::Layout,
    },
};

/// `Klass::_primary_super_limit`.
const PRIMARY_SUPERS: usize = 8;
/// More than any class has above it.
const MAX_ABOVE: u32 = 1 << 9;
/// So many relations are kept, in 32 MiB each way.
const MAX_RELATIONS: usize = 1 << 22;

/// The classes, by their names' Symbols: those of one name are taken for one.
#[derive(Debug, Default)]
pub(super) struct Families {
    /// Of each class, its superclasses and all its interfaces.
    above: NumberMap<Addr, Vec<Addr>>,
    /// Of each class, its subclasses, or the classes that implement it, at any depth.
    below: NumberMap<Addr, Vec<Addr>>,
}

impl Families {
    /// Reads those of all classes.
    pub(super) fn read(
        reader: &mut Reader<'_>,
        layout: &Layout,
        classes: &ClassReader,
        listed: &Listed,
    ) -> Result<Self> {
        let (primary, secondary) = (layout.get(Item::PrimarySupers)?, layout.get(Item::Supers)?);
        let (length, data) =
            (layout.get(Item::MethodArrayLength)?, layout.get(Item::MethodArrayData)?);
        let mut families = Self::default();
        let mut room = MAX_RELATIONS;
        for entries in listed.classes.chunks(AT_ONCE) {
            reader.prefetch(entries, &[secondary]);
            for entry in entries {
                let own = classes.symbol(reader, entry.klass)?;
                let words: [u8; 8 * PRIMARY_SUPERS] =
                    reader.pages.array(at(entry.klass, primary)?)?;
                let others = reader.pages.pointer(at(entry.klass, secondary)?)?;
                let many = match others {
                    // The class is not linked yet.
                    Addr(0) => 0,
                    others => reader.pages.u32(at(others, length)?)?,
                };
                if many > MAX_ABOVE {
                    return Err(Error::layout(format!("{many} superclasses: implausible")));
                }
                let others = match many {
                    0 => Vec::new(),
                    many => reader.pages.bytes(at(others, data)?, many as usize * 8)?,
                };
                let mut above = Vec::new();
                for word in words.chunks_exact(8).chain(others.chunks_exact(8)) {
                    let klass = Addr(u64::from_ne_bytes(word.try_into().unwrap_or_default()));
                    if klass != Addr(0) && klass != entry.klass {
                        above.push(classes.symbol(reader, klass)?);
                    }
                }
                room = room
                    .checked_sub(above.len())
                    .ok_or_else(|| Error::layout("more superclasses than can be kept"))?;
                families.insert(own, above);
            }
        }
        Ok(families)
    }

    /// Adds a class with what is above it.
    pub(super) fn insert(&mut self, class: Addr, above: Vec<Addr>) {
        for &other in &above {
            self.below.entry(other).or_default().push(class);
        }
        self.above.entry(class).or_default().extend(above);
    }

    /// Whether there is a class of this name.
    pub(super) fn has(&self, class: Addr) -> bool {
        self.above.contains_key(&class)
    }

    fn above(&self, class: Addr) -> impl Iterator<Item = Addr> {
        self.above.get(&class).into_iter().flatten().copied()
    }

    /// A class, and all below it.
    pub(super) fn down(&self, class: Addr) -> impl Iterator<Item = Addr> {
        [class].into_iter().chain(self.below.get(&class).into_iter().flatten().copied())
    }

    /// All classes an object can be of, too, that has a method of this class: by calls that name
    /// these, its method may be reached.
    pub(super) fn all(&self, class: Addr) -> impl Iterator<Item = Addr> {
        self.down(class).flat_map(|own| [own].into_iter().chain(self.above(own)))
    }

    /// Whether a class has so many relatives that it is not worth the while to look at each.
    pub(super) fn is_large(&self, class: Addr) -> bool {
        /// Such as `Object`, and few others.
        const LARGE: usize = 1000;
        self.below.get(&class).is_some_and(|below| below.len() > LARGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: Addr = Addr(1);
    const SHAPE: Addr = Addr(2);
    const BASE: Addr = Addr(3);
    const ROUND: Addr = Addr(4);
    const OTHER: Addr = Addr(5);

    fn sorted(classes: impl Iterator<Item = Addr>) -> Vec<Addr> {
        let mut classes: Vec<_> = classes.collect();
        classes.sort_unstable();
        classes.dedup();
        classes
    }

    #[test]
    fn an_interface_of_a_subclass_is_of_the_family() {
        let mut families = Families::default();
        families.insert(OBJECT, vec![]);
        families.insert(SHAPE, vec![OBJECT]);
        families.insert(BASE, vec![OBJECT]);
        families.insert(ROUND, vec![OBJECT, BASE, SHAPE]);
        families.insert(OTHER, vec![OBJECT]);
        assert_eq!(sorted(families.all(ROUND)), [OBJECT, SHAPE, BASE, ROUND]);
        assert_eq!(sorted(families.all(BASE)), [OBJECT, SHAPE, BASE, ROUND]);
        assert_eq!(sorted(families.all(OTHER)), [OBJECT, OTHER]);
        assert_eq!(sorted(families.down(SHAPE)), [SHAPE, ROUND]);
        assert_eq!(sorted(families.down(ROUND)), [ROUND]);
        assert!(families.has(BASE) && !families.has(Addr(9)));
        assert!(!families.is_large(OBJECT));
    }
}
