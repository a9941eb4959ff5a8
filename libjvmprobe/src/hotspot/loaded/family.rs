//! Superclasses and subclasses of each class. If a call names a class, these relations determine which
//! methods the call may reach.
//!
//! Sources: hotspot/share/oops/klass.hpp, klass.cpp (`initialize_supers`). `_primary_supers` holds the
//! class and its superclasses up to a depth of eight. `_secondary_supers` holds deeper superclasses
//! and all interfaces, including inherited ones.

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
/// Plausibility limit: no class has more superclasses and interfaces.
const MAX_ABOVE: u32 = 1 << 9;
/// Maximum number of relations kept, 32 MiB for each direction.
const MAX_RELATIONS: usize = 1 << 22;

/// Relations between classes, by the Symbols of their names. Classes of the same name count as one.
#[derive(Debug, Default)]
pub(super) struct Families {
    /// Superclasses and all interfaces, by class.
    above: NumberMap<Addr, Vec<Addr>>,
    /// Subclasses, or implementing classes of an interface, at any depth, by class.
    below: NumberMap<Addr, Vec<Addr>>,
}

impl Families {
    /// Reads the relations of all listed classes.
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
        let mut relations_left = MAX_RELATIONS;
        for entries in listed.classes.chunks(AT_ONCE) {
            reader.prefetch(entries, &[secondary]);
            for entry in entries {
                let own = classes.symbol(reader, entry.klass)?;
                let words: [u8; 8 * PRIMARY_SUPERS] =
                    reader.pages.array(at(entry.klass, primary)?)?;
                let others = reader.pages.pointer(at(entry.klass, secondary)?)?;
                let many = match others {
                    // The class is still being loaded: `initialize_supers` has not set the field yet.
                    Addr(0) => 0,
                    others => reader.pages.u32(at(others, length)?)?,
                };
                if many > MAX_ABOVE {
                    return Err(Error::layout(format!(
                        "implausible number of superclasses: {many}"
                    )));
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
                relations_left = relations_left
                    .checked_sub(above.len())
                    .ok_or_else(|| Error::layout("too many superclasses"))?;
                families.insert(own, above);
            }
        }
        Ok(families)
    }

    /// Adds a class with its superclasses and interfaces.
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

    /// Returns a class and all its subclasses.
    pub(super) fn down(&self, class: Addr) -> impl Iterator<Item = Addr> {
        [class].into_iter().chain(self.below.get(&class).into_iter().flatten().copied())
    }

    /// Returns this class, its subclasses, and the superclasses and interfaces of all of these. An
    /// object that has this class's methods is an instance of this class or of a subclass, and so also of
    /// their superclasses and interfaces. Therefore a call that names any of the returned classes may
    /// reach a method of this class.
    pub(super) fn all(&self, class: Addr) -> impl Iterator<Item = Addr> {
        self.down(class).flat_map(|own| [own].into_iter().chain(self.above(own)))
    }

    /// Whether a class has too many subclasses to check each of them.
    pub(super) fn is_large(&self, class: Addr) -> bool {
        /// Exceeded by `Object` and few other classes.
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
    fn family_includes_interfaces_of_subclasses() {
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
