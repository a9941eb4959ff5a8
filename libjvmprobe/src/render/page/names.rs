//! Names, frames and stacks of all profiles of a page, each once, and in as few bytes as is simple.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use super::packed::Packed;
use crate::{
    names::clean,
    stack::{Frame, Kind},
};

/// A frame as a page knows it: a method's name, and the kind of code that ran it. `None` is a
/// process or a thread where these stand in the stack themselves.
pub(super) type Named = (String, Option<Kind>);

/// The name of a frame, with nothing in it that acts.
pub(super) fn named(frame: &Frame) -> Named {
    (clean::line(&frame.name).into_owned(), Some(frame.kind))
}

/// Names and frames as they are written.
#[derive(Serialize)]
pub(super) struct Names {
    /// In the order of their bytes: for each, how many UTF-16 units it has in common with the one
    /// before.
    shared: Packed,
    /// The rest of each.
    rest: Vec<String>,
    /// For each frame its name's number and its kind.
    frames: Packed,
    #[serde(skip)]
    numbers: HashMap<Named, u32>,
}

impl Names {
    /// All frames that there are; those that are met most often have the smallest numbers.
    pub(super) fn of(uses: HashMap<Named, u64>) -> Self {
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

    /// The number of a frame.
    pub(super) fn number(&self, named: &Named) -> u32 {
        self.numbers.get(named).copied().unwrap_or(0)
    }
}

/// What the page calls a kind: an index into its `KINDS`.
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

/// Stacks, outermost frame first, by the numbers of their frames; each has the number of its rank.
pub(super) struct Stacks<'a>(BTreeMap<&'a [u32], u32>);

impl<'a> Stacks<'a> {
    /// All of them, each once.
    pub(super) fn of(stacks: impl IntoIterator<Item = &'a [u32]>) -> Self {
        let mut all: BTreeMap<_, _> = stacks.into_iter().map(|stack| (stack, 0)).collect();
        all.values_mut().zip(0..).for_each(|(number, rank)| *number = rank);
        Self(all)
    }

    /// A stack's number, if it is one of them.
    pub(super) fn number(&self, stack: &[u32]) -> Option<u32> {
        self.0.get(stack).copied()
    }

    /// For each stack how many frames it has in common with the one before, how many follow, and
    /// these.
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

#[cfg(test)]
mod tests {
    use super::super::packed::tests::numbers;
    use super::*;

    fn text(packed: &Packed) -> String {
        serde_json::to_value(packed).unwrap().as_str().unwrap().to_owned()
    }

    #[test]
    fn names_share_their_beginnings() {
        let uses = [("a.Main.run", 9), ("a.Main.main", 1), ("b\u{1f600}x", 1), ("b\u{1f600}y", 2)];
        let names = Names::of(
            uses.iter().map(|(name, n)| (((*name).to_owned(), Some(Kind::Java)), *n)).collect(),
        );
        assert_eq!(names.rest, ["a.Main.main", "run", "b\u{1f600}x", "y"]);
        assert_eq!(numbers(&text(&names.shared)), [0, 7, 0, 3]);
        // By how often they are met: run, y, main, x.
        assert_eq!(numbers(&text(&names.frames)), [1, 0, 3, 0, 0, 0, 2, 0]);
        assert_eq!(names.number(&("a.Main.run".to_owned(), Some(Kind::Java))), 0);
    }

    #[test]
    fn stacks_share_their_beginnings() {
        let stacks: [&[u32]; 4] = [&[1, 2, 4], &[1, 2], &[], &[1, 2, 4]];
        let stacks = Stacks::of(stacks);
        assert_eq!((stacks.number(&[1, 2, 4]), stacks.number(&[4])), (Some(2), None));
        assert_eq!(numbers(&text(&stacks.pack())), [0, 0, 0, 2, 1, 2, 2, 1, 4]);
    }
}
