//! The methods that code may call, from constants and bytecodes.
//!
//! Sources: hotspot/share/oops/constantPool.hpp, utilities/constantTag.hpp (JVMS 4.4, 6.5),
//! interpreter/{rewriter,bytecodes}.cpp. Each name has only one Symbol, whose address identifies the
//! name. A call of a constructor names the constructor's class. A call of a static or private method may
//! name a subclass. A call of any other method may name, in addition, any class that an object with this
//! method can be an instance of (JVMS 5.4.3.3, 5.4.6). A string may be the name by which a method handle
//! was looked up. If handles were made for methods of a class, a flag of this class records that.
//!
//! When a class is linked, HotSpot rewrites its calls. The operand of a call, which was the index of a
//! constant, becomes the index of a cache entry, in native byte order. Entries are in the order of the
//! constants; since JDK 22 methods have a separate cache. Every byte that looks like a call opcode counts
//! as one, even if it is part of another instruction. So the result may contain too many methods, but
//! misses none.

use crate::{
    Addr, Error, Result,
    hotspot::{
        hashing::{NumberMap, NumberSet},
        layout::Item,
        loaded::{Reader, at, family::Families},
        resolved::Layout,
    },
};

/// Constant pool tags.
const STRING: u8 = 8;
const METHOD: u8 = 10;
const INTERFACE_METHOD: u8 = 11;
const FIELD: u8 = 9;
const METHOD_HANDLE: u8 = 15;
/// Tag of a method handle whose resolution failed.
const METHOD_HANDLE_IN_ERROR: u8 = 104;
/// A constant's index has 16 bits.
const MAX_CONSTANTS: u32 = 1 << 16;
/// Maximum number of hashes in [`Refs`], which then use about 128 MiB. 4 GiB of metaspace contain fewer
/// method references.
const MAX_REFS: usize = 1 << 22;

/// Name and descriptor of a method, as in the constants that refer to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Signature {
    /// Addresses of the Symbols.
    pub(super) name: Addr,
    pub(super) descriptor: Addr,
}

/// Determines which classes a call of a method may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binding {
    /// Its own class only: a constructor.
    Constructor,
    /// Its own class and subclasses: a static or private method.
    Static,
    /// In addition, any class that an object with this method can be an instance of.
    Virtual,
}

/// A method that may be called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Callee {
    /// The Symbol of its class's name.
    pub(super) class: Addr,
    pub(super) signature: Signature,
    pub(super) binding: Binding,
}

/// Two hashes of a method reference in a constant: `own` includes the reference's class, `any` does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Named {
    own: u64,
    any: u64,
}

/// The methods for which method handles may have been made.
///
/// C1 inlines the target of a constant method handle without a bytecode that names the method, but
/// only if the target cannot be overridden (`GraphBuilder::try_method_handle_inline`,
/// c1/c1_GraphBuilder.cpp). In that case the class that declares the method has the flag that records that
/// method handles were made.
#[derive(Debug, Default)]
pub(super) struct Handles {
    strings: NumberSet<Addr>,
    methods: NumberSet<Named>,
    classes: Vec<HandledClass>,
}

/// A class that has, or may have, method handles for its methods.
#[derive(Debug)]
pub(super) struct HandledClass {
    pub(super) class: Addr,
    /// Whether a handle is known to exist, from the class's flag.
    pub(super) is_known: bool,
    pub(super) methods: Vec<(Signature, Binding)>,
}

impl Handles {
    /// Adds a class that may have method handles.
    pub(super) fn push(&mut self, class: HandledClass) {
        self.classes.push(class);
    }

