//! Walks the lists of class loaders and of their classes.
//!
//! Sources: hotspot/share/classfile/{classLoaderData,classLoaderDataGraph}.hpp,
//! oops/klass.hpp. New loaders, and new classes of a loader, are inserted at the head of their list.
//! Unloaded loaders and classes are removed from their lists at a safepoint and freed later.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use crate::{
    Addr, Result,
    hotspot::{layout::Item, loaded::at, pages::Pages, resolved::Layout},
    process::memory::Memory,
};

/// Maximum number of classes listed, slightly more than fit into 16 GiB of metaspace. Also the maximum number
/// of loaders, because each hidden class may have its own ClassLoaderData.
const MAX_CLASSES: usize = 1 << 22;
/// Minimum number of attempts to read lists that break because classes are unloaded meanwhile.
const MIN_TRIES: usize = 5;
/// Maximum number of attempts.
const MAX_TRIES: usize = 50;
/// Time after which no new attempt begins, once [`MIN_TRIES`] attempts were made. On a busy machine, each
/// attempt may be interrupted for so long that the JVM unloads a further class meanwhile.
const MAX_TIME: Duration = Duration::from_secs(2);

/// A class in its loader's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its Klass.
    pub(super) klass: Addr,
    /// Index of its loader in [`Listed::loaders`].
    pub(super) loader: usize,
    /// Whether the ClassLoaderData belongs to this class alone: the class is hidden, or was defined by
    /// `Unsafe.defineAnonymousClass`.
    pub(super) is_alone: bool,
}

/// Result of a walk.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// Addresses of the ClassLoaderData.
    pub(super) loaders: Vec<Addr>,
    /// Their classes, without array classes.
    pub(super) classes: Vec<Entry>,
    /// Whether all lists were read to their ends.
    pub(super) is_complete: bool,
}

/// Addresses and offsets of the fields.
struct Fields {
    head: Addr,
    next_loader: u64,
    first_class: u64,
    next_class: u64,
    loader_of: u64,
    layout_helper: u64,
    is_alone: u64,
}

/// Reads the lists.
///
/// # Errors
/// [`crate::Error::Layout`] naming the missing field, [`crate::Error::Memory`] if not even the
/// first loader can be read.
pub(super) fn read(memory: &Memory, layout: &Layout) -> Result<Listed> {
    let fields = Fields::read(layout)?;
    let until = Instant::now() + MAX_TIME;
    let mut best = Listed::default();
    for number in 0..MAX_TRIES {
        if number >= MIN_TRIES && is_over(Some(until)) {
            break;
        }
        let listed = walk_once(memory, &fields, MAX_CLASSES, None)?;
        if listed.is_complete {
            return Ok(listed);
        }
        // A class that is unloaded during the walk breaks a list. Of incomplete results, the longest is used.
        if listed.classes.len() >= best.classes.len() {
            best = listed;
        }
    }
    Ok(best)
}

/// Returns the number of classes, not counting array classes; `None` if a list broke, if time ran out (`until`), or
/// if there are more than a quarter of a million classes. This maximum exists because callers poll the count,
/// and a longer walk would cost too much.
///
/// # Errors
/// The errors of [`read`].
pub(super) fn count(
    memory: &Memory,
    layout: &Layout,
    until: Option<Instant>,
) -> Result<Option<u64>> {
    const MAX_POLLED_CLASSES: usize = 1 << 18;
    let listed = walk_once(memory, &Fields::read(layout)?, MAX_POLLED_CLASSES, until)?;
    Ok(listed.is_complete.then_some(listed.classes.len() as u64))
}

impl Fields {
    fn read(layout: &Layout) -> Result<Self> {
        Ok(Self {
            head: layout.address(Item::Loaders)?,
            next_loader: layout.get(Item::NextLoader)?,
            first_class: layout.get(Item::FirstClass)?,
            next_class: layout.get(Item::NextClass)?,
            loader_of: layout.get(Item::ClassLoaderOf)?,
            layout_helper: layout.get(Item::LayoutHelper)?,
            is_alone: layout.get(Item::HasOwnLoaderData)?,
        })
    }
}

/// Walks all lists once. `max` limits both the number of loaders and the number of classes.
fn walk_once(
    memory: &Memory,
    fields: &Fields,
    max: usize,
    until: Option<Instant>,
) -> Result<Listed> {
    let mut pages = Pages::sequential(memory);
    let mut listed = Listed { is_complete: true, ..Listed::default() };
    let mut loader = memory.pointer(fields.head)?;
    let mut steps = max;
    let mut detector = CycleDetector::default();
    while loader != Addr(0) {
        if listed.loaders.len() >= max || detector.closes(loader) || is_over(until) {
            listed.is_complete = false;
            break;
        }
        let number = listed.loaders.len();
        listed.loaders.push(loader);
        let found = (&mut listed.classes, &mut steps);
        let is_complete = classes(&mut pages, fields, (loader, number), found, until);
        let next = at(loader, fields.next_loader).and_then(|at| pages.pointer(at));
        listed.is_complete &= is_complete.is_ok_and(|complete| complete);
        match next {
            Ok(next) => loader = next,
            Err(_) => {
                listed.is_complete = false;
                break;
            }
        }
    }
    if !listed.is_complete {
        // A cyclic list yields classes more than once.
        let mut known = HashSet::new();
        listed.classes.retain(|entry| known.insert(entry.klass));
    }
    Ok(listed)
}

/// Detects a cyclic list with Brent's algorithm: it remembers one element, and replaces it by the current one
/// after 1 step, then after 2 further steps, then after 4, and so on.
#[derive(Debug, Default)]
struct CycleDetector {
    seen: Addr,
    steps: u64,
    until: u64,
}

