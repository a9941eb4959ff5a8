//! Names of loaders and modules. vmStructs has no fields for them, so their offsets are searched for
//! where HotSpot's sources place them, and accepted only if the values found there are as expected.
//!
//! Sources: hotspot/share/classfile/{classLoaderData,packageEntry,moduleEntry}.hpp. After
//! `ClassLoaderData::_next` come the loader's class, the loader's name, and this name with the loader's
//! identity hash, in this order up to JDK 28. `InstanceKlass::_package_entry` lies between `_annotations`
//! and `_array_klasses`. A package's entry has its name and then its module; a module's entry has its
//! name and its location at offsets that are searched for. Up to JDK 19 these entries are hash table
//! entries, with a hash and a link before the name.

use std::{collections::HashMap, sync::Arc};

use crate::{
    Addr,
    hotspot::{
        classes::java_name,
        layout::Item,
        loaded::{AT_ONCE, Loader, Reader, class::ClassReader, walk::Listed},
        resolved::Layout,
    },
    names::clean,
};

/// Maximum number of loaders and of classes examined to find the offsets.
const MAX_EXAMINED: usize = 300;
/// Possible offsets of an entry's name: in a plain entry, and in a hash table entry.
const NAMES: [u64; 2] = [0, 16];
/// Upper bound of the offsets of a module's name and location, in bytes.
const MODULE_END: u64 = 160;
/// The module that every JVM has, and its location.
const BASE: &str = "java.base";
const BASE_AT: &str = "jrt:/java.base";

/// Offsets of the names.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// In a ClassLoaderData: offset of the loader's class.
    loader_class: Option<u64>,
    klass_name: u64,
    /// In an InstanceKlass: offset of its package's entry.
    package: Option<u64>,
    /// In a package's entry: offset of its module's entry.
    package_module: u64,
    module_name: u64,
    module_location: Option<u64>,
}

impl Names {
    /// Searches for the offsets.
    pub(super) fn discover(
        reader: &mut Reader<'_>,
        layout: &Layout,
        classes: &ClassReader,
        listed: &Listed,
    ) -> Self {
        let mut names = Self::default();
        let (Ok(klass_name), Ok(next), Ok(size)) = (
            layout.get(Item::KlassName),
            layout.get(Item::NextLoader),
            layout.get(Item::LoaderDataSize),
        ) else {
            return names;
        };
        names.klass_name = klass_name;
        names.loader_class = names.find_loader_class(reader, listed, next..size.min(next + 256));
        let (before, behind) =
            (layout.get(Item::ClassAnnotations), layout.get(Item::ArraysOfClass));
        if let (Ok(before), Ok(behind)) = (before, behind)
            && behind == before + 16
        {
            names.find_module(reader, classes, listed, before + 8);
        }
        names
    }

    /// Finds the offset of the loader's class: the slot that in every ClassLoaderData holds a listed
    /// class or, as for the boot loader, null.
    fn find_loader_class(
        &self,
        reader: &mut Reader<'_>,
        listed: &Listed,
        within: std::ops::Range<u64>,
    ) -> Option<u64> {
        let mut known: Vec<_> = listed.classes.iter().map(|entry| entry.klass).collect();
        known.sort_unstable();
        let mut slots = within.step_by(8).skip(1);
        slots.find(|&slot| {
            let mut hits = 0;
            for &loader in listed.loaders.iter().take(MAX_EXAMINED) {
                match pointer(reader, loader, slot) {
                    // The boot loader has no class. So the slot is null in its ClassLoaderData and in
                    // those of its hidden classes.
                    Some(Addr(0)) => {}
                    Some(klass) if known.binary_search(&klass).is_ok() => hits += 1,
                    _ => return false,
                }
            }
            hits > 0
        })
    }

