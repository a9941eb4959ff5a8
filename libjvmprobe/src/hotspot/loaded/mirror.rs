//! Origin of a class. The path to it begins at the class's mirror (the `java.lang.Class` object) and leads
//! to the mirror's protection domain, the domain's code source, and the location of the code source.
//!
//! Sources: hotspot/share/oops/{klass,oopHandle}.hpp, classfile/javaClasses.hpp; java.base's
//! java/security/{ProtectionDomain,CodeSource}.java. A field on this path is found by the class of the
//! object that it refers to. This is unambiguous, because no object on the path has two fields of the next
//! object's class. The only String of `CodeSource` is the location.

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

/// Maximum length of a location, in bytes.
const MAX_LOCATION: u16 = 16 << 10;

/// Contents of a class's mirror.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mirror {
    /// The location of its code source, a URL.
    pub(super) source: Option<Arc<str>>,
    /// Whether the class was redefined; `None` if unknown.
    pub(super) is_redefined: Option<bool>,
}

/// Reads mirrors.
#[derive(Debug)]
pub(super) struct Mirrors {
    mirror: u64,
    references: References,
    /// Offset, within a mirror, of the field that counts redefinitions.
    redefined: Option<u64>,
    /// Offset, within a mirror, of the field that refers to the protection domain.
    domain: Option<u64>,
    /// The steps from a mirror to the bytes of the location.
    steps: [Step; 4],
    /// The Klass of mirrors, once a mirror was seen.
    class_of_mirrors: Option<Addr>,
    /// Mirrors of the classes read since the last call of `are_unchanged`.
    seen: Vec<Seen>,
    /// Cached locations by protection domain, since the last call of `are_unchanged`. Many classes
    /// share a domain.
    sources: NumberMap<Addr, Option<Arc<str>>>,
}

/// A mirror that was read.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Address of the handle that refers to the mirror, and address of the mirror itself.
    handle: Addr,
    mirror: Addr,
    /// Offset of its protection domain field, if known, and the address that the field held.
    domain: Option<(usize, Option<Addr>)>,
}

/// A step from an object to one that it refers to.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Name of the referred object's class, as in class files.
    class: &'static str,
    /// Offset of the reference, and the referred object's Klass, once found.
    known: Option<(usize, Addr)>,
}

const STEPS: [&str; 4] =
    ["java/security/ProtectionDomain", "java/security/CodeSource", "java/lang/String", "[B"];

impl Mirrors {
    /// Creates a reader for a JVM.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for ZGC, [`Error::Layout`] naming the missing field.
    pub(super) fn new(memory: &Memory, layout: &Layout) -> Result<Self> {
        let references = References::new(memory, layout)?;
        if references.may_be_stale {
            return Err(Error::Unsupported {
                what: "reading references of ZGC is not supported".into(),
            });
        }
        let variable = |item| layout.try_address(item).and_then(|at| memory.u32(at).ok());
        let redefined = variable(Item::RedefinedCountAt);
        let domain = variable(Item::ProtectionDomainAt).map(u64::from);
        Ok(Self {
            mirror: layout.get(Item::Mirror)?,
            references,
            // The offset must lie within the bytes that are read of a mirror.
            redefined: redefined.map(u64::from).filter(|at| (8..MAX_OBJECT as u64).contains(at)),
            domain: domain.filter(|at| (8..MAX_OBJECT as u64).contains(at)),
            steps: STEPS.map(|class| Step { class, known: None }),
            class_of_mirrors: None,
            seen: Vec::new(),
            sources: NumberMap::default(),
        })
    }

    /// Prefetches the pages that [`Self::read`] needs for these classes, in few requests.
    pub(super) fn prefetch(
        &self,
        pages: &mut Pages<'_>,
        fresh_pages: &mut Pages<'_>,
        klasses: impl Iterator<Item = Addr>,
    ) {
        let handle = |klass| pages.pointer(at(klass, self.mirror).ok()?).ok();
        let handles: Vec<_> = klasses.filter_map(handle).collect();
        fresh_pages.prefetch(handles.iter().copied());
        let mirrors: Vec<_> =
            handles.into_iter().filter_map(|handle| fresh_pages.pointer(handle).ok()).collect();
        let all_of = |object: Addr| [object, Addr(object.0.saturating_add(MAX_OBJECT as u64 - 1))];
        fresh_pages.prefetch(mirrors.iter().copied().flat_map(all_of));
        if let Some(field) = self.domain_field() {
            let domain = |mirror| self.references.reference_at(fresh_pages, mirror, field);
            let domains: Vec<_> = mirrors.into_iter().filter_map(domain).collect();
            fresh_pages.prefetch(domains.into_iter().flat_map(all_of));
        }
    }

