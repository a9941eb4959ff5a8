//! What of [`super::layout`]'s table one JVM has, and where.
//!
//! It is kept once for all JVMs of a libjvm.so that say the same ([`super::build`]): they may
//! lie about themselves, but not about others. Statics are kept without the address that the
//! library was moved by, which differs from JVM to JVM.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use crate::{
    Addr, Error, Result, Vaddr,
    hotspot::{
        layout::{Item, Kind, Row, TABLE, Use},
        vmstructs::{self, Fact},
    },
    process::memory::Memory,
};

/// A type's name, and a field's.
type Name<'a> = (&'a str, Option<&'a str>);

/// One name of a row.
#[derive(Debug)]
struct Wish {
    field: Option<&'static str>,
    kind: Kind,
    /// Which row it is, and which of its names.
    row: usize,
    rank: usize,
}

/// By which names facts are looked for: those of a table's rows, by their types.
#[derive(Debug)]
struct Wanted(HashMap<&'static str, Vec<Wish>>);

impl Wanted {
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
                let wish = Wish { field, kind: row.kind, row: index, rank };
                wanted.entry(class).or_default().push(wish);
            }
        }
        Self(wanted)
    }

    /// The one for our table.
    fn ours() -> &'static Self {
        static WANTED: OnceLock<Wanted> = OnceLock::new();
        WANTED.get_or_init(|| Self::of(TABLE))
    }

    fn has(&self, class: &str) -> bool {
        self.0.contains_key(class)
    }

    /// The rows that a fact answers, with the rank of its name in each.
    fn rows(&self, (class, field): Name<'_>, kind: Kind) -> impl Iterator<Item = (usize, usize)> {
        let of_class = self.0.get(class).map_or(&[][..], Vec::as_slice);
        let answers = move |wish: &&Wish| wish.field == field && wish.kind == kind;
        of_class.iter().filter(answers).map(|wish| (wish.row, wish.rank))
    }
}

/// Values by the rows of a table, each with the rank of the name that it was found by.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Values(Vec<Option<(usize, u64)>>);

impl Values {
    /// Reads what a JVM says of the rows of a table, and looks its symbols up in the file.
    ///
    /// # Errors
    /// As [`vmstructs::read`].
    fn read(
        memory: &Memory,
        bias: u64,
        (table, wanted): (&'static [Row], &Wanted),
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

/// Where one JVM has what our table lists.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    values: Arc<Values>,
    /// What statics are moved by.
    bias: u64,
    /// The JDK's number, 0 where it is unknown.
    pub(super) major: u32,
}

impl Layout {
    /// Finds out what a JVM has, and lets `share` keep what is alike once. `exported` gives the
    /// address in the target of what libjvm.so exports, `private` where the file has a private
    /// static.
    ///
    /// # Errors
    /// [`Error::Layout`] where the tables are missing or implausible, [`Error::Memory`] when
    /// the target is gone.
    pub(super) fn read(
        memory: &Memory,
        bias: u64,
        exported: impl Fn(&str) -> Option<Addr>,
        private: impl Fn(&str) -> Option<Vaddr>,
        share: impl FnOnce(Values) -> Arc<Values>,
    ) -> Result<Self> {
        let ours = (TABLE, Wanted::ours());
        let values = Values::read(memory, bias, ours, exported, private)?;
        Ok(Self { values: share(values), bias, major: 0 })
    }

    /// The same of another JDK.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn of_jdk(&self, major: u32) -> Self {
        Self { major, ..self.clone() }
    }

    /// Whether it is a JDK 8, whose code cache is of a shape of its own.
    pub(super) fn is_jdk_8(&self) -> bool {
        self.major == 8
    }

    /// Whether it has something.
    pub(super) fn has(&self, item: Item) -> bool {
        self.find(item).is_some()
    }

    fn find(&self, item: Item) -> Option<u64> {
        self.values.0.get(item as usize).copied().flatten().map(|(_, value)| value)
    }

    /// A member's offset or a type's size.
    ///
    /// # Errors
    /// [`Error::Layout`], see [`Self::missing`].
    pub(super) fn get(&self, item: Item) -> Result<u64> {
        self.find(item).ok_or_else(|| self.missing(item))
    }

    /// The address of a static.
    ///
    /// # Errors
    /// [`Error::Layout`], see [`Self::missing`].
    pub(super) fn address(&self, item: Item) -> Result<Addr> {
        Ok(Addr(self.get(item)?.wrapping_add(self.bias)))
    }

    /// The address of a static, where it has it.
    pub(super) fn try_address(&self, item: Item) -> Option<Addr> {
        self.find(item).map(|at| Addr(at.wrapping_add(self.bias)))
    }

    /// What to say where something is missing: with it, all that its JDK should have and that
    /// is wanted for the same, and what does not work without.
    fn missing(&self, item: Item) -> Error {
        let Some(row) = TABLE.get(item as usize) else {
            return Error::layout(format!("{item:?} is not in the table"));
        };
        let loss = row.uses.first().copied().unwrap_or(Use::Version);
        let is_wanted = |other: &&Row| {
            let holds = has_in(other, self.major) && !self.has(other.item);
            other.item == row.item || holds && other.uses.contains(&loss)
        };
        let names: Vec<_> = TABLE.iter().filter(is_wanted).map(described).collect();
        Error::layout(format!("this JVM has no {}: {}", names.join(", no "), loss.loss()))
    }

    /// All that its JDK should have and that is missing, with what does not work without; for
    /// somebody who looks at a new JDK. Symbols are left out: a stripped file has none.
    pub(super) fn all_missing(&self) -> Vec<String> {
        let is_missing =
            |row: &&Row| row.kind != Kind::Symbol && has_in(row, self.major) && !self.has(row.item);
        let line = |row: &Row| {
            let losses: Vec<_> = row.uses.iter().map(|usage| usage.loss()).collect();
            format!("no {}: {}", described(row), losses.join("; "))
        };
        TABLE.iter().filter(is_missing).map(line).collect()
    }
}

/// Whether a JDK should have what a row lists; of one that is not known nothing is expected.
fn has_in(row: &Row, major: u32) -> bool {
    major > 0 && row.names.first().is_some_and(|&(since, _)| since <= major) && major <= row.until
}

/// A row as it is told: its newest name, and those before.
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

