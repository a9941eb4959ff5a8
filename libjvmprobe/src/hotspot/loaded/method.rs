//! One method: its name and its call counters.
//!
//! Sources: hotspot/share/oops/{method,constMethod,methodCounters,methodData}.hpp,
//! interpreter/invocationCounter.hpp. The interpreter counts each call in `MethodCounters`, which
//! it creates at the first call, or in `MethodData` once that exists. Code of tiers 2 and 3
//! continues these counts; code of tiers 1 and 4 does not count.

use std::{ops::Range, sync::Arc};

use crate::{
    Addr, Error, Result,
    hotspot::{
        layout::Item,
        loaded::{
            Reader, at,
            class::ClassReader,
            refs::{Binding, Signature},
            walk::Listed,
        },
        resolved::Layout,
    },
    process::memory::Memory,
};

/// Plausibility limit for the size of a Method or a ConstMethod, in bytes.
const MAX_OBJECT: u64 = 256;
/// Distance in bytes of `MethodData::_invocation_counter` before `_tenure_traps`, which vmStructs
/// has. In between are `_backedge_counter` and the counter values at which profiling began.
const PROFILE_COUNT_BEFORE_TRAPS: u64 = 16;
/// Offset of `_backedge_counter` from `_invocation_counter`, in bytes (oops/methodCounters.hpp,
/// oops/methodData.hpp).
const LOOPS_BEHIND_CALLS: u64 = 4;
/// Distance in bytes of the invocation counter before the end of MethodData's fields, for JDK 27 and
/// later without JVMCI, where vmStructs lacks `_tenure_traps`. The last fields are the counters, their
/// start values, masks, sizes and the first datum.
const PROFILE_COUNT_BEFORE_END: u64 = 56;
/// Maximum number of classes, from the oldest on, that are searched for a method with a count.
const MAX_EXAMINED: usize = 500;

const ACC_PRIVATE: u16 = 0x0002;
const ACC_STATIC: u16 = 0x0008;
const ACC_NATIVE: u16 = 0x0100;
const ACC_ABSTRACT: u16 = 0x0400;

/// Everything read about a method.
#[derive(Clone, Debug)]
pub(super) struct MethodFacts {
    pub(super) name: Arc<str>,
    pub(super) descriptor: Arc<str>,
    /// The Symbols of its name and descriptor.
    pub(super) signature: Signature,
    /// Determines which classes a call of this method may name.
    pub(super) binding: Binding,
    /// Bytes of metaspace it uses.
    pub(super) bytes: u64,
    /// Address and size of its bytecodes.
    pub(super) code: Addr,
    pub(super) code_size: u16,
    pub(super) is_abstract: bool,
    pub(super) is_native: bool,
    /// Whether the JVM has an intrinsic for it.
    pub(super) is_intrinsic: bool,
    /// Whether compilers inline it wherever possible (`@ForceInline`).
    pub(super) is_forced_inline: bool,
    /// Number of counted calls, and whether any call was counted. The number alone does not show that,
    /// because it may be zero after the counter has overflowed.
    pub(super) counted: u64,
    pub(super) is_counted: bool,
    /// Counted loop iterations.
    pub(super) loops: u64,
    /// Whether one of these counters has overflowed.
    pub(super) has_overflowed: bool,
    /// Whether it has counters from an archive, which are from another run.
    pub(super) has_archived_counters: bool,
    /// Whether it has a profile whose counter cannot be read.
    pub(super) has_unread_profile: bool,
    pub(super) is_compiled: bool,
}

impl MethodFacts {
    /// The size in bytes that compilers compare with their inlining limits; 0 with `@ForceInline`.
    pub(super) fn inlined_size(&self) -> u64 {
        if self.is_forced_inline { 0 } else { self.code_size.into() }
    }
}

/// Reads methods.
#[derive(Debug)]
pub(super) struct MethodReader {
    size: u64,
    const_method: u64,
    const_method_size: u64,
    const_method_words: u64,
    access: u64,
    code: u64,
    counters: u64,
    profile: u64,
    intrinsic: u64,
    /// Offset of its flags, and the mask of the `@ForceInline` flag.
    forced_inline: Option<(u64, u32)>,
    invocations: u64,
    profile_invocations: Option<u64>,
    constants: u64,
    code_size: u64,
    name_index: u64,
    signature_index: u64,
    pool_size: u64,
    /// Number of bits below the count in a counter word.
    count_shift: u32,
    archive: Range<u64>,
}