    /// Adds to `refs` the methods that may have handles. If a class is known to have a handle, but nothing
    /// shows for which method, all methods of the class are added.
    pub(super) fn name(self, refs: &mut Refs) {
        let Self { strings, methods, classes } = self;
        for HandledClass { class, is_known, methods: own } in classes {
            let named = |&(signature, binding): &(Signature, Binding)| {
                // Handles of constructors are looked up without a name, so no string is required.
                (is_known && binding == Binding::Constructor)
                    || strings.contains(&signature.name)
                    || methods.contains(&refs.name(class, signature))
            };
            let is_named_by_constant =
                |method: &(Signature, Binding)| method.1 != Binding::Constructor && named(method);
            let are_all = is_known && !own.iter().any(is_named_by_constant);
            let all: Vec<_> = own
                .iter()
                .filter(|method| are_all || named(method))
                .map(|(signature, _)| refs.name(class, *signature))
                .collect();
            refs.insert(all, 0);
        }
    }
}

/// The methods named by calls.
#[derive(Debug)]
pub(super) struct Refs {
    /// For each hash of a method reference ([`Named`]), the lowest inline level of the calls that use this
    /// reference. If two references have the same hash, both count as called. That can make the usage of a
    /// method unknown, but never wrong.
    named: NumberMap<u64, u8>,
    /// Related classes by class. If they are unknown (`None`), any two classes count as related.
    families: Option<Families>,
    /// Whether all calls are included. If not, every method counts as named.
    is_complete: bool,
}

/// Reads constant pools.
#[derive(Debug)]
pub(super) struct RefReader {
    constants: u64,
    tags: u64,
    tags_length: u64,
    tags_data: u64,
    pool_size: u64,
    has_members: bool,
    has_methods: bool,
}

impl RefReader {
    pub(super) fn new(layout: &Layout) -> Result<Self> {
        Ok(Self {
            constants: layout.get(Item::ConstantsOf)?,
            tags: layout.get(Item::PoolTags)?,
            tags_length: layout.get(Item::MethodArrayLength)?,
            tags_data: layout.get(Item::ByteArrayData)?,
            pool_size: layout.get(Item::PoolSize)?,
            // Early builds of JDK 22 still have the shared cache.
            has_members: layout.major <= 22,
            has_methods: layout.major >= 22,
        })
    }

    /// Reads the constants of a class.
    ///
    /// A class with its own ClassLoaderData may refer to itself by the name in its class file, which
    /// differs from the name that the JVM gave it (JDK 11: `fix_unsafe_anonymous_class_name`,
    /// classfile/classFileParser.cpp). `own` is the name that the JVM gave it.
    pub(super) fn read(
        &self,
        reader: &mut Reader<'_>,
        klass: Addr,
        own: Option<Addr>,
    ) -> Result<Constants> {
        let pool = reader.pages.pointer(at(klass, self.constants)?)?;
        let tags = reader.pages.pointer(at(pool, self.tags)?)?;
        let length = reader.pages.u32(at(tags, self.tags_length)?)?;
        if length > MAX_CONSTANTS {
            return Err(Error::layout(format!(
                "implausible number of constants in a class: {length}"
            )));
        }
        let length = length as usize;
        let tags = reader.pages.bytes(at(tags, self.tags_data)?, length)?;
        let slots = reader.pages.bytes(at(pool, self.pool_size)?, length * 8)?;
        let of = |tags: &[u8], wanted: &[u8]| {
            let indexes = (0..).zip(tags).filter(|(_, tag)| wanted.contains(tag));
            indexes.map(|(index, _)| index).collect()
        };
        let members = of(&tags, &[FIELD, METHOD, INTERFACE_METHOD]);
        let methods = of(&tags, &[METHOD, INTERFACE_METHOD]);
        let (has_members, has_methods) = (self.has_members, self.has_methods);
        Ok(Constants { own, tags, slots, members, methods, has_members, has_methods })
    }
}

/// The constants of a class.
#[derive(Debug)]
pub(super) struct Constants {
    /// Name of this class as the JVM gave it. It replaces class names that no loaded class has; see
    /// [`RefReader::read`].
    own: Option<Addr>,
    tags: Vec<u8>,
    slots: Vec<u8>,
    /// Constant indexes of fields and methods, and of methods alone, in the order of the caches' entries.
    members: Vec<u32>,
    methods: Vec<u32>,
    /// Whether the shared cache of fields and methods, and the separate cache of methods, may exist.
    has_members: bool,
    has_methods: bool,
}

