//! The values of [`super::layout`]'s table in one JVM: offsets, sizes and addresses.
//!
//! JVMs of one libjvm.so that report equal values share one copy of them ([`super::build`]). A JVM that
//! reports wrong values therefore affects only its own results. Addresses of statics are stored without the
//! load bias of the library, because the load bias differs from JVM to JVM.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use crate::{
    Addr, Error, Result, Vaddr,
    hotspot::{
        layout::{Feature, Item, Kind, Row, TABLE},
        vmstructs::{self, Fact},
    },
    process::memory::Memory,
};

/// Name of a type, and of a field in it.
type Name<'a> = (&'a str, Option<&'a str>);

/// A name in a row of the layout table. The JVM's tables are searched for this name.
#[derive(Debug)]
struct WantedName {
    field: Option<&'static str>,
    kind: Kind,
    /// Index of the row, and index of the name in the row.
    row: usize,
    rank: usize,
}

/// The names to look for, by type name.
#[derive(Debug)]
struct WantedNames(HashMap<&'static str, Vec<WantedName>>);

impl WantedNames {
    fn of(table: &'static [Row]) -> Self {
        let mut wanted: HashMap<_, Vec<_>> = HashMap::new();
        for (index, row) in table.iter().enumerate() {
            for (rank, (_, name)) in row.names.iter().enumerate() {
                let (class, field) = match row.kind {
                    Kind::Symbol => continue,
                    Kind::Size => (*name, None),
                    Kind::Offset | Kind::Static => match name.rsplit_once("::") {
                        Some((class, field)) => (class, Some(field)),
                        None => continue,
                    },
                };
                let wanted_name = WantedName { field, kind: row.kind, row: index, rank };
                wanted.entry(class).or_default().push(wanted_name);
            }
        }
        Self(wanted)
    }

    /// Returns the names of [`TABLE`].
    fn of_layout_table() -> &'static Self {
        static WANTED: OnceLock<WantedNames> = OnceLock::new();
        WANTED.get_or_init(|| Self::of(TABLE))
    }

    fn has(&self, class: &str) -> bool {
        self.0.contains_key(class)
    }

    /// Returns the rows that a fact matches, each with the index of the matching name.
    fn rows(&self, (class, field): Name<'_>, kind: Kind) -> impl Iterator<Item = (usize, usize)> {
        let of_class = self.0.get(class).map_or(&[][..], Vec::as_slice);
        let is_match = move |name: &&WantedName| name.field == field && name.kind == kind;
        of_class.iter().filter(is_match).map(|name| (name.row, name.rank))
    }
}

/// Values by row of a table, each with the index of the name by which it was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Values(Vec<Option<(usize, u64)>>);

impl Values {
    /// Reads the values of a table's rows: those of [`Kind::Symbol`] from the file's symbol table, all others
    /// from the JVM's vmStructs.
    ///
    /// # Errors
    /// The errors of [`vmstructs::read`].
    fn read(
        memory: &Memory,
        bias: u64,
        (table, wanted): (&'static [Row], &WantedNames),
        exported: impl Fn(&str) -> Option<Addr>,
        private: impl Fn(&str) -> Option<Vaddr>,
    ) -> Result<Self> {
        let mut values = vec![None; table.len()];
        let mut put = |index: usize, rank: usize, value: u64| {
            let newest = |known: &Option<(usize, u64)>| known.is_none_or(|(old, _)| old <= rank);
            if let Some(slot) = values.get_mut(index).filter(|slot| newest(slot)) {
                *slot = Some((rank, value));
            }
        };
        for (index, row) in table.iter().enumerate().filter(|(_, row)| row.kind == Kind::Symbol) {
            for (rank, (_, name)) in row.names.iter().enumerate() {
                if let Some(at) = private(name) {
                    put(index, rank, at.0);
                }
            }
        }
        vmstructs::read(
            memory,
            exported,
            |class| wanted.has(class),
            |class, field, fact| {
                let (kind, value) = match fact {
                    Fact::Offset(offset) => (Kind::Offset, offset),
                    Fact::Static(at) => (Kind::Static, at.0.wrapping_sub(bias)),
                    Fact::Size(size) => (Kind::Size, size),
                };
                for (index, rank) in wanted.rows((class, field), kind) {
                    put(index, rank, value);
                }
            },
        )?;
        Ok(Self(values))
    }
}

/// The values of [`TABLE`] in one JVM.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    values: Arc<Values>,
    /// Load bias: added to the stored addresses of statics.
    bias: u64,
    /// The JDK's feature release, 0 if unknown.
    pub(super) major: u32,
}

