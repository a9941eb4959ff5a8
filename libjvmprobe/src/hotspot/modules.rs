//! Modules of classes. vmStructs has no fields for them, so their offsets are searched for where HotSpot's sources
//! place them, and accepted only if the values found there are as expected.
//!
//! Sources: hotspot/share/oops/instanceKlass.hpp, classfile/{packageEntry,moduleEntry}.hpp, JDK 9 to 28.
//! `InstanceKlass::_package_entry` lies between `_annotations` and `_array_klasses`. A package's entry has its name and
//! then its module; a module's entry has its name and its location at offsets that are searched for, and its version
//! before the location. Up to JDK 19 these entries are hash table entries, with a hash and a link before the name.

use std::sync::Arc;

use crate::{
    Addr,
    hotspot::{layout::Item, pages::Pages, resolved::Layout, symbols::Symbols},
};

/// Possible offsets of an entry's name: in a plain entry, and in a hash table entry.
const NAMES: [u64; 2] = [0, 16];
/// Upper bound of the offsets of a module's name and location, in bytes.
const MODULE_END: u64 = 160;
/// The module that every JVM has, and its location.
const BASE: &str = "java.base";
const BASE_AT: &str = "jrt:/java.base";

/// Caches through which modules are read.
pub(super) struct Reader<'a, 'p> {
    pub(super) pages: &'a mut Pages<'p>,
    pub(super) symbols: &'a mut Symbols,
}

/// Offsets by which the module of a class is found.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModuleFields {
    /// In an InstanceKlass: offset of its package's entry.
    package: u64,
    /// In a package's entry: offset of its module's entry.
    module: u64,
    name: u64,
    location: Option<u64>,
    version: Option<u64>,
}

impl ModuleFields {
    /// Searches for the offsets by a class, which must be in the package `java.lang`.
    pub(super) fn find(reader: &mut Reader<'_, '_>, layout: &Layout, class: Addr) -> Option<Self> {
        let before = layout.get(Item::ClassAnnotations).ok()?;
        let behind = layout.get(Item::ArraysOfClass).ok()?;
        let package = before.checked_add(8).filter(|at| at.checked_add(8) == Some(behind))?;
        let entry = pointer(reader, class, package)?;
        NAMES.into_iter().find_map(|name_at| {
            if text(reader, entry, name_at).as_deref() != Some("java/lang") {
                return None;
            }
            let base = pointer(reader, entry, name_at + 8)?;
            let mut find = |wanted: &str| {
                let mut slots = (0..MODULE_END).step_by(8);
                slots.find(|&slot| text(reader, base, slot).as_deref() == Some(wanted))
            };
            let (name, location) = (find(BASE)?, find(BASE_AT));
            // The version of java.base is that of the JDK, which begins with a number.
            let version = location.and_then(|location| location.checked_sub(8));
            let version = version.filter(|&slot| {
                let text = text(reader, base, slot);
                text.is_some_and(|text| text.starts_with(|c: char| c.is_ascii_digit()))
            });
            Some(Self { package, module: name_at + 8, name, location, version })
        })
    }

    /// Returns the entry of a class's module; `None` for classes without a package, whose modules are unnamed.
    pub(super) fn of_class(&self, reader: &mut Reader<'_, '_>, class: Addr) -> Option<Addr> {
        let package = pointer(reader, class, self.package)?;
        pointer(reader, package, self.module)
    }

    /// Returns the name of a module; `None` for unnamed modules.
    pub(super) fn name(&self, reader: &mut Reader<'_, '_>, module: Addr) -> Option<Arc<str>> {
        text(reader, module, self.name)
    }

    /// Returns the location of a module, a URL.
    pub(super) fn location(&self, reader: &mut Reader<'_, '_>, module: Addr) -> Option<Arc<str>> {
        text(reader, module, self.location?)
    }

    /// Returns the version of a module.
    pub(super) fn version(&self, reader: &mut Reader<'_, '_>, module: Addr) -> Option<Arc<str>> {
        text(reader, module, self.version?)
    }
}

/// Reads a field that is a pointer; `None` for null.
fn pointer(reader: &mut Reader<'_, '_>, object: Addr, field: u64) -> Option<Addr> {
    reader.pages.pointer(object.checked_add(field)?).ok().filter(|at| at.0 != 0)
}

/// Returns the text of the Symbol that a field points to.
fn text(reader: &mut Reader<'_, '_>, object: Addr, field: u64) -> Option<Arc<str>> {
    let symbol = pointer(reader, object, field)?;
    reader.symbols.get(reader.pages, symbol).ok()
}
