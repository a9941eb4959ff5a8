//! Origins of methods: whether a method is native, and its module.
//!
//! Sources: hotspot/share/oops/{method,klass}.hpp; `JVM_ACC_NATIVE` in java.base's classfile_constants.h.

use std::{collections::HashMap, sync::Arc};

use crate::{
    Addr, Error, Result,
    hotspot::{
        layout::Item,
        loaded::at,
        modules::{ModuleFields, Reader},
        pages::Pages,
        resolved::Layout,
        symbols::Symbols,
    },
    names::{
        clean,
        code::{JavaModule, MethodOrigin},
    },
};

/// `JVM_ACC_NATIVE`.
const NATIVE: u16 = 0x100;
/// Maximum number of superclasses of a class. It ends the walk of a cyclic list.
const MAX_SUPERS: usize = 64;

/// Reads the origins of methods.
#[derive(Debug)]
pub(super) struct Origins {
    layout: Layout,
    access: u64,
    /// Offsets for modules, and the version of java.base. `None` until the first class is read.
    modules: Option<Option<(ModuleFields, Option<Arc<str>>)>>,
    /// Cached modules by their entries; `None` for unnamed ones.
    cached: HashMap<Addr, Option<Arc<JavaModule>>>,
}

impl Origins {
    /// Creates a reader for a JVM.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field.
    pub(super) fn new(layout: &Layout) -> Result<Self> {
        let access = layout.get(Item::MethodAccess)?;
        // JDK 8 has no modules.
        let modules = layout.is_jdk_8().then_some(None);
        Ok(Self { layout: layout.clone(), access, modules, cached: HashMap::new() })
    }

    /// Clears the cache, because modules may have been unloaded.
    pub(super) fn clear(&mut self) {
        self.cached.clear();
    }

    /// Reads the origin of a method of a class; `None` if it is not native and its module is unnamed. A module that
    /// cannot be read counts as unnamed.
    ///
    /// # Errors
    /// [`Error::Memory`] if the method cannot be read, or if a page that the module needs is yet to be read by
    /// [`Pages::read_batched`].
    pub(super) fn read(
        &mut self,
        pages: &mut Pages<'_>,
        symbols: &mut Symbols,
        method: Addr,
        class: Addr,
    ) -> Result<Option<MethodOrigin>> {
        // The flags have 16 or 32 bits, of which these 16 are the lower ones.
        let access = pages.u16(at(method, self.access)?)?;
        let module = self.module(&mut Reader { pages, symbols }, class);
        if pages.awaits_pages() {
            return Err(Error::not_mapped(class, size_of::<u64>()));
        }
        let module = module.and_then(|(entry, module)| {
            self.cached.entry(entry).or_insert(module.map(Arc::new)).clone()
        });
        let is_native = access & NATIVE != 0;
        Ok((is_native || module.is_some()).then_some(MethodOrigin { is_native, module }))
    }

    /// Returns the entry of a class's module, and the module unless it is unnamed or cached.
    fn module(
        &mut self,
        reader: &mut Reader<'_, '_>,
        class: Addr,
    ) -> Option<(Addr, Option<JavaModule>)> {
        let modules = match &self.modules {
            Some(modules) => modules.as_ref(),
            None => {
                let base = reader.root_class(&self.layout, class)?;
                let fields = ModuleFields::find(reader, &self.layout, base);
                let found = fields.map(|fields| {
                    let module = fields.of_class(reader, base);
                    (fields, module.and_then(|module| fields.version(reader, module)))
                });
                if reader.pages.awaits_pages() {
                    return None;
                }
                self.modules.insert(found).as_ref()
            }
        };
        let (fields, jdk) = modules?;
        let entry = fields.of_class(reader, class)?;
        if self.cached.contains_key(&entry) {
            return Some((entry, None));
        }
        let name = fields.name(reader, entry);
        let version = fields.version(reader, entry);
        let module = name.map(|name| JavaModule {
            is_of_jdk: version == *jdk,
            name: clean::name(&name).into(),
            version: version.map(|version| clean::name(&version).into()),
        });
        Some((entry, module))
    }
}

impl Reader<'_, '_> {
    /// Returns the class `java.lang.Object`, which is the last superclass of each class and interface.
    fn root_class(&mut self, layout: &Layout, class: Addr) -> Option<Addr> {
        let super_class = layout.get(Item::SuperClass).ok()?;
        let mut class = class;
        for _ in 0..MAX_SUPERS {
            match self.pages.pointer(class.checked_add(super_class)?).ok()? {
                Addr(0) => return Some(class),
                next => class = next,
            }
        }
        None
    }
}
