//! Thread containers, and the threads in them.
//!
//! A container without an owner is registered in `ThreadContainers`. A container with an owner is in its
//! owner's list of scopes (`Thread.headStackableScopes`), which begins with the innermost scope. The parent
//! of such a container is the next container in the list. The parent of the last container in the list is the
//! container to which the owner belongs.

use std::{collections::HashMap, sync::Arc, time::Instant};

use super::{Container, classes::Map, reader::Reader, sets};
use crate::{Addr, Result, hotspot::pages::Pages, names::clean};

/// Maximum number of containers.
const MAX_CONTAINERS: usize = 1 << 17;
/// Maximum number of scopes of a thread.
const MAX_SCOPES: usize = 256;

/// A thread that owns containers: its number, and the container to which the thread itself belongs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owned {
    pub(super) number: u64,
    pub(super) container: Option<Addr>,
}

/// Containers and threads that were found.
#[derive(Debug)]
pub(super) struct Found {
    /// Containers with their parents. The first one is the root.
    pub(super) containers: Vec<(Container, Option<Addr>)>,
    /// Index of each container by its address.
    pub(super) indexes: HashMap<Addr, usize>,
    /// Threads that are not read yet.
    pub(super) threads: Vec<Addr>,
    /// Whether some containers or threads may be missing.
    pub(super) is_incomplete: bool,
}

impl Default for Found {
    fn default() -> Self {
        let root = Container { name: "<root>".into(), parent: None, owner: None };
        Self {
            containers: vec![(root, None)],
            indexes: HashMap::new(),
            threads: Vec::new(),
            is_incomplete: false,
        }
    }
}

impl Reader {
    /// Finds the threads without a container, and the registered containers with their threads.
    pub(super) fn registered(&mut self, pages: &mut Pages<'_>, until: Instant) {
        if let Some(set) = self.classes.roots {
            self.add_threads(pages, set, until);
        }
        let Some((registry, map)) = self.classes.registry.zip(self.classes.map) else { return };
        let keys =
            sets::keys(pages, &mut self.threads.references, &map, registry, (self.max, until));
        let (keys, is_complete) = keys.unwrap_or_default();
        self.found.is_incomplete |= !is_complete;
        pages.clear();
        for reference in keys {
            let container = self.reference(pages, reference, self.classes.referent);
            if let Ok(Some(container)) = container {
                self.add_container(pages, container, (None, None), until);
            }
        }
    }

    /// Adds the containers that a thread owns, with their threads.
    pub(super) fn owned(
        &mut self,
        pages: &mut Pages<'_>,
        scopes: Option<Addr>,
        owner: Owned,
        until: Instant,
    ) {
        let Some((_, previous)) = self.classes.scope else { return };
        let mut containers = Vec::new();
        let mut scope = scopes;
        for _ in 0..MAX_SCOPES {
            let Some(address) = scope else { break };
            // Some scopes are no containers.
            match self.is_container(pages, address) {
                Ok(true) => containers.push(address),
                Ok(false) => {}
                Err(_) => break,
            }
            scope = self.reference(pages, address, Some(previous)).ok().flatten();
        }
        let parents =
            containers.iter().skip(1).map(|&parent| Some(parent)).chain([owner.container]);
        let pairs: Vec<_> = containers.iter().copied().zip(parents).collect();
        for (container, parent) in pairs {
            self.add_container(pages, container, (Some(owner.number), parent), until);
        }
    }

    fn is_container(&mut self, pages: &mut Pages<'_>, object: Addr) -> Result<bool> {
        let klass = self.threads.references.class_of(pages, object)?;
        let lineage = self.threads.fields.lineage(pages, klass)?;
        Ok(self.classes.container_class.is_some_and(|container| lineage.contains(&container)))
    }

    /// Adds a container with its owner and its parent.
    fn add_container(
        &mut self,
        pages: &mut Pages<'_>,
        container: Addr,
        (owner, parent): (Option<u64>, Option<Addr>),
        until: Instant,
    ) {
        if self.found.indexes.contains_key(&container) {
            return;
        }
        if self.found.containers.len() >= MAX_CONTAINERS || Instant::now() >= until {
            self.found.is_incomplete = true;
            return;
        }
        match self.contents(pages, container) {
            Ok((name, set)) => {
                self.found.indexes.insert(container, self.found.containers.len());
                let found = Container { name, parent: None, owner };
                self.found.containers.push((found, parent));
                if let Some(set) = set {
                    self.add_threads(pages, set, until);
                }
            }
            Err(_) => self.found.is_incomplete = true,
        }
    }

    /// Returns the name of a container and its set of threads.
    fn contents(
        &mut self,
        pages: &mut Pages<'_>,
        container: Addr,
    ) -> Result<(Arc<str>, Option<Addr>)> {
        let klass = self.threads.references.class_of(pages, container)?;
        let class = self.threads.class(pages, klass)?;
        let is_of = |class: Addr| class == klass;
        let (set, name) = if let Some(((_, set), name)) =
            self.classes.shared.filter(|((class, _), _)| is_of(*class))
        {
            let set = self.reference(pages, container, Some(set))?;
            (set, self.reference(pages, container, name)?)
        } else if let Some((_, set)) = self.classes.per_task.filter(|(class, _)| is_of(*class)) {
            (self.reference(pages, container, Some(set))?, None)
        } else if let Some(((_, flock), (_, set), name)) =
            self.classes.flock.filter(|((class, _), ..)| is_of(*class))
        {
            match self.reference(pages, container, Some(flock))? {
                Some(flock) => {
                    (self.reference(pages, flock, Some(set))?, self.reference(pages, flock, name)?)
                }
                None => (None, None),
            }
        } else {
            (None, None)
        };
        let name = match name {
            Some(name) => Some(self.threads.text(pages, name)?),
            None => None,
        };
        // In the JDK's own thread dumps, the name ends with the identity hash of the container. Most
        // containers have no identity hash yet, so the address replaces it here.
        let identity = format!("{}@{:x}", class.name, container.0);
        let name = match name {
            Some(name) if name.contains('@') => name,
            Some(name) => format!("{name}/{identity}"),
            None => identity,
        };
        Ok((clean::name(&name).into(), set))
    }

    fn add_threads(&mut self, pages: &mut Pages<'_>, set: Addr, until: Instant) {
        let Some(map) = self.classes.map else { return };
        let (references, limits) = (&mut self.threads.references, (self.max, until));
        let read = |pages: &mut Pages<'_>, references: &mut _, map: &Map| {
            sets::keys(pages, references, map, set, limits)
        };
        // The first attempt may fail because the collector has moved the table.
        let found = read(pages, references, &map).or_else(|_| {
            pages.clear();
            read(pages, references, &map)
        });
        match found {
            Ok((keys, is_complete)) => {
                self.found.threads.extend(keys);
                self.found.is_incomplete |= !is_complete;
            }
            Err(_) => self.found.is_incomplete = true,
        }
    }
}