impl Constants {
    fn tag(&self, index: u32) -> Option<u8> {
        self.tags.get(index as usize).copied()
    }

    fn slot(&self, index: u32) -> Option<u64> {
        let bytes = self.slots.get(index as usize * 8..)?.first_chunk()?;
        Some(u64::from_ne_bytes(*bytes))
    }

    fn method(&self, refs: &Refs, index: u32) -> Result<Named> {
        let named = || {
            // A method reference holds two indexes: class, and name-and-type.
            let (class, name_and_type) = halves(self.slot(index)?);
            let (name, descriptor) = halves(self.slot(name_and_type)?);
            let (name, descriptor) = (Addr(self.slot(name)?), Addr(self.slot(descriptor)?));
            // A class constant holds two indexes: the resolved class, and the name.
            let class = Addr(self.slot(halves(self.slot(class)?).1)?);
            let class = self.own.filter(|_| !refs.knows(class)).unwrap_or(class);
            Some(refs.name(class, Signature { name, descriptor }))
        };
        named().ok_or_else(|| Error::layout("a method reference in the constant pool has no name"))
    }

    fn is_method(&self, index: u32) -> bool {
        matches!(self.tag(index), Some(METHOD | INTERFACE_METHOD))
    }

    /// Adds the names by which method handles may be looked up: strings, and method handle constants.
    pub(super) fn handles(&self, refs: &Refs, handles: &mut Handles) -> Result<()> {
        for (index, &tag) in (0..).zip(&self.tags) {
            let word = self.slot(index).unwrap_or_default();
            match tag {
                STRING => handles.strings.insert(Addr(word)),
                METHOD_HANDLE | METHOD_HANDLE_IN_ERROR if self.is_method(halves(word).1) => {
                    handles.methods.insert(self.method(refs, halves(word).1)?)
                }
                _ => continue,
            };
        }
        Ok(())
    }

    /// Returns the methods that the bytecodes may call.
    pub(super) fn calls(&self, refs: &Refs, code: &[u8]) -> Result<Vec<Named>> {
        let mut indexes = Vec::new();
        let mut has_behind = false;
        for call in code.windows(3).filter(|call| may_be_call(call[0])) {
            let native = usize::from(u16::from_ne_bytes([call[1], call[2]]));
            indexes.extend(self.members.get(native).filter(|_| self.has_members));
            indexes.extend(self.methods.get(native).filter(|_| self.has_methods));
            // At the end of the shared cache, interface methods have second entries, for calls through super.
            has_behind |= native >= self.methods.len() && native < 2 * self.members.len();
        }
        let interfaces = self.methods.iter().filter(|_| has_behind);
        indexes.extend(interfaces.filter(|&&i| self.tag(i) == Some(INTERFACE_METHOD)));
        indexes.retain(|&index| self.is_method(index));
        indexes.sort_unstable();
        indexes.dedup();
        indexes.into_iter().map(|index| self.method(refs, index)).collect()
    }
}

/// Whether a byte may be a call opcode: a call of JVMS 6.5, a HotSpot-internal call, or a breakpoint, which
/// may have replaced a call.
fn may_be_call(code: u8) -> bool {
    matches!(code, 0xb6..=0xb9 | 0xca | 0xe0..=0xef)
}

/// Values used instead of a class in hashes: any class, and a class that is not loaded.
const ANY: u64 = 0;
const UNLOADED_CLASS: u64 = 1;

impl Refs {
    /// Creates an empty set; without families, any two classes may be related.
    pub(super) fn new(families: Option<Families>) -> Self {
        Self { named: NumberMap::default(), families, is_complete: true }
    }

    /// Creates a set in which any method may be named.
    pub(super) fn unknown() -> Self {
        Self { is_complete: false, ..Self::new(None) }
    }

