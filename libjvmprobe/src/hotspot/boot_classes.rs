//! Classes of java.base by name. Only the boot loader loads them, so only its classes are searched.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use crate::{
    Addr, Error, Result,
    hotspot::{buffers, layout::Item, loaded::at, pages::Pages, resolved::Layout, virtual_threads},
};

/// Maximum number of class loaders that are visited. The boot loader is the last one of the list.
const MAX_LOADERS: usize = 1 << 20;
/// Maximum number of classes of the boot loader that are visited.
const MAX_CLASSES: usize = 1 << 17;
/// Number of class names that are read together.
const AT_ONCE: usize = 256;

/// The classes that are searched for, by their users.
const WANTED: [&[&str]; 2] = [virtual_threads::WANTED, buffers::WANTED];

/// The classes of [`WANTED`] that earlier searches have found in the boot loader's list. The loader adds new classes at
/// the beginning of its list and never unloads them, so each search reads only the classes that are new.
#[derive(Debug, Default)]
pub(in crate::hotspot) struct BootClasses(Mutex<Cached>);

#[derive(Debug, Default)]
struct Cached {
    /// The boot loader, which is never freed, once it was found.
    loader: Option<Addr>,
    /// The newest class of the last search.
    newest: Addr,
    found: HashMap<&'static str, Addr>,
}

impl BootClasses {
    /// Returns the loaded classes of [`WANTED`] by name, and whether all classes were searched.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field, or if the list of loaders could not be read in time;
    /// [`Error::Memory`] if the JVM has exited.
    pub(in crate::hotspot) fn find(
        &self,
        pages: &mut Pages<'_>,
        layout: &Layout,
        until: Instant,
    ) -> Result<(HashMap<&'static str, Addr>, bool)> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_complete = cached.update(pages, layout, until)?;
        Ok((cached.found.clone(), is_complete))
    }
}

impl Cached {
    /// Reads the classes that were loaded since the last complete update. Returns whether it is complete.
    fn update(&mut self, pages: &mut Pages<'_>, layout: &Layout, until: Instant) -> Result<bool> {
        let loader = match self.loader {
            Some(loader) => loader,
            None => *self.loader.insert(boot_loader(pages, layout, until)?),
        };
        let next_class = layout.get(Item::NextClass)?;
        let mut classes = Vec::new();
        let mut klass = pages.pointer(at(loader, layout.get(Item::FirstClass)?)?)?;
        let is_end = |klass: Addr| klass == Addr(0) || klass == self.newest;
        while !is_end(klass) && classes.len() < MAX_CLASSES && Instant::now() < until {
            classes.push(klass);
            klass = pages.pointer(at(klass, next_class)?)?;
        }
        let mut is_complete = is_end(klass);
        for some in classes.chunks(AT_ONCE) {
            let names = pages.read_batched(some, |pages, &klass| wanted(pages, layout, klass));
            for (&klass, name) in some.iter().zip(names) {
                match name {
                    Ok(name) => self.found.extend(name.map(|name| (name, klass))),
                    Err(_) => is_complete = false,
                }
            }
        }
        if let Some(&newest) = classes.first().filter(|_| is_complete) {
            self.newest = newest;
        }
        Ok(is_complete)
    }
}

/// Finds the boot loader, which is the last one in the list of loaders.
fn boot_loader(pages: &mut Pages<'_>, layout: &Layout, until: Instant) -> Result<Addr> {
    let next_loader = layout.get(Item::NextLoader)?;
    let mut loader = pages.pointer(layout.address(Item::Loaders)?)?;
    for _ in 0..MAX_LOADERS {
        match pages.pointer(at(loader, next_loader)?)? {
            Addr(0) => return Ok(loader),
            next => loader = next,
        }
        if Instant::now() >= until {
            break;
        }
    }
    Err(Error::layout("the list of class loaders could not be read in time"))
}

/// Returns the name of a class if it is one of [`WANTED`].
fn wanted(pages: &mut Pages<'_>, layout: &Layout, klass: Addr) -> Result<Option<&'static str>> {
    let symbol = pages.pointer(at(klass, layout.get(Item::KlassName)?)?)?;
    let length = usize::from(pages.u16(at(symbol, layout.get(Item::SymbolLength)?)?)?);
    let all = || WANTED.into_iter().flatten().copied();
    if !all().any(|wanted| wanted.len() == length) {
        return Ok(None);
    }
    let text = pages.bytes(at(symbol, layout.get(Item::SymbolBody)?)?, length)?;
    Ok(all().find(|wanted| wanted.as_bytes() == text))
}