    /// An invented table: something that was renamed twice, and once back.
    const INVENTED: &[Row] = &[Row {
        item: Item::KlassName,
        kind: Kind::Offset,
        names: &[(8, "Klass::_name"), (30, "Clazz::_title"), (31, "Klass::_label")],
        until: u32::MAX,
        uses: &[Use::Classes],
    }];

    fn value(image: &Image) -> Option<u64> {
        let table = (INVENTED, &Wanted::of(INVENTED));
        let exported = |name: &str| image.symbol(name);
        let values = Values::read(&own_memory(), 0, table, exported, |_| None).unwrap();
        values.0[0].map(|(_, value)| value)
    }

    #[test]
    fn a_renamed_field_is_one_name_more() {
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
    fn of_several_names_the_newest_holds() {
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
    fn what_is_missing_is_told_together() {
        let mut image = Image::new();
        image.field("Method", "_constMethod", 8);
        // A static one is no offset.
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
            ": methods are not named",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        // What this JDK never had, and what it has.
        assert!(!error.contains("InstanceKlass") && !error.contains("Method::_constM"), "{error}");
        let all = layout.all_missing();
        assert!(all.iter().any(|line| line.contains("Thread::_tlab")), "{all:?}");
        // Of a JDK that is not known, only what was asked for is missed.
        let error = layout.of_jdk(0).get(Item::KlassName).unwrap_err().to_string();
        assert!(error.ends_with("no field Klass::_name: methods are not named"), "{error}");
    }

    #[test]
    fn statics_are_where_the_library_was_moved_to() {
        let mut image = Image::new();
        image.static_field("Universe", "_collectedHeap", Addr(0x7000));
        image.finish();
        let [low, high] = [0x1000, 0x3000].map(|bias| image.read_at(bias).unwrap());
        // Kept without the bias: so these differ, though they say the same.
        assert_ne!(low.values, high.values);
        for layout in [low, high] {
            assert_eq!(layout.address(Item::CollectedHeap).unwrap(), Addr(0x7000));
        }
    }

    #[test]
    fn the_table_is_in_order() {
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