    /// Reads a class's mirror; `None` if it is inconsistent. The result is valid only if a later call of
    /// [`Self::are_unchanged`] returns true, because `fresh_pages` may hold pages that were read for an
    /// earlier class, and the collector may have moved objects since.
    pub(super) fn read(
        &mut self,
        pages: &mut Pages<'_>,
        fresh_pages: &mut Pages<'_>,
        klass: Addr,
    ) -> Option<Mirror> {
        // An OopHandle: the address of a reference that is never compressed.
        let handle = pages.pointer(at(klass, self.mirror).ok()?).ok()?;
        let mut find = |fresh_pages: &mut Pages<'_>| {
            let address = fresh_pages.pointer(handle).ok()?;
            let mirror = self.mirror_at(fresh_pages, address).ok()?;
            // A mirror belongs to this class if it refers to the class (`java_lang_Class::_klass_offset`).
            mirror.has(klass).then_some((address, mirror))
        };
        let found = find(fresh_pages).or_else(|| {
            // The collector may have moved the mirror since the pages were read.
            fresh_pages.clear();
            find(fresh_pages)
        });
        let (address, mirror) = found?;
        let is_redefined = self.redefined.and_then(|field| {
            let count = mirror.field::<4>(field as usize)?;
            Some(u32::from_ne_bytes(count) != 0)
        });
        let source = self.source(fresh_pages, &mirror);
        let domain =
            self.domain_field().map(|field| (field, self.references.reference(&mirror, field)));
        self.seen.push(Seen { handle, mirror: address, domain });
        Some(Mirror { source, is_redefined })
    }

    fn source(&mut self, fresh_pages: &mut Pages<'_>, mirror: &Object) -> Option<Arc<str>> {
        // Most classes have no protection domain, and so no location. For these, no search is needed.
        if let Some(field) = self.domain {
            self.references.reference(mirror, field as usize)?;
        }
        let domain = self.domain_field().and_then(|field| self.references.reference(mirror, field));
        if let Some(source) = domain.and_then(|domain| self.sources.get(&domain)) {
            return source.clone();
        }
        let (address, domain) = self.follow(fresh_pages, mirror, 0)?;
        let source = self.source_of(fresh_pages, &domain);
        self.sources.insert(address, source.clone());
        source
    }

    /// Returns the offset, within a mirror, of the field that refers to the protection domain; `None` until
    /// the offset is known.
    fn domain_field(&self) -> Option<usize> {
        let [Step { known, .. }, ..] = self.steps;
        known.map(|(field, _)| field).or(self.domain.map(|field| field as usize))
    }

    /// Whether all mirrors and protection domains that were read since the last call are still at their
    /// addresses, with the same locations. The collector may have moved other objects to these addresses.
    /// Clears the record of what was read.
    pub(super) fn are_unchanged(&mut self, fresh_pages: &mut Pages<'_>) -> bool {
        let [Step { known, .. }, ..] = self.steps;
        let (seen, sources) = (std::mem::take(&mut self.seen), std::mem::take(&mut self.sources));
        let mirrors = seen.iter().flat_map(|seen| {
            let field = seen.domain.map_or(0, |(field, _)| field as u64);
            [seen.handle, Addr(seen.mirror.0.saturating_add(field))]
        });
        fresh_pages.prefetch(mirrors.chain(sources.keys().copied()));
        let is_unchanged = |seen: Seen| {
            fresh_pages.pointer(seen.handle).is_ok_and(|mirror| mirror == seen.mirror)
                && seen.domain.is_none_or(|(field, domain)| {
                    self.references.reference_at(fresh_pages, seen.mirror, field) == domain
                })
        };
        seen.into_iter().all(is_unchanged)
            && sources.into_iter().all(|(address, source)| {
                let object = self.references.object(fresh_pages, address).ok();
                let domain =
                    object.filter(|domain| known.is_some_and(|(_, klass)| klass == domain.klass));
                domain.is_some_and(|domain| self.source_of(fresh_pages, &domain) == source)
            })
    }

    /// Returns the location of a protection domain.
    fn source_of(&mut self, fresh_pages: &mut Pages<'_>, domain: &Object) -> Option<Arc<str>> {
        let (_, source) = self.follow(fresh_pages, domain, 1)?;
        let (_, location) = self.follow(fresh_pages, &source, 2)?;
        let (at, array) = self.follow(fresh_pages, &location, 3)?;
        let text = references::text(fresh_pages, at, &array, MAX_LOCATION)?;
        (!text.is_empty()).then(|| clean::name(&text).into())
    }

    /// Reads the mirror at an address.
    fn mirror_at(&mut self, fresh_pages: &mut Pages<'_>, mirror: Addr) -> Result<Object> {
        let object = self.references.object(fresh_pages, mirror)?;
        let is_mirror = match self.class_of_mirrors {
            Some(class) => object.klass == class,
            None => self.references.is_of(fresh_pages, &object, "java/lang/Class"),
        };
        if !is_mirror {
            return Err(Error::layout("the mirror of a class is not a java.lang.Class object"));
        }
        self.class_of_mirrors = Some(object.klass);
        Ok(object)
    }

    /// Follows a step from an object: through its first field that refers to an object of the wanted
    /// class, and in later calls through the same field.
    fn follow(
        &mut self,
        fresh_pages: &mut Pages<'_>,
        object: &Object,
        step: usize,
    ) -> Option<(Addr, Object)> {
        let Step { class, known } = *self.steps.get(step)?;
        if let Some((field, klass)) = known {
            let address = self.references.reference(object, field)?;
            let found = self.references.object(fresh_pages, address).ok()?;
            return (found.klass == klass).then_some((address, found));
        }
        for field in self.references.fields(object) {
            let Some(address) = self.references.reference(object, field) else { continue };
            let Ok(found) = self.references.object(fresh_pages, address) else { continue };
            if self.references.is_of(fresh_pages, &found, class) {
                if let Some(step) = self.steps.get_mut(step) {
                    step.known = Some((field, found.klass));
                }
                return Some((address, found));
            }
        }
        None
    }
}