impl Layout {
    /// Reads a JVM's values; `share` returns a shared copy if an equal one exists. `exported` returns
    /// the address in the target of an exported variable of libjvm.so, `private` the address in the file
    /// of a private static.
    ///
    /// # Errors
    /// [`Error::Layout`] if the tables are missing or implausible, [`Error::Memory`] if the target has
    /// exited.
    pub(super) fn read(
        memory: &Memory,
        bias: u64,
        exported: impl Fn(&str) -> Option<Addr>,
        private: impl Fn(&str) -> Option<Vaddr>,
        share: impl FnOnce(Values) -> Arc<Values>,
    ) -> Result<Self> {
        let table = (TABLE, WantedNames::of_layout_table());
        let values = Values::read(memory, bias, table, exported, private)?;
        Ok(Self { values: share(values), bias, major: 0 })
    }

    /// Returns a copy with the same values but another feature release.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn of_jdk(&self, major: u32) -> Self {
        Self { major, ..self.clone() }
    }

    /// Whether it is a JDK 8, whose code cache has a different structure.
    pub(super) fn is_jdk_8(&self) -> bool {
        self.major == 8
    }

    /// Whether the JVM has this item.
    pub(super) fn has(&self, item: Item) -> bool {
        self.find(item).is_some()
    }

    fn find(&self, item: Item) -> Option<u64> {
        self.values.0.get(item as usize).copied().flatten().map(|(_, value)| value)
    }

    /// Returns a member's offset or a type's size, in bytes.
    ///
    /// # Errors
    /// [`Error::Layout`], see [`Self::missing`].
    pub(super) fn get(&self, item: Item) -> Result<u64> {
        self.find(item).ok_or_else(|| self.missing(item))
    }

    /// Returns the address of a static.
    ///
    /// # Errors
    /// [`Error::Layout`], see [`Self::missing`].
    pub(super) fn address(&self, item: Item) -> Result<Addr> {
        Ok(Addr(self.get(item)?.wrapping_add(self.bias)))
    }

    /// Returns the address of a static, or `None` if the JVM lacks it.
    pub(super) fn try_address(&self, item: Item) -> Option<Addr> {
        self.find(item).map(|at| Addr(at.wrapping_add(self.bias)))
    }

    /// Returns the error for a missing item. The error names this item and the consequence. It also names the
    /// other items of the same feature that this JDK should have but that are missing.
    fn missing(&self, item: Item) -> Error {
        let Some(row) = TABLE.get(item as usize) else {
            return Error::layout(format!("{item:?} is not in the table"));
        };
        let feature = row.features.first().copied().unwrap_or(Feature::Version);
        let is_wanted = |other: &&Row| {
            let holds = has_in(other, self.major) && !self.has(other.item);
            other.item == row.item || holds && other.features.contains(&feature)
        };
        let names: Vec<_> = TABLE.iter().filter(is_wanted).map(described).collect();
        Error::layout(format!("this JVM has no {}: {}", names.join(", no "), feature.loss()))
    }

    /// Returns a line for each missing row that this JDK should have, with the consequences, for a
    /// developer who adapts the table to a new JDK. Symbols are excluded: a stripped file has none.
    pub(super) fn all_missing(&self) -> Vec<String> {
        let is_missing =
            |row: &&Row| row.kind != Kind::Symbol && has_in(row, self.major) && !self.has(row.item);
        let line = |row: &Row| {
            let losses: Vec<_> = row.features.iter().map(|feature| feature.loss()).collect();
            format!("no {}: {}", described(row), losses.join("; "))
        };
        TABLE.iter().filter(is_missing).map(line).collect()
    }
}

/// Whether a JDK should have a row's item; `false` for an unknown JDK.
fn has_in(row: &Row, major: u32) -> bool {
    major > 0 && row.names.first().is_some_and(|&(since, _)| since <= major) && major <= row.until
}

