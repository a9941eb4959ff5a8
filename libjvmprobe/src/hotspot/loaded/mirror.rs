//! Where a class comes from: by its mirror, the `java.lang.Class` object, which has a protection
//! domain, which has a code source, which has a location.
//!
//! Sources: hotspot/share/oops/{klass,oopHandle}.hpp, classfile/javaClasses.hpp; java.base's
//! java/security/{ProtectionDomain,CodeSource}.java. Of the classes in question no object has two
//! fields of the next one's class, but for a string: of `CodeSource` it is the location.

use std::sync::Arc;

use crate::{
    Addr, Error, Result,
    hotspot::{
        hashing::NumberMap,
        layout::Item,
        loaded::at,
        pages::Pages,
        references::{self, MAX_OBJECT, Object, References},
        resolved::Layout,
    },
    names::clean,
    process::memory::Memory,
};

/// A path is not longer.
const MAX_LOCATION: u32 = 16 << 10;

/// What a class's mirror says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mirror {
    /// The location of its code source, a URL.
    pub(super) source: Option<Arc<str>>,
    /// Whether the class was redefined; `None` where that is unknown.
    pub(super) is_redefined: Option<bool>,
}

/// Reads mirrors.
#[derive(Debug)]
pub(super) struct Mirrors {
    mirror: u64,
    references: References,
    /// Where mirrors count how often their class was redefined.
    redefined: Option<u64>,
    /// Where mirrors have their protection domain.
    domain: Option<u64>,
    /// The ways from an object to the next.
    hops: [Hop; 4],
    /// The class of mirrors, once one was seen.
    class_of_mirrors: Option<Addr>,
    /// Mirrors of the classes that were read since the last check of whether all is as it was, and the
    /// locations by protection domain. Most have the same.
    seen: Vec<Seen>,
    sources: NumberMap<Addr, Option<Arc<str>>>,
}

/// A mirror that was read.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Where its address was, and its address.
    handle: Addr,
    mirror: Addr,
    /// Its field for the protection domain, if that was known, and what it referred to.
    domain: Option<(usize, Option<Addr>)>,
}

/// From an object to one that it refers to.
#[derive(Clone, Copy, Debug)]
struct Hop {
    /// The class of that one, as class files name it.
    class: &'static str,
    /// Where the reference is, once one was found, and the class's Klass.
    known: Option<(usize, Addr)>,
}

const HOPS: [&str; 4] =
    ["java/security/ProtectionDomain", "java/security/CodeSource", "java/lang/String", "[B"];

impl Mirrors {
    /// A reader for a JVM.
    ///
    /// # Errors
    /// [`Error::Unsupported`] of ZGC, [`Error::Layout`] naming what is missing.
    pub(super) fn new(memory: &Memory, layout: &Layout) -> Result<Self> {
        let references = References::new(memory, layout)?;
        if references.may_be_stale {
            return Err(Error::Unsupported { what: "ZGC's references are not read".into() });
        }
        let variable = |item| layout.try_address(item).and_then(|at| memory.u32(at).ok());
        let redefined = variable(Item::RedefinedCountAt);
        let domain = variable(Item::ProtectionDomainAt).map(u64::from);
        Ok(Self {
            mirror: layout.get(Item::Mirror)?,
            references,
            // Within the fields of all mirrors, as any other.
            redefined: redefined.map(u64::from).filter(|at| (8..MAX_OBJECT as u64).contains(at)),
            domain: domain.filter(|at| (8..MAX_OBJECT as u64).contains(at)),
            hops: HOPS.map(|class| Hop { class, known: None }),
            class_of_mirrors: None,
            seen: Vec::new(),
            sources: NumberMap::default(),
        })
    }

    /// Reads what [`Self::read`] will look at, of many classes in a few requests.
    pub(super) fn prefetch(
        &self,
        pages: &mut Pages<'_>,
        now: &mut Pages<'_>,
        klasses: impl Iterator<Item = Addr>,
    ) {
        let handle = |klass| pages.pointer(at(klass, self.mirror).ok()?).ok();
        let handles: Vec<_> = klasses.filter_map(handle).collect();
        now.prefetch(handles.iter().copied());
        let mirrors: Vec<_> =
            handles.into_iter().filter_map(|handle| now.pointer(handle).ok()).collect();
        let all_of = |object: Addr| [object, Addr(object.0.saturating_add(MAX_OBJECT as u64 - 1))];
        now.prefetch(mirrors.iter().copied().flat_map(all_of));
        if let Some(field) = self.domain_field() {
            let domain = |mirror| self.references.reference_at(now, mirror, field);
            let domains: Vec<_> = mirrors.into_iter().filter_map(domain).collect();
            now.prefetch(domains.into_iter().flat_map(all_of));
        }
    }

