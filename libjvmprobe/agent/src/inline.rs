//! Inlined methods by code range: the `compile_info` of "Compiled Method Load".
//!
//! HotSpot passes the records of `jvmticmlr.h` along with the event. This
//! module checks their version, kinds and counts, and limits the number of
//! records, addresses and methods that it reads.
//!
//! A record lists, for some code addresses, the chain of methods inlined into
//! each other there. HotSpot's debug information marks the END of the code that
//! it describes (as the comments of its own asynchronous sampler, `forte.cpp`,
//! say), so each address ends a range, which begins at the end of the previous
//! range. These ranges are correct for both kinds of addresses that a profiler
//! looks up: the address of an interrupted instruction, and a return address minus
//! one.

use core::ffi::c_void;
use core::slice;

use crate::jvmti::MethodId;

const MAJOR_VERSION: i32 = 1;
const INLINE_INFO: i32 = 2;

/// Maximum number of records in a list; HotSpot passes one.
const MAX_RECORDS: usize = 16;
/// Maximum number of addresses in a record.
const MAX_PCS: i32 = 1 << 20;
/// Maximum number of methods in a chain.
const MAX_FRAMES: i32 = 1 << 12;

/// `jvmtiCompiledMethodLoadRecordHeader`.
#[repr(C)]
struct Header {
    kind: i32,
    major: i32,
    minor: i32,
    next: *const Self,
}

/// `jvmtiCompiledMethodLoadInlineRecord`.
#[repr(C)]
struct Record {
    header: Header,
    count: i32,
    pcs: *const Pc,
}

/// `PCStackInfo`.
#[repr(C)]
pub struct Pc {
    pc: usize,
    count: i32,
    methods: *const MethodId,
    bcis: *const i32,
}

/// Methods inlined into each other, the innermost first, with the current
/// bytecode index in each. Both slices have the same length and are not empty.
#[derive(Clone, Copy)]
pub struct Chain<'a> {
    /// The methods, innermost first.
    pub methods: &'a [MethodId],
    /// The bytecode index in each method.
    pub bcis: &'a [i32],
}

impl<'a> Chain<'a> {
    /// Returns pairs of a method and its bytecode index.
    pub fn frames(self) -> impl Iterator<Item = (MethodId, i32)> + 'a {
        self.methods.iter().copied().zip(self.bcis.iter().copied())
    }
}

/// Code from `start` up to, but not including, `end`.
#[derive(Clone, Copy)]
pub struct Range<'a> {
    /// Address of the first byte.
    pub start: usize,
    /// Address after the last byte.
    pub end: usize,
    /// The inlined methods that the code was compiled from.
    pub chain: Chain<'a>,
}

/// Returns the entries of the first inline record in `compile_info`, in the record's order;
/// an empty slice if there is none or it is invalid.
///
/// # Safety
///
/// `info` must be null or the `compile_info` of a "Compiled Method Load" event
/// that is still being handled during `'a`.
pub unsafe fn pcs<'a>(info: *const c_void) -> &'a [Pc] {
    let mut header = info.cast::<Header>();
    for _ in 0..MAX_RECORDS {
        if header.is_null() || !header.is_aligned() {
            break;
        }
        // SAFETY: each element of the JVM's list begins with this header.
        let (kind, major, next) = unsafe { ((*header).kind, (*header).major, (*header).next) };
        if major != MAJOR_VERSION {
            break;
        }
        if kind == INLINE_INFO {
            // SAFETY: a header of this kind and version is the beginning of an inline record.
            let record = unsafe { &*header.cast::<Record>() };
            if record.pcs.is_null()
                || !record.pcs.is_aligned()
                || !(1..=MAX_PCS).contains(&record.count)
            {
                break;
            }
            // SAFETY: the record has `count` entries, which are valid as long
            // as the event is being handled.
            return unsafe { slice::from_raw_parts(record.pcs, record.count as usize) };
        }
        header = next;
    }
    &[]
}

/// Returns the ranges that end at these addresses. Addresses that do not ascend or are outside
/// of the code from `start` to `end` are skipped.
pub fn ranges<'a>(pcs: &'a [Pc], start: usize, end: usize) -> impl Iterator<Item = Range<'a>> {
    let mut at = start;
    pcs.iter().filter_map(move |pc| {
        if pc.pc <= at || pc.pc > end {
            return None;
        }
        let start = core::mem::replace(&mut at, pc.pc);
        chain(pc).map(|chain| Range { start, end: pc.pc, chain })
    })
}

fn chain(pc: &Pc) -> Option<Chain<'_>> {
    if pc.methods.is_null()
        || pc.bcis.is_null()
        || !pc.methods.is_aligned()
        || !pc.bcis.is_aligned()
        || !(1..=MAX_FRAMES).contains(&pc.count)
    {
        return None;
    }
    let count = pc.count as usize;
    // SAFETY: both arrays have `count` entries, and they are valid as long as
    // `pc`, that is, while the event is being handled.
    unsafe {
        Some(Chain {
            methods: slice::from_raw_parts(pc.methods, count),
            bcis: slice::from_raw_parts(pc.bcis, count),
        })
    }
}