impl CycleDetector {
    /// Advances to an element; returns whether it is the remembered one.
    fn closes(&mut self, element: Addr) -> bool {
        if element == self.seen {
            return true;
        }
        if self.steps >= self.until {
            (self.seen, self.steps) = (element, 0);
            self.until = (self.until * 2).max(1);
        }
        self.steps += 1;
        false
    }
}

/// Whether the deadline has passed.
fn is_over(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() >= until)
}

/// Adds the classes of a loader; returns whether the list was read to its end.
fn classes(
    pages: &mut Pages<'_>,
    fields: &Fields,
    (loader, number): (Addr, usize),
    (found, steps): (&mut Vec<Entry>, &mut usize),
    until: Option<Instant>,
) -> Result<bool> {
    let mut klass = pages.pointer(at(loader, fields.first_class)?)?;
    let is_alone = pages.array::<1>(at(loader, fields.is_alone)?)? != [0];
    let mut detector = CycleDetector::default();
    while klass != Addr(0) {
        let Some(left) = steps.checked_sub(1).filter(|_| !detector.closes(klass)) else {
            return Ok(false);
        };
        *steps = left;
        if is_over(until) {
            return Ok(false);
        }
        // A class in this list refers to this loader. If it does not, either it was unloaded, or its page was
        // cached before the class was created. In the second case, re-reading the page helps.
        let loader_of = at(klass, fields.loader_of)?;
        if pages.pointer(loader_of)? != loader {
            pages.clear();
            if pages.pointer(loader_of)? != loader {
                return Ok(false);
            }
        }
        // The layout helper is negative for an array, and zero for a Klass that HotSpot has allocated but
        // not filled in yet.
        if pages.u32(at(klass, fields.layout_helper)?)?.cast_signed() > 0 {
            found.push(Entry { klass, loader: number, is_alone });
        }
        klass = pages.pointer(at(klass, fields.next_class)?)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::testing::{Image, own_memory};

    /// Two loaders: one with a class and an array, one with a class. Words of a Klass: layout helper,
    /// next, loader.
    fn image() -> (Image, [Addr; 4]) {
        let mut image = Image::new();
        let second = image.put(&[0, 0, 1]);
        let first = image.put(&[second.0, 0, 0]);
        let array = image.put(&[0x8010_0002, 0, first.0]);
        let class = image.put(&[25, array.0, first.0]);
        let other = image.put(&[40, 0, second.0]);
        image.overwrite(Addr(first.0 + 8), class.0);
        image.overwrite(Addr(second.0 + 8), other.0);
        let head = image.put(&[first.0]);
        image.static_field("ClassLoaderDataGraph", "_head", head);
        image.field("ClassLoaderData", "_next", 0);
        image.field("ClassLoaderData", "_klasses", 8);
        image.field("ClassLoaderData", "_has_class_mirror_holder", 16);
        for (field, offset) in
            [("_layout_helper", 0), ("_next_link", 8), ("_class_loader_data", 16)]
        {
            image.field("Klass", field, offset);
        }
        image.finish();
        (image, [first, second, class, other])
    }

    #[test]
    fn classes_of_every_loader_are_listed() {
        let (image, [first, second, class, other]) = image();
        let listed = read(&own_memory(), &image.read().unwrap()).unwrap();
        assert!(listed.is_complete);
        assert_eq!(listed.loaders, [first, second]);
        let entry = |klass, loader| Entry { klass, loader, is_alone: loader == 1 };
        assert_eq!(listed.classes, [entry(class, 0), entry(other, 1)]);
        assert_eq!(count(&own_memory(), &image.read().unwrap(), None).unwrap(), Some(2));
        let over = Some(Instant::now());
        assert_eq!(count(&own_memory(), &image.read().unwrap(), over).unwrap(), None);
    }

    #[test]
    fn broken_or_cyclic_list_is_marked_incomplete() {
        let (mut image, [first, _, class, other]) = image();
        // The class refers to another loader now.
        image.overwrite(Addr(class.0 + 16), 8);
        let listed = read(&own_memory(), &image.read().unwrap()).unwrap();
        assert!(!listed.is_complete);
        assert_eq!(listed.classes, [Entry { klass: other, loader: 1, is_alone: true }]);
        // A cyclic list of classes ends.
        image.overwrite(Addr(class.0 + 16), first.0);
        image.overwrite(Addr(class.0 + 8), class.0);
        let listed = read(&own_memory(), &image.read().unwrap()).unwrap();
        assert!(!listed.is_complete);
        assert_eq!(listed.classes.len(), 2);
        assert_eq!(count(&own_memory(), &image.read().unwrap(), None).unwrap(), None);
        // A cyclic list of loaders ends, too.
        image.overwrite(Addr(class.0 + 8), 0);
        image.overwrite(first, first.0);
        let listed = read(&own_memory(), &image.read().unwrap()).unwrap();
        assert!(!listed.is_complete);
        assert_eq!(listed.classes, [Entry { klass: class, loader: 0, is_alone: false }]);
    }

    #[test]
    fn cycles_of_any_length_are_detected() {
        for length in 1..50_u64 {
            for tail in 0..50_u64 {
                let mut detector = CycleDetector::default();
                let elements = (0..).map(|i| if i < tail { i } else { tail + (i - tail) % length });
                let steps = elements.take_while(|&i| !detector.closes(Addr(i + 1))).count() as u64;
                assert!(steps <= 4 * (tail + length) + 4, "{tail} {length}: {steps}");
            }
        }
        let mut detector = CycleDetector::default();
        assert!((1..10_000).all(|i| !detector.closes(Addr(i))));
    }
}
