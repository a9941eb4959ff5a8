//! Names of loaders, and modules of classes. vmStructs has no fields for the names of loaders, so their offsets are
//! searched for where HotSpot's sources place them, and accepted only if the values found there are as expected.
//!
//! Source: hotspot/share/classfile/classLoaderData.hpp. After `ClassLoaderData::_next` come the loader's class, the
//! loader's name, and this name with the loader's identity hash, in this order up to JDK 28.

use std::{collections::HashMap, sync::Arc};

use crate::{
    Addr,
    hotspot::{
        classes::java_name,
        layout::Item,
        loaded::{AT_ONCE, Loader, Reader, class::ClassReader, walk::Listed},
        modules::{self, ModuleFields},
        resolved::Layout,
    },
    names::clean,
};

/// Maximum number of loaders and of classes examined to find the offsets.
const MAX_EXAMINED: usize = 300;
/// Maximum number of bytes of the names of all loaders. Further loaders have no names.
const MAX_NAMES: usize = 64 << 20;
/// Offsets of the names.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// In a ClassLoaderData: offset of the loader's class.
    loader_class: Option<u64>,
    klass_name: u64,
    modules: Option<ModuleFields>,
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
        names.modules = Self::find_modules(reader, layout, classes, listed);
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

    /// Finds the offsets for modules by a class of `java.lang`.
    fn find_modules(
        reader: &mut Reader<'_>,
        layout: &Layout,
        classes: &ClassReader,
        listed: &Listed,
    ) -> Option<ModuleFields> {
        listed.classes.iter().rev().take(MAX_EXAMINED).find_map(|entry| {
            let raw = classes.raw_name(reader, entry.klass).ok()?;
            let is_base = raw.rsplit_once('/').is_some_and(|(package, _)| package == "java/lang");
            is_base
                .then(|| ModuleFields::find(&mut reader.of_modules(), layout, entry.klass))
                .flatten()
        })
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
        let mut free_bytes = MAX_NAMES;
        for some in listed.loaders.chunks(AT_ONCE) {
            reader.pages.prefetch(some.iter().copied());
            if let Some(slot) = self.loader_class {
                reader.prefetch_names(some.iter().copied(), slot + 16);
            }
            for &data in some {
                let mut loader = self.loader(reader, data);
                if !known.contains_key(&loader) {
                    match free_bytes.checked_sub(loader.name_bytes()) {
                        Some(rest) => free_bytes = rest,
                        None => loader = Loader::default(),
                    }
                }
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
        let Some(fields) = self.modules else { return (None, None) };
        let reader = &mut reader.of_modules();
        let Some(module) = fields.of_class(reader, klass) else { return (None, None) };
        (fields.name(reader, module), fields.location(reader, module))
    }
}

impl<'p> Reader<'p> {
    /// Returns the caches for reading modules. Their Symbols are few, so they are read through the cache for classes.
    fn of_modules(&mut self) -> modules::Reader<'_, 'p> {
        modules::Reader { pages: &mut self.pages, symbols: &mut self.symbols }
    }
}

impl Loader {
    /// Returns the length of its names in bytes.
    fn name_bytes(&self) -> usize {
        let names = [&self.class, &self.name, &self.identity];
        names.into_iter().flatten().map(|name| name.len()).sum()
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