    /// Finds the offset of the package in a class and the offset of the module in a package, from a class
    /// of `java.base`.
    fn find_module(
        &mut self,
        reader: &mut Reader<'_>,
        classes: &ClassReader,
        listed: &Listed,
        package_at: u64,
    ) {
        for entry in listed.classes.iter().rev().take(MAX_EXAMINED) {
            let Ok(raw) = classes.raw_name(reader, entry.klass) else { continue };
            let Some(("java/lang", _)) = raw.rsplit_once('/') else { continue };
            let Some(package) = pointer(reader, entry.klass, package_at) else { continue };
            for name_at in NAMES {
                if text(reader, package, name_at).as_deref() != Some("java/lang") {
                    continue;
                }
                let Some(module) = pointer(reader, package, name_at + 8) else { continue };
                let mut find = |wanted: &str| {
                    let mut slots = (0..MODULE_END).step_by(8);
                    slots.find(|&slot| text(reader, module, slot).as_deref() == Some(wanted))
                };
                let Some(module_name) = find(BASE) else { continue };
                self.module_location = find(BASE_AT);
                (self.package, self.package_module) = (Some(package_at), name_at + 8);
                self.module_name = module_name;
                return;
            }
        }
    }

    /// Returns the loaders and, for each ClassLoaderData, the index of its loader.
    pub(super) fn loaders(
        &self,
        reader: &mut Reader<'_>,
        listed: &Listed,
    ) -> (Vec<Loader>, Vec<usize>) {
        let mut loaders: Vec<Loader> = Vec::new();
        let mut known: HashMap<Loader, usize> = HashMap::new();
        let mut numbers = Vec::with_capacity(listed.loaders.len());
        for some in listed.loaders.chunks(AT_ONCE) {
            reader.pages.prefetch(some.iter().copied());
            if let Some(slot) = self.loader_class {
                reader.prefetch_names(some.iter().copied(), slot + 16);
            }
            for &data in some {
                let loader = self.loader(reader, data);
                let number = *known.entry(loader).or_insert_with_key(|loader| {
                    loaders.push(loader.clone());
                    loaders.len() - 1
                });
                numbers.push(number);
            }
        }
        (loaders, numbers)
    }

    fn loader(&self, reader: &mut Reader<'_>, data: Addr) -> Loader {
        let Some(slot) = self.loader_class else { return Loader::default() };
        let Some(class) = pointer(reader, data, slot) else { return Loader::default() };
        if class == Addr(0) {
            return Loader { is_boot: true, ..Loader::default() };
        }
        let name = |text: Arc<str>| -> Arc<str> { clean::name(&text).into() };
        Loader {
            class: text(reader, class, self.klass_name)
                .map(|raw| java_name(raw.as_bytes(), raw.len() as u32).into()),
            name: text(reader, data, slot + 8).map(name),
            identity: text(reader, data, slot + 16).map(name),
            is_boot: false,
        }
    }

    /// Returns the name and the location of a class's module; `None` for unnamed modules.
    pub(super) fn module(
        &self,
        reader: &mut Reader<'_>,
        klass: Addr,
    ) -> (Option<Arc<str>>, Option<Arc<str>>) {
        let find = |reader: &mut Reader<'_>| {
            let package = pointer(reader, klass, self.package?).filter(|at| at.0 != 0)?;
            pointer(reader, package, self.package_module).filter(|at| at.0 != 0)
        };
        let Some(module) = find(reader) else { return (None, None) };
        let name = text(reader, module, self.module_name);
        let location = self.module_location.and_then(|slot| text(reader, module, slot));
        (name, location)
    }
}

fn pointer(reader: &mut Reader<'_>, object: Addr, field: u64) -> Option<Addr> {
    reader.pages.pointer(object.checked_add(field)?).ok()
}

/// Returns the text of the Symbol that a field points to.
fn text(reader: &mut Reader<'_>, object: Addr, field: u64) -> Option<Arc<str>> {
    let symbol = pointer(reader, object, field).filter(|at| at.0 != 0)?;
    reader.text(symbol).ok()
}