    /// Adds calls at an inline level, which must not be lower than the level of earlier calls. Returns
    /// the class-independent hashes of the calls that are new.
    pub(super) fn insert(
        &mut self,
        named: impl IntoIterator<Item = Named>,
        level: u8,
    ) -> NumberSet<u64> {
        let mut fresh = NumberSet::default();
        for Named { own, any } in named {
            for hash in [own, any] {
                self.named.entry(hash).or_insert_with(|| {
                    fresh.insert(any);
                    level
                });
            }
        }
        self.is_complete &= self.named.len() <= MAX_REFS;
        fresh
    }

    /// Whether the set is incomplete, so that adding more calls has no effect.
    pub(super) fn is_full(&self) -> bool {
        !self.is_complete
    }

    /// Whether a method may be named by one of the calls that `insert` returned as new.
    pub(super) fn is_fresh(&self, fresh: &NumberSet<u64>, callee: Callee) -> bool {
        !self.is_complete || fresh.contains(&key(ANY, callee.signature))
    }

    /// Returns the lowest inline level at which a method may be called; `None` if nothing names it.
    pub(super) fn level(&self, callee: Callee) -> Option<u8> {
        let Callee { class, signature, binding } = callee;
        if !self.is_complete {
            return Some(0);
        }
        let level = |class| self.named.get(&key(class, signature)).copied();
        let named_level = |class: Addr| level(class.0);
        let any = level(ANY)?;
        let Some(families) = &self.families else { return Some(any) };
        match binding {
            Binding::Constructor => named_level(class),
            // If the class has very many subclasses, any call with the method's name and descriptor counts.
            // `Object` is such a class. For `Object` this is also necessary: a call that names an array class
            // may reach a method of `Object`, but array classes are not in the families.
            _ if families.is_large(class) => Some(any),
            Binding::Static => families.down(class).filter_map(named_level).min(),
            Binding::Virtual => families.all(class).filter_map(named_level).min(),
        }
    }

    /// Whether a class of this name is loaded.
    fn knows(&self, class: Addr) -> bool {
        self.families.as_ref().is_some_and(|families| families.has(class))
    }

    /// Returns the hashes of a reference that names a method and a class. Classes that are not loaded need
    /// not be distinguished, because C1 does not inline their methods (`GraphBuilder::invoke`,
    /// c1/c1_GraphBuilder.cpp).
    pub(super) fn name(&self, class: Addr, method: Signature) -> Named {
        let own = if self.knows(class) { class.0 } else { UNLOADED_CLASS };
        Named { own: key(own, method), any: key(ANY, method) }
    }
}

fn key(class: u64, method: Signature) -> u64 {
    hash([method.name.0, method.descriptor.0, class])
}

/// Splits a constant into its two 16-bit indexes, the lower half first.
fn halves(word: u64) -> (u32, u32) {
    (u32::from(word as u16), u32::from((word >> 16) as u16))
}

