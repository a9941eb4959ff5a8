//! Names, frames and stacks of all profiles of a page, each stored once in a simple compact form.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use super::packed::Packed;
use crate::{
    names::clean,
    stack::{Frame, Kind},
};

/// A frame of a page: a name, and the kind of code. A kind of `None` marks a process or a thread that is part of the
/// stack.
pub(super) type PageFrame = (String, Option<Kind>);

/// Returns the name and kind of a frame, with harmful characters escaped.
pub(super) fn page_frame(frame: &Frame) -> PageFrame {
    (clean::line(&frame.name).into_owned(), Some(frame.kind))
}

/// Names and frames in their serialized form.
#[derive(Serialize)]
pub(super) struct Names {
    /// For each name, in byte order, the number of UTF-16 units that it shares with the beginning of the previous name.
    shared: Packed,
    /// Remainder of each name.
    rest: Vec<String>,
    /// Rows of: number of the frame's name, kind of code.
    frames: Packed,
    #[serde(skip)]
    numbers: HashMap<PageFrame, u32>,
}

impl Names {
    /// Numbers all frames; the most frequently used ones get the smallest numbers.
    pub(super) fn of(uses: HashMap<PageFrame, u64>) -> Self {
        let distinct: HashSet<&str> = uses.keys().map(|(name, _)| &**name).collect();
        let mut sorted: Vec<_> = distinct.into_iter().collect();
        sorted.sort_unstable();
        let (mut shared, mut rest, mut before) = (Packed::default(), Vec::new(), "");
        for name in &sorted {
            let common: String =
                before.chars().zip(name.chars()).take_while(|(a, b)| a == b).map(|c| c.0).collect();
            shared.push(common.encode_utf16().count() as u64);
            rest.push(name[common.len()..].to_owned());
            before = name;
        }
        let at: BTreeMap<&str, u64> =
            sorted.iter().enumerate().map(|(i, name)| (*name, i as u64)).collect();
        let mut frames: Vec<_> = uses.iter().collect();
        frames.sort_unstable_by(|a, b| b.1.cmp(a.1).then_with(|| a.0.cmp(b.0)));
        let mut packed = Packed::default();
        let mut numbers = HashMap::new();
        for (named, _) in frames {
            packed.extend([at.get(&*named.0).copied().unwrap_or(0), code(named.1)]);
            numbers.insert(named.clone(), u32::try_from(numbers.len()).unwrap_or(u32::MAX));
        }
        Self { shared, rest, frames: packed, numbers }
    }

    /// Returns the number of a frame.
    pub(super) fn number(&self, named: &PageFrame) -> u32 {
        self.numbers.get(named).copied().unwrap_or(0)
    }
}

/// Returns the page's number of a kind: an index into its `KINDS`.
fn code(kind: Option<Kind>) -> u64 {
    match kind {
        Some(Kind::Java) => 0,
        Some(Kind::Inlined) => 1,
        Some(Kind::Interpreted) => 2,
        Some(Kind::Stub) => 3,
        Some(Kind::Jvm) => 4,
        Some(Kind::Native) => 5,
        Some(Kind::Kernel) => 6,
        Some(Kind::Class) => 7,
        Some(Kind::Unknown) => 8,
        None => 9,
    }
}

/// Stacks as frame numbers, outermost frame first, with the number of each stack: its rank in sort order.
pub(super) struct Stacks<'a>(BTreeMap<&'a [u32], u32>);

impl<'a> Stacks<'a> {
    /// Sorts and numbers the stacks, without duplicates.
    pub(super) fn of(stacks: impl IntoIterator<Item = &'a [u32]>) -> Self {
        let mut all: BTreeMap<_, _> = stacks.into_iter().map(|stack| (stack, 0)).collect();
        all.values_mut().zip(0..).for_each(|(number, rank)| *number = rank);
        Self(all)
    }

    /// Returns the number of a stack; `None` if the stack is not one of these.
    pub(super) fn number(&self, stack: &[u32]) -> Option<u32> {
        self.0.get(stack).copied()
    }

    /// Packs each stack as: number of frames shared with the previous stack, number of further frames, and these
    /// frames.
    pub(super) fn pack(&self) -> Packed {
        let mut packed = Packed::default();
        let mut before: &[u32] = &[];
        for stack in self.0.keys() {
            let common = before.iter().zip(*stack).take_while(|(a, b)| a == b).count();
            let rest = &stack[common..];
            packed.extend([common as u64, rest.len() as u64]);
            packed.extend(rest.iter().map(|&frame| frame.into()));
            before = stack;
        }
        packed
    }
}