/// Returns a row's kind and names for messages: the newest name first.
fn described(row: &Row) -> String {
    let kind = match row.kind {
        Kind::Offset => "field",
        Kind::Static => "static field",
        Kind::Size => "type",
        Kind::Symbol => "symbol",
    };
    let mut names: Vec<_> = row.names.iter().rev().map(|(_, name)| *name).collect();
    names.dedup();
    format!("{kind} {}", names.join(" or "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::testing::{Image, own_memory};

    /// An invented table with a field that was renamed twice: first it moved to another type, then back.
    const INVENTED: &[Row] = &[Row {
        item: Item::KlassName,
        kind: Kind::Offset,
        names: &[(8, "Klass::_name"), (30, "Clazz::_title"), (31, "Klass::_label")],
        until: u32::MAX,
        features: &[Feature::Classes],
    }];

    fn value(image: &Image) -> Option<u64> {
        let table = (INVENTED, &WantedNames::of(INVENTED));
        let exported = |name: &str| image.symbol(name);
        let values = Values::read(&own_memory(), 0, table, exported, |_| None).unwrap();
        values.0[0].map(|(_, value)| value)
    }

    #[test]
    fn renamed_field_resolves_under_each_of_its_names() {
        for (class, field, offset) in
            [("Klass", "_name", 8), ("Clazz", "_title", 16), ("Klass", "_label", 24)]
        {
            let mut image = Image::new();
            image.field(class, field, offset);
            image.finish();
            assert_eq!(value(&image), Some(offset), "{class}::{field}");
        }
        let mut image = Image::new();
        image.field("Klass", "_shoe", 8);
        image.finish();
        assert_eq!(value(&image), None);
    }

    #[test]
    fn newest_name_wins_if_several_are_present() {
        for order in [["_name", "_label"], ["_label", "_name"]] {
            let mut image = Image::new();
            for field in order {
                image.field("Klass", field, if field == "_label" { 24 } else { 8 });
            }
            image.finish();
            assert_eq!(value(&image), Some(24));
        }
    }

    #[test]
    fn error_lists_every_field_missing_for_a_feature() {
        let mut image = Image::new();
        image.field("Method", "_constMethod", 8);
        // A static field does not count as an offset.
        image.static_field("Klass", "_name", Addr(8));
        image.finish();
        let layout = image.read().unwrap().of_jdk(21);
        assert_eq!(layout.get(Item::ConstMethodOf).unwrap(), 8);
        let error = layout.get(Item::KlassName).unwrap_err().to_string();
        for part in [
            "this JVM has no",
            "field Klass::_name",
            "type ConstantPool",
            "field Symbol::_body[0] or Symbol::_body",
            ": methods have no names",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        // Neither a field that this JDK never had nor one that this JVM has is reported.
        assert!(!error.contains("InstanceKlass") && !error.contains("Method::_constM"), "{error}");
        let all = layout.all_missing();
        assert!(all.iter().any(|line| line.contains("Thread::_tlab")), "{all:?}");
        // For an unknown JDK, only the requested field is reported.
        let error = layout.of_jdk(0).get(Item::KlassName).unwrap_err().to_string();
        assert!(error.ends_with("no field Klass::_name: methods have no names"), "{error}");
    }

    #[test]
    fn static_addresses_include_the_load_bias() {
        let mut image = Image::new();
        image.static_field("Universe", "_collectedHeap", Addr(0x7000));
        image.finish();
        let [low, high] = [0x1000, 0x3000].map(|bias| image.read_at(bias).unwrap());
        // The values are stored without the bias, so they differ although the JVMs report the same addresses.
        assert_ne!(low.values, high.values);
        for layout in [low, high] {
            assert_eq!(layout.address(Item::CollectedHeap).unwrap(), Addr(0x7000));
        }
    }

    #[test]
    fn table_rows_are_sorted_and_well_formed() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.item as usize, index);
            assert!(row.names.is_sorted_by_key(|(since, _)| since), "{row:?}");
            assert!(row.names.iter().all(|(since, _)| *since <= row.until), "{row:?}");
            let is_named = |name: &str| match row.kind {
                Kind::Offset | Kind::Static => name.contains("::_") || name.contains("::"),
                Kind::Size => true,
                Kind::Symbol => name.starts_with("_Z"),
            };
            assert!(row.names.iter().all(|(_, name)| is_named(name)), "{row:?}");
        }
    }
}