/// Hashes 64-bit words in the manner of FNV, with a different multiplier.
fn hash(words: [u64; 3]) -> u64 {
    words.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        let mixed = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::{
        pages::Pages,
        symbols::Symbols,
        testing::{Image, own_memory},
    };

    const CONSTRUCTOR: Addr = Addr(0x1000);
    const RUN: Addr = Addr(0x1008);
    const VOID: Addr = Addr(0x1010);
    const INT: Addr = Addr(0x1018);
    const CLASS: Addr = Addr(0x1020);
    const OTHER: Addr = Addr(0x1028);
    const TEXT: Addr = Addr(0x1030);
    const UNNAMED: Addr = Addr(0x1038);
    const BASE: Addr = Addr(0x1040);
    const BELOW: Addr = Addr(0x1048);
    const STRANGER: Addr = Addr(0x1050);

    /// Calls of both methods, by index in the cache that has only methods.
    const CALLS: [u8; 8] = [0x2a, 0xb7, 0, 0, 0xb9, 1, 0, 1];

    /// Refs of a class that names `CLASS.<init>()V`, `OTHER.run(I)V` and a string. `name` is the constant
    /// index of the second method's name.
    fn named(name: u64, code: &[u8]) -> Result<Refs> {
        named_by(None, OTHER, name, code)
    }

    /// Like `named`, but the second method is named with class `other`, and the class itself is `own`.
    fn named_by(own: Option<Addr>, other: Addr, name: u64, code: &[u8]) -> Result<Refs> {
        let mut image = Image::new();
        let pair = |low: u64, high: u64| low | high << 16;
        let tags = [0, METHOD, 7, 12, 1, 1, 1, INTERFACE_METHOD, 7, 12, 1, 1, STRING, 1, 0, 0];
        let words = tags.chunks_exact(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap()));
        let mut array = vec![14];
        array.extend(words);
        let tags = image.put(&array);
        let slots = [
            0,
            pair(2, 3),
            pair(77, 4),
            pair(5, 6),
            CLASS.0,
            CONSTRUCTOR.0,
            VOID.0,
            pair(8, 9),
            pair(0, 10),
            pair(name, 11),
            other.0,
            INT.0,
            TEXT.0,
            RUN.0,
        ];
        let mut pool = vec![tags.0];
        pool.extend(slots);
        let pool = image.put(&pool);
        let klass = image.put(&[pool.0]);
        for (class, field, offset) in [
            ("InstanceKlass", "_constants", 0),
            ("ConstantPool", "_tags", 0),
            ("Array<int>", "_length", 0),
            ("Array<u1>", "_data", 8),
            ("Symbol", "_length", 0),
            ("Symbol", "_body", 2),
            ("Symbol", "_body[0]", 2),
        ] {
            image.field(class, field, offset);
        }
        image.class("ConstantPool", 8);
        image.finish();
        let (memory, layout) = (own_memory(), image.read().unwrap());
        let symbols = Symbols::resettable(&layout).unwrap();
        let pages = || Pages::scattered(&memory);
        let mut reader = Reader { pages: pages(), names: pages(), symbols };
        let mut families = Families::default();
        families.insert(BASE, vec![]);
        families.insert(CLASS, vec![BASE]);
        families.insert(OTHER, vec![BASE]);
        families.insert(BELOW, vec![BASE, OTHER]);
        families.insert(STRANGER, vec![]);
        let mut refs = Refs::new(Some(families));
        let constants = RefReader::new(&layout)?.read(&mut reader, klass, own)?;
        let mut handles = Handles::default();
        constants.handles(&refs, &mut handles)?;
        for (class, is_known, names) in [
            (OTHER, true, vec![TEXT, UNNAMED]),
            (CLASS, false, vec![TEXT, UNNAMED]),
            (BASE, true, vec![UNNAMED]),
        ] {
            let method = |name| (Signature { name, descriptor: VOID }, Binding::Virtual);
            let constructor =
                (Signature { name: CONSTRUCTOR, descriptor: INT }, Binding::Constructor);
            let methods = names.into_iter().map(method).chain([constructor]).collect();
            handles.push(HandledClass { class, is_known, methods });
        }
        handles.name(&mut refs);
        let called = constants.calls(&refs, code)?;
        refs.insert(called, 0);
        Ok(refs)
    }

    fn callee(class: Addr, name: Addr, descriptor: Addr, binding: Binding) -> Callee {
        Callee { class, signature: Signature { name, descriptor }, binding }
    }

    fn may_name(refs: &Refs, class: Addr, name: Addr, descriptor: Addr) -> bool {
        refs.level(callee(class, name, descriptor, Binding::Virtual)).is_some()
    }

    fn may_construct(refs: &Refs, class: Addr, descriptor: Addr) -> bool {
        refs.level(callee(class, CONSTRUCTOR, descriptor, Binding::Constructor)).is_some()
    }

    #[test]
    fn calls_match_related_classes_but_constructors_match_exactly() {
        let refs = named(13, &CALLS).unwrap();
        assert!(!refs.is_full());
        for (class, is_named) in
            [(OTHER, true), (BELOW, true), (BASE, true), (CLASS, false), (STRANGER, false)]
        {
            assert_eq!(may_name(&refs, class, RUN, INT), is_named, "{class}");
            assert!(!may_name(&refs, class, RUN, VOID));
            assert_eq!(may_construct(&refs, class, VOID), class == CLASS, "{class}");
            let of_static = refs.level(callee(class, RUN, INT, Binding::Static)).is_some();
            assert_eq!(of_static, class == OTHER || class == BASE, "{class}");
        }
    }

    #[test]
    fn reference_to_an_unloaded_class_matches_only_the_class_that_contains_it() {
        const NOT_LOADED: Addr = Addr(0x2000);
        for (own, is_named) in [(None, false), (Some(STRANGER), true)] {
            let refs = named_by(own, NOT_LOADED, 13, &CALLS).unwrap();
            assert!(!may_name(&refs, OTHER, RUN, INT) && !may_name(&refs, BASE, RUN, INT));
            assert_eq!(may_name(&refs, STRANGER, RUN, INT), is_named);
        }
    }

    #[test]
    fn without_families_calls_match_by_signature_only() {
        let mut refs = Refs::new(None);
        let named = refs.name(CLASS, Signature { name: RUN, descriptor: INT });
        refs.insert([named], 0);
        assert!(may_name(&refs, STRANGER, RUN, INT));
        assert!(!may_name(&refs, STRANGER, RUN, VOID));
    }

    #[test]
    fn insert_retains_the_lowest_level_of_a_call() {
        let mut refs = named(13, &CALLS).unwrap();
        let signature = Signature { name: RUN, descriptor: INT };
        let level = |refs: &Refs, class| refs.level(callee(class, RUN, INT, Binding::Virtual));
        let strange = refs.name(STRANGER, signature);
        assert_eq!((level(&refs, OTHER), level(&refs, STRANGER)), (Some(0), None));
        assert_eq!(refs.insert([strange], 3).len(), 1);
        assert_eq!((level(&refs, OTHER), level(&refs, STRANGER)), (Some(0), Some(3)));
        assert!(refs.insert([strange], 4).is_empty());
        assert_eq!(level(&refs, STRANGER), Some(3));
    }

    #[test]
    fn only_called_methods_are_named() {
        let names = |code: &[u8]| {
            let refs = named(13, code).unwrap();
            (may_construct(&refs, CLASS, VOID), may_name(&refs, OTHER, RUN, INT))
        };
        let call = |code, index: u16| {
            let [a, b] = index.to_ne_bytes();
            [code, a, b]
        };
        assert_eq!(names(&[]), (false, false));
        assert_eq!(names(&[0xb2, 0, 0, 0xb4, 1, 0]), (false, false));
        assert_eq!(names(&CALLS), (true, true));
        assert_eq!(names(&call(0xb8, 0)), (true, false));
        assert_eq!(names(&call(0xe3, 1)), (false, true));
        // The interface method's second entry.
        assert_eq!(names(&call(0xb7, 2)), (false, true));
        assert_eq!(names(&call(0xb7, 700)), (false, false));
    }

    #[test]
    fn string_constant_names_methods_if_handles_may_exist() {
        let refs = named(13, &[]).unwrap();
        for (class, name, is_named) in [
            (OTHER, TEXT, true),
            (OTHER, UNNAMED, false),
            (CLASS, TEXT, true),
            (CLASS, UNNAMED, false),
            (STRANGER, TEXT, false),
            // A handle exists, but nothing shows for which method.
            (BASE, UNNAMED, true),
        ] {
            let own = refs.level(callee(class, name, VOID, Binding::Static)).is_some();
            // A call may reach a static method if it names the method's class or a subclass.
            assert_eq!(own, is_named, "{class} {name}");
        }
        assert!(may_construct(&refs, OTHER, INT) && !may_construct(&refs, CLASS, INT));
    }

    #[test]
    fn unknown_refs_name_every_method() {
        assert!(named(99, &CALLS).is_err());
        assert!(Refs::unknown().is_full());
        assert!(may_name(&Refs::unknown(), CLASS, RUN, VOID));
        assert!(!may_name(&Refs::new(None), CLASS, RUN, VOID));
    }
}
