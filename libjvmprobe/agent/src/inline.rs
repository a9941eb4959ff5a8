//! What was inlined where: the `compile_info` of "Compiled Method Load".
//!
//! What is known here: the records of `jvmticmlr.h`, which HotSpot passes along
//! with the event. They are checked for their version, kinds and counts, and
//! read no further than bounds allow.
//!
//! A record says for some code addresses which methods were inlined into each
//! other there. HotSpot's debug information marks the END of the code that it
//! describes (as the comments of its own asynchronous sampler say, `forte.cpp`),
//! so an address here ends a range, and the range begins where the last one
//! ended. That suits both kinds of addresses that a profiler sees: that of an
//! interrupted instruction, and the return address of a call less one.

use core::ffi::c_void;
use core::slice;

use crate::jvmti::MethodId;

const MAJOR_VERSION: i32 = 1;
const INLINE_INFO: i32 = 2;

/// Records in a list; the JVM makes one.
const RECORDS_MOST: usize = 16;
/// Addresses in a record.
const PCS_MOST: i32 = 1 << 20;
/// Methods in a chain.
const FRAMES_MOST: i32 = 1 << 12;

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

/// Methods inlined into each other, the innermost first, with the bytecode
/// index that each is at. Both slices are of one length, and not empty.
#[derive(Clone, Copy)]
pub struct Chain<'a> {
    /// The methods.
    pub methods: &'a [MethodId],
    /// Where they are.
    pub bcis: &'a [i32],
}

impl<'a> Chain<'a> {
    /// Methods and indices together.
    pub fn frames(self) -> impl Iterator<Item = (MethodId, i32)> + 'a {
        self.methods.iter().copied().zip(self.bcis.iter().copied())
    }
}

/// Code from `start` up to, not including, `end`.
#[derive(Clone, Copy)]
pub struct Range<'a> {
    /// Address of the first byte.
    pub start: usize,
    /// Address after the last byte.
    pub end: usize,
    /// What it was compiled from.
    pub chain: Chain<'a>,
}

/// The addresses that `compile_info` tells about, in order.
///
/// # Safety
///
/// `info` must be null or the `compile_info` of a "Compiled Method Load" event
/// that is still being handled during `'a`.
pub unsafe fn pcs<'a>(info: *const c_void) -> &'a [Pc] {
    let mut header = info.cast::<Header>();
    for _ in 0..RECORDS_MOST {
        if header.is_null() || !header.is_aligned() {
            break;
        }
        // SAFETY: the JVM's list consists of such headers.
        let (kind, major, next) = unsafe { ((*header).kind, (*header).major, (*header).next) };
        if major != MAJOR_VERSION {
            break;
        }
        if kind == INLINE_INFO {
            // SAFETY: a header of this kind and version begins such a record.
            let record = unsafe { &*header.cast::<Record>() };
            if record.pcs.is_null()
                || !record.pcs.is_aligned()
                || !(1..=PCS_MOST).contains(&record.count)
            {
                break;
            }
            // SAFETY: the record says that so many are there, and they live as
            // long as the event.
            return unsafe { slice::from_raw_parts(record.pcs, record.count as usize) };
        }
        header = next;
    }
    &[]
}

/// The ranges between the addresses, within the code from `start` to `end`.
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
        || !(1..=FRAMES_MOST).contains(&pc.count)
    {
        return None;
    }
    let count = pc.count as usize;
    // SAFETY: the record says that both arrays have so many entries, and they
    // live as long as the event, as does `pc`.
    unsafe {
        Some(Chain {
            methods: slice::from_raw_parts(pc.methods, count),
            bcis: slice::from_raw_parts(pc.bcis, count),
        })
    }
}

/// Who takes ranges, and says which of them need not be told apart.
pub trait Sink {
    /// Whether two neighbours can be one.
    fn is_same(&mut self, one: Chain<'_>, other: Chain<'_>) -> bool;
    /// Takes a range.
    fn take(&mut self, range: Range<'_>);
}

/// Hands the ranges to `sink`, those that it finds the same as one.
pub fn merge<'a>(ranges: impl Iterator<Item = Range<'a>>, sink: &mut impl Sink) {
    let mut pending: Option<Range<'_>> = None;
    for range in ranges {
        if let Some(last) = &mut pending
            && last.end == range.start
            && sink.is_same(last.chain, range.chain)
        {
            last.end = range.end;
        } else if let Some(last) = pending.replace(range) {
            sink.take(last);
        }
    }
    if let Some(last) = pending {
        sink.take(last);
    }
}