impl MethodReader {
    pub(super) fn new(memory: &Memory, layout: &Layout) -> Result<Self> {
        let size = layout.get(Item::MethodSize)?;
        let const_method_size = layout.get(Item::ConstMethodSize)?;
        if size > MAX_OBJECT || const_method_size > MAX_OBJECT {
            return Err(Error::layout("implausible size of methods"));
        }
        let intrinsic = layout.get(Item::IntrinsicId)?;
        let forced_inline = match layout.get(Item::MethodFlags) {
            // Method::_force_inline.
            Ok(flags) => Some((flags, 1 << 1)),
            // MethodFlags, 32 bits, precede the intrinsic's ID.
            Err(_) => intrinsic.checked_sub(4).map(|flags| (flags, 1 << 11)),
        };
        let bound = |item| layout.try_address(item).and_then(|at| memory.u64(at).ok());
        let archive = bound(Item::ArchiveBase).zip(bound(Item::ArchiveTop));
        let traps = layout.get(Item::ProfileTraps).ok();
        let end = layout.get(Item::ProfileSize).ok().filter(|_| layout.major >= 27);
        Ok(Self {
            size,
            const_method: layout.get(Item::ConstMethodOf)?,
            const_method_size,
            const_method_words: layout.get(Item::ConstMethodWords)?,
            access: layout.get(Item::MethodAccess)?,
            code: layout.get(Item::CodeOfMethod)?,
            counters: layout.get(Item::CountersOf)?,
            profile: layout.get(Item::ProfileOf)?,
            intrinsic,
            forced_inline,
            invocations: layout.get(Item::Invocations)?,
            profile_invocations: traps
                .and_then(|at| at.checked_sub(PROFILE_COUNT_BEFORE_TRAPS))
                .or_else(|| end?.checked_sub(PROFILE_COUNT_BEFORE_END)),
            constants: layout.get(Item::Constants)?,
            code_size: layout.get(Item::CodeSize)?,
            name_index: layout.get(Item::NameIndex)?,
            signature_index: layout.get(Item::SignatureIndex)?,
            pool_size: layout.get(Item::PoolSize)?,
            // Below the count are two state bits and an overflow bit up to JDK 15, and later the overflow bit
            // alone.
            count_shift: if layout.major < 16 { 3 } else { 1 },
            archive: archive.map_or(0..0, |(base, top)| base..top),
        })
    }

    /// Whether an address lies in the class archive.
    pub(super) fn is_archived(&self, at: Addr) -> bool {
        self.archive.contains(&at.0)
    }