    /// What a class's mirror says; `None` where it makes no sense. It counts if all is still as it
    /// was ([`Self::are_still`]): what is in `now` may have been read some classes before.
    pub(super) fn read(
        &mut self,
        pages: &mut Pages<'_>,
        now: &mut Pages<'_>,
        klass: Addr,
    ) -> Option<Mirror> {
        // A handle: the address of a reference that is never compressed.
        let handle = pages.pointer(at(klass, self.mirror).ok()?).ok()?;
        let mut find = |now: &mut Pages<'_>| {
            let address = now.pointer(handle).ok()?;
            let mirror = self.mirror_at(now, address).ok()?;
            // It is that of this class if it says so itself (`java_lang_Class::_klass_offset`).
            mirror.has(klass).then_some((address, mirror))
        };
        let found = find(now).or_else(|| {
            // A collector may have moved it since.
            now.forget();
            find(now)
        });
        let (address, mirror) = found?;
        let is_redefined = self.redefined.and_then(|field| {
            let count = mirror.field::<4>(field as usize)?;
            Some(u32::from_ne_bytes(count) != 0)
        });
        let source = self.source(now, &mirror);
        let domain =
            self.domain_field().map(|field| (field, self.references.reference(&mirror, field)));
        self.seen.push(Seen { handle, mirror: address, domain });
        Some(Mirror { source, is_redefined })
    }

    fn source(&mut self, now: &mut Pages<'_>, mirror: &Object) -> Option<Arc<str>> {
        // Most classes have none: nothing has to be looked for then.
        if let Some(field) = self.domain {
            self.references.reference(mirror, field as usize)?;
        }
        let domain = self.domain_field().and_then(|field| self.references.reference(mirror, field));
        if let Some(source) = domain.and_then(|domain| self.sources.get(&domain)) {
            return source.clone();
        }
        let (address, domain) = self.follow(now, mirror, 0)?;
        let source = self.source_of(now, &domain);
        self.sources.insert(address, source.clone());
        source
    }

    /// The field of mirrors for their protection domain, once it is known.
    fn domain_field(&self) -> Option<usize> {
        let [Hop { known, .. }, ..] = self.hops;
        known.map(|(field, _)| field).or(self.domain.map(|field| field as usize))
    }

    /// Whether all mirrors and domains are still where they were, with the same locations: a
    /// collector may have moved others to the same places meanwhile. Begins anew then.
    pub(super) fn are_still(&mut self, now: &mut Pages<'_>) -> bool {
        let [Hop { known, .. }, ..] = self.hops;
        let (seen, sources) = (std::mem::take(&mut self.seen), std::mem::take(&mut self.sources));
        let mirrors = seen.iter().flat_map(|seen| {
            let field = seen.domain.map_or(0, |(field, _)| field as u64);
            [seen.handle, Addr(seen.mirror.0.saturating_add(field))]
        });
        now.prefetch(mirrors.chain(sources.keys().copied()));
        let is_still = |seen: Seen| {
            now.pointer(seen.handle).is_ok_and(|mirror| mirror == seen.mirror)
                && seen.domain.is_none_or(|(field, domain)| {
                    self.references.reference_at(now, seen.mirror, field) == domain
                })
        };
        seen.into_iter().all(is_still)
            && sources.into_iter().all(|(address, source)| {
                let object = self.references.object(now, address).ok();
                let domain =
                    object.filter(|domain| known.is_some_and(|(_, klass)| klass == domain.klass));
                domain.is_some_and(|domain| self.source_of(now, &domain) == source)
            })
    }

    /// The location of a protection domain.
    fn source_of(&mut self, now: &mut Pages<'_>, domain: &Object) -> Option<Arc<str>> {
        let (_, source) = self.follow(now, domain, 1)?;
        let (_, location) = self.follow(now, &source, 2)?;
        let (at, array) = self.follow(now, &location, 3)?;
        let text = references::text(now, at, &array, MAX_LOCATION)?;
        (!text.is_empty()).then(|| clean::name(&text).into())
    }

    /// The mirror at an address.
    fn mirror_at(&mut self, now: &mut Pages<'_>, mirror: Addr) -> Result<Object> {
        let object = self.references.object(now, mirror)?;
        let is_mirror = match self.class_of_mirrors {
            Some(class) => object.klass == class,
            None => self.references.is_of(now, &object, "java/lang/Class"),
        };
        if !is_mirror {
            return Err(Error::layout("a class's mirror is none"));
        }
        self.class_of_mirrors = Some(object.klass);
        Ok(object)
    }

    /// Goes from an object to the next one: by the first of its fields that refers to an object
    /// of the class in question, and by the same field ever after.
    fn follow(
        &mut self,
        now: &mut Pages<'_>,
        object: &Object,
        hop: usize,
    ) -> Option<(Addr, Object)> {
        let Hop { class, known } = *self.hops.get(hop)?;
        if let Some((field, klass)) = known {
            let address = self.references.reference(object, field)?;
            let found = self.references.object(now, address).ok()?;
            return (found.klass == klass).then_some((address, found));
        }
        for field in self.references.fields(object) {
            let Some(address) = self.references.reference(object, field) else { continue };
            let Ok(found) = self.references.object(now, address) else { continue };
            if self.references.is_of(now, &found, class) {
                if let Some(hop) = self.hops.get_mut(hop) {
                    hop.known = Some((field, found.klass));
                }
                return Some((address, found));
            }
        }
        None
    }
}