    /// Reads the method at an address.
    pub(super) fn read(&self, reader: &mut Reader<'_>, method: Addr) -> Result<MethodFacts> {
        let mut buffer = [0; MAX_OBJECT as usize];
        let own = buffer.get_mut(..self.size as usize).unwrap_or_default();
        reader.pages.read(at(method, 0)?, own)?;
        let own = Object(own);
        let const_method = Addr(own.u64(self.const_method));
        let access = own.u16(self.access);
        let (counters, profile) = (Addr(own.u64(self.counters)), Addr(own.u64(self.profile)));
        let is_compiled = own.u64(self.code) != 0;
        let is_intrinsic = own.u16(self.intrinsic) != 0;
        let is_forced_inline =
            self.forced_inline.is_some_and(|(flags, mask)| own.u32(flags) & mask != 0);
        let counted = self.counted(reader, counters, profile)?;

        let mut buffer = [0; MAX_OBJECT as usize];
        let part = buffer.get_mut(..self.const_method_size as usize).unwrap_or_default();
        reader.pages.read(at(const_method, 0)?, part)?;
        let part = Object(part);
        let pool = Addr(part.u64(self.constants));
        let mut symbol = |index: u16| {
            let slot = at(at(pool, self.pool_size)?, u64::from(index) * 8)?;
            reader.pages.pointer(slot)
        };
        let signature = Signature {
            name: symbol(part.u16(self.name_index))?,
            descriptor: symbol(part.u16(self.signature_index))?,
        };
        let name = reader.text(signature.name)?;
        let descriptor = reader.text(signature.descriptor)?;
        if !descriptor.starts_with('(') {
            return Err(Error::layout(format!("the method at {method} has no descriptor")));
        }
        let words = part.u32(self.const_method_words).min(1 << 17);
        let binding = match &*name {
            "<init>" => Binding::Constructor,
            _ if access & (ACC_STATIC | ACC_PRIVATE) != 0 => Binding::Static,
            _ => Binding::Virtual,
        };
        Ok(MethodFacts {
            name,
            descriptor,
            signature,
            binding,
            bytes: self.size + u64::from(words) * 8,
            code: at(const_method, self.const_method_size)?,
            code_size: part.u16(self.code_size),
            is_abstract: access & ACC_ABSTRACT != 0,
            is_native: access & ACC_NATIVE != 0,
            is_intrinsic,
            is_forced_inline,
            counted: counted.times,
            is_counted: counted.is_counted,
            loops: counted.loops,
            has_overflowed: counted.has_overflowed,
            has_archived_counters: counted.is_archived,
            has_unread_profile: counted.is_unread,
            is_compiled,
        })
    }

    fn counted(&self, reader: &mut Reader<'_>, counters: Addr, profile: Addr) -> Result<Counted> {
        let mut counted = Counted::default();
        let mut add = |object: Addr, field: Option<u64>| -> Result<()> {
            if object == Addr(0) {
                return Ok(());
            }
            if self.is_archived(object) {
                counted.is_archived = true;
                return Ok(());
            }
            let Some(field) = field else {
                counted.is_unread = true;
                return Ok(());
            };
            let counter = at(object, field)?;
            let word = reader.pages.u32(counter)?;
            counted.times += u64::from(word >> self.count_shift);
            // The overflow bit lies directly below the count; bits below it are state, not part of a count.
            let carry = self.count_shift - 1;
            counted.is_counted |= word >> carry != 0;
            let loops = reader.pages.u32(at(counter, LOOPS_BEHIND_CALLS)?)?;
            counted.loops += u64::from(loops >> self.count_shift);
            counted.has_overflowed |= (word | loops) >> carry & 1 != 0;
            Ok(())
        };
        add(counters, Some(self.invocations))?;
        add(profile, self.profile_invocations)?;
        Ok(counted)
    }

    /// Whether any method of the classes loaded first was counted.
    pub(super) fn counts_any(
        &self,
        reader: &mut Reader<'_>,
        classes: &ClassReader,
        listed: &Listed,
    ) -> bool {
        // The list has the newest loaders and classes first, so its end has the boot loader's first classes.
        let first = listed.classes.iter().rev().take(MAX_EXAMINED);
        for entry in first {
            let Ok(methods) = classes.methods(reader, entry.klass) else { continue };
            for method in methods {
                if self.read(reader, method).is_ok_and(|facts| facts.is_counted) {
                    return true;
                }
            }
        }
        false
    }
}

#[derive(Default)]
struct Counted {
    times: u64,
    is_counted: bool,
    loops: u64,
    has_overflowed: bool,
    is_archived: bool,
    is_unread: bool,
}

/// The bytes of a HotSpot object. Fields outside of it read as zero.
struct Object<'a>(&'a [u8]);

impl Object<'_> {
    fn field<const N: usize>(&self, offset: u64) -> [u8; N] {
        let bytes = usize::try_from(offset).ok().and_then(|offset| self.0.get(offset..));
        bytes.and_then(|bytes| bytes.first_chunk().copied()).unwrap_or([0; N])
    }

    fn u16(&self, offset: u64) -> u16 {
        u16::from_ne_bytes(self.field(offset))
    }

    fn u32(&self, offset: u64) -> u32 {
        u32::from_ne_bytes(self.field(offset))
    }

    fn u64(&self, offset: u64) -> u64 {
        u64::from_ne_bytes(self.field(offset))
    }
}
