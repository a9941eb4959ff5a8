//! The call graph of `tests/java/StackLoad.java`, and a check of sampled stacks against it.
//!
//! The table writes a method as `Class.method`, with the innermost class only. The number at the
//! end of a lambda's method name is removed, as is the number in the name of a class that is
//! generated at run time (`StackGone1234`). A thread's name also occurs as a caller, namely as the
//! caller of the program's first method in that thread.
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write,
};

use crate::folded::{self, Line};

/// `A > B`: A calls B directly, so their frames are adjacent. `A ~> B`: frames of the JDK, the JVM
/// or the C library are, or may be, between A and B.
const CALLS: &str = "
    calls ~> StackCalls.run
    StackCalls.run > Deep.turn Mutual.turn Abyss.turn Interfaces.turn Classes.turn Thrower.turn
    StackCalls.run > Finally.turn Locks.turn Big.turn Tiny.turn Osr.turn Wide.turn Hop.turn

    Deep.turn > StackLoad.turn Deep.down
    Deep.down > Deep.down Deep.bottom
    Mutual.turn > StackLoad.turn Mutual.even
    Mutual.even > Mutual.odd Mutual.bottom
    Mutual.odd > Mutual.even
    Abyss.turn > StackLoad.turn Abyss.fall
    Abyss.fall > Abyss.fall Abyss.ground

    StackCalls.run ~> Interfaces.<clinit> Classes.<clinit>
    Interfaces.<clinit> > Square.<init> Circle.<init> Ring.<init> Line.<init> Dot.<init>
    Interfaces.turn > StackLoad.turn Square.area Circle.area Ring.area Line.area Dot.area
    Interfaces.turn > Shape.twice Dot.twice
    Shape.twice > Square.area Circle.area Ring.area Line.area
    Square.area > Interfaces.burn
    Circle.area > Interfaces.burn
    Ring.area > Interfaces.burn
    Dot.twice > Interfaces.burn

    Classes.<clinit> > Cat.<init> Dog.<init> Cow.<init> Hen.<init> Bee.<init>
    Cat.<init> > Animal.<init>
    Dog.<init> > Animal.<init>
    Cow.<init> > Animal.<init>
    Hen.<init> > Animal.<init>
    Bee.<init> > Animal.<init>
    Classes.turn > StackLoad.turn Cat.speak Dog.speak Cow.speak Hen.speak Bee.speak
    Cat.speak > Classes.noise
    Dog.speak > Classes.noise
    Cow.speak > Classes.noise

    Thrower.turn > StackLoad.turn Thrower.catcher
    Thrower.catcher > Thrower.first Thrower.caught
    Thrower.first > Thrower.second
    Thrower.second > Thrower.third
    Thrower.third > Thrower.pitch
    Thrower.pitch > Ball.<init>
    Finally.turn > StackLoad.turn Finally.outer
    Finally.outer > Finally.inner Finally.tidy
    Finally.inner > Finally.risky Finally.mop
    Finally.risky > Finally.mop

    Locks.turn > StackLoad.turn Locks.<init> Locks.alone Locks.shared
    Locks.alone > Locks.again
    Locks.again > Locks.guarded
    Locks.shared > Locks.guarded
    Big.turn > StackLoad.turn Big.big
    Big.big > Big.part
    Tiny.turn > StackLoad.turn Tiny.<init> Tiny.get Tiny.set Tiny.add
    Tiny.add > Tiny.times
    Tiny.times > Tiny.mask
    Osr.turn > StackLoad.turn Osr.loop
    Osr.loop > Osr.step
    Wide.turn > StackLoad.turn Wide.spread
    Wide.spread > Wide.spread Wide.gather
    Hop.turn > StackLoad.turn Hop.one
    Hop.one > Hop.two
    Hop.two > Hop.three
    Hop.three > Hop.four
    Hop.four > Hop.five
    Hop.five > Hop.six

    library ~> StackLibrary.run
    StackLibrary.run > Lambdas.turn Streams.turn Sorting.turn Mirror.turn Handles.turn Proxies.turn
    StackLibrary.run > Copying.turn Checksums.turn Ciphers.turn Texts.turn Garbage.turn Numbers.turn
    StackLibrary.run > Shared.turn

    Lambdas.turn > StackLoad.turn Lambdas.apply
    Lambdas.apply ~> Lambdas.lambda$turn Lambdas.referenced
    Lambdas.lambda$turn > Lambdas.lambdaBurn
    Lambdas.referenced > Lambdas.lambdaBurn
    Streams.turn > StackLoad.turn Streams.primitive Streams.boxed
    Streams.primitive ~> Streams.lambda$primitive
    Streams.lambda$primitive > Streams.weigh
    Streams.boxed ~> Streams.pair Streams.lambda$boxed
    Streams.lambda$boxed > Streams.weigh
    Sorting.turn > StackLoad.turn
    Sorting.turn ~> Sorting.compare
    Sorting.compare > Sorting.key
    Mirror.turn > StackLoad.turn
    Mirror.turn ~> Mirror.target Mirror.<init>
    Mirror.target > Mirror.seen
    Mirror.<init> > Mirror.seen
    StackLibrary.run ~> Handles.<clinit>
    Handles.<clinit> > Handles.find
    Handles.turn > StackLoad.turn Handles.find
    Handles.turn ~> Handles.handled
    Proxies.turn > StackLoad.turn Proxies.<init>
    Proxies.turn ~> Proxies.invoke
    Proxies.invoke > Proxies.handler

    Copying.turn > StackLoad.turn Copying.copyBytes Copying.copyLongs Copying.copyObjects
    Copying.turn > Copying.compareBytes
    Checksums.turn > StackLoad.turn Checksums.checksum
    Ciphers.turn > StackLoad.turn Ciphers.counter Ciphers.galois
    Texts.turn > StackLoad.turn Texts.build Texts.search
    Garbage.turn > StackLoad.turn Garbage.small Garbage.large
    Numbers.turn > StackLoad.turn Numbers.waves
    Shared.turn > StackLoad.turn Locks.shared

    outside ~> StackOutside.run
    StackOutside.run > Native.turn Slow.turn Gone.turn Waiting.turn
    StackOutside.run ~> Native.<clinit>
    Native.<clinit> > Native.load

    Native.turn > StackLoad.turn Native.enter Native.sort Native.spin
    Native.enter > Java_StackOutside_00024Native_enter
    Java_StackOutside_00024Native_enter > stackload_first
    stackload_first > stackload_second
    stackload_second > stackload_third
    stackload_third ~> Native.back Native.bottom
    Native.back > Native.enter
    Native.sort > Java_StackOutside_00024Native_sort
    Java_StackOutside_00024Native_sort > stackload_sort
    stackload_sort ~> stackload_compare
    stackload_compare ~> Native.compare
    Native.compare > Native.rank
    Native.spin > Java_StackOutside_00024Native_spin
    Java_StackOutside_00024Native_spin > stackload_spin

    Slow.turn > StackLoad.turn Slow.outer
    Slow.outer > Slow.outer Fast.between Fast.crowd
    Fast.between > Slow.leaf Fast.end
    Fast.crowd > Slow.packed Fast.end
    Slow.packed > Slow.leaf Fast.end

    Gone.turn > StackLoad.turn Loader.<init> StackGone.applyAsInt
    Gone.turn ~> StackGone.<init> Loader.findClass
    StackGone.<init> > Base.<init>
    StackGone.<init> ~> Loader.findClass
    StackGone.applyAsInt > StackGone.down
    StackGone.down > StackGone.down StackGone.middle Base.value Sub.value
    StackGone.middle > StackGone.burn StackGone.rare
    StackGone.rare > Sub.<init>
    StackGone.rare ~> Loader.findClass
    Sub.<init> > Base.<init>
    Base.value > StackGone.burn
    Sub.value > StackGone.burn
    Waiting.turn > StackLoad.turn Waiting.nap
    Waiting.nap > Waiting.awake

    virtual ~> StackVirtual.run
    StackVirtual.run > Straight.<init> Yielding.<init>
    carrier ~> Straight.run Yielding.run
    Straight.run > Straight.down
    Straight.down > Straight.down Straight.bottom
    Yielding.run > Yielding.down
    Yielding.down > Yielding.down Yielding.bottom Yielding.up

    lines ~> StackLines.run
    StackLines.run > StackLines.plain StackLines.nested StackLines.calling StackLines.neighbours
    StackLines.nested > StackLines.inOuter
    StackLines.inOuter > StackLines.inInner
    StackLines.calling > StackLines.inFirst
    StackLines.inFirst > StackLines.inSecond
    StackLines.inSecond > StackLines.leaf
    StackLines.neighbours > StackLines.left StackLines.right

    changes ~> StackChanges.run
    StackChanges.run > Shifts.turn
    Shifts.turn > StackLoad.turn Shifter.<init> StackShift.applyAsInt
    Shifts.turn ~> StackShift.<init> Shifter.findClass
    StackShift.<init> > Ground.<init> Part.<init>
    StackShift.<init> ~> Shifter.findClass
    StackShift.applyAsInt > StackShift.loop StackShift.warm StackShift.outer StackShift.typed
    StackShift.applyAsInt > StackShift.caught StackShift.looping
    StackShift.loop > StackShift.burn
    StackShift.warm > StackShift.outer StackShift.typed StackShift.caught
    StackShift.outer > StackShift.middle Ground.value Later.value
    StackShift.middle > StackShift.inner Ground.value Later.value
    StackShift.inner > StackShift.later StackShift.burn
    StackShift.later > Later.<init>
    StackShift.later ~> Shifter.findClass
    StackShift.typed > StackShift.measure
    StackShift.measure > StackShift.burn
    StackShift.caught > StackShift.thrower StackShift.burn Part.size Piece.size
    StackShift.thrower > StackShift.pitch Part.size Piece.size
    StackShift.pitch > Piece.<init>
    StackShift.pitch ~> Shifter.findClass
    StackShift.looping > StackShift.burn
    Later.<init> > Ground.<init>
    Piece.<init> > Part.<init>
    Later.value > StackShift.burn
    Piece.size > StackShift.burn
";

/// Extra calls after a virtual thread has yielded. Its outer frames stay in the heap until
/// execution returns to them, so the carrier may appear to call any of its methods.
const AFTER_A_YIELD: &str = "
    carrier ~> Yielding.down Yielding.bottom Yielding.up
";

/// Extra calls for stacks that the JVM itself reports: they have no C frames.
const WITHOUT_C: &str = "
    Native.enter ~> Native.back Native.bottom
    Native.sort ~> Native.compare
";

/// Recursion depths, as (bottom, repeated, depth): a stack that contains `bottom` contains
/// `repeated` exactly `depth` times.
const DEPTHS: [(&str, &str, usize); 12] = [
    ("Deep.bottom", "Deep.down", 300),
    ("Mutual.bottom", "Mutual.even", 101),
    ("Mutual.bottom", "Mutual.odd", 100),
    ("Abyss.ground", "Abyss.fall", 950),
    ("Wide.gather", "Wide.spread", 50),
    ("Native.bottom", "Native.enter", 4),
    ("Native.bottom", "Native.back", 3),
    ("Fast.between", "Slow.outer", 20),
    ("Fast.crowd", "Slow.outer", 20),
    ("StackGone.middle", "StackGone.down", 30),
    ("Straight.bottom", "Straight.down", 100),
    ("Hop.six", "Hop.one", 1),
];

/// Top-level classes of the program.
const CLASSES: [&str; 9] = [
    "StackLoad",
    "StackCalls",
    "StackLibrary",
    "StackOutside",
    "StackVirtual",
    "StackLines",
    "StackGone",
    "StackChanges",
    "StackShift",
];

/// Source of the stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// A walker that finds every frame. Its stacks have to be correct.
    Complete,
    /// The same walker, but libraries have no symbols: frames outside the JVM's own code have no
    /// names.
    WithoutSymbols,
    /// A walk by frame pointers. A method that has just begun has not set up its frame pointer yet,
    /// so its caller is missing. Interpreted methods have no names. The C library has no frame
    /// pointers.
    FramePointers,
    /// The JVM itself, which reports Java frames only.
    Jvm,
}

/// Result of the check of one profile.
#[derive(Debug, Default)]
pub struct Report {
    /// Samples of the program's threads.
    pub samples: u64,
    /// Samples whose stack reaches the thread's entry.
    pub complete: u64,
    /// Frames of all samples.
    pub frames: u64,
    /// Frames without a name. With [`Walk::WithoutSymbols`], frames in libraries are not counted
    /// here.
    pub unnamed: u64,
    /// Calls that were compared with the table.
    pub calls: u64,
    /// Samples whose stack is impossible according to the table.
    pub wrong: u64,
    /// Samples whose stack lacks frames in the middle. There are two legitimate causes. If code is
    /// freed before it can be read, the names of the methods inlined there are lost. The other
    /// cause is described at [`Report::assert`].
    pub gaps: u64,
    /// Methods of the program that were seen, as the table writes them.
    pub methods: BTreeSet<String>,
    /// Frames of [`Report::unnamed`] that are in libraries without symbols. 0 with
    /// [`Walk::WithoutSymbols`].
    pub unnamed_library: u64,
    /// A few example stacks for each kind of problem.
    pub offenders: BTreeMap<&'static str, Vec<String>>,
}

/// Whether other frames may be between a caller and its callee (`~>`) or not (`>`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallPath {
    Direct,
    Through,
}

/// A problem with a stack.
#[derive(Debug)]
struct Problem {
    why: String,
    /// Whether missing frames can explain it.
    is_gap: bool,
}

/// The parsed table of calls.
#[derive(Debug)]
pub struct CallGraph {
    walk: Walk,
    calls: HashMap<(&'static str, &'static str), CallPath>,
}

impl CallGraph {
    /// Parses the table for stacks from this source.
    pub fn new(walk: Walk) -> Self {
        let more = if walk == Walk::Jvm { WITHOUT_C } else { AFTER_A_YIELD };
        let mut calls = HashMap::new();
        for line in CALLS.lines().chain(more.lines()) {
            let mut words = line.split_ascii_whitespace();
            let (Some(caller), Some(arrow)) = (words.next(), words.next()) else { continue };
            let call_path = if arrow == ">" { CallPath::Direct } else { CallPath::Through };
            calls.extend(words.map(|callee| ((caller, callee), call_path)));
        }
        Self { walk, calls }
    }

    /// Returns the scenes of a thread: the `turn` methods that its first method calls.
    pub fn scenes(&self, thread: &str) -> BTreeSet<&'static str> {
        let callees = |of: &str| -> Vec<&'static str> {
            self.calls
                .keys()
                .filter(|(caller, _)| *caller == of)
                .map(|(_, callee)| *callee)
                .collect()
        };
        let scenes = callees(thread).into_iter().flat_map(callees);
        scenes.filter(|scene| scene.ends_with(".turn")).collect()
    }

    /// Checks the stacks of the program's threads. `text` contains folded stacks with the thread as
    /// second frame.
    pub fn check(&self, text: &str) -> Report {
        let mut report = Report::default();
        for line in folded::parse(text) {
            if let Some(thread) = thread_of(&line) {
                self.check_line(thread, &line, &mut report);
            }
        }
        report
    }

    fn check_line(&self, thread: &str, line: &Line, report: &mut Report) {
        let frames: Vec<&str> =
            line.frames[2..].iter().map(String::as_str).filter(|f| !f.ends_with("_[k]")).collect();
        let is_complete = frames.first().is_some_and(|first| match self.walk {
            Walk::WithoutSymbols => first.starts_with("[unknown libc.so"),
            _ => is_entry(first),
        });
        let count = |prefix: &str| frames.iter().filter(|f| f.starts_with(prefix)).count() as u64;
        let (unnamed, library) = (count("[unknown"), count("[unknown lib"));
        report.samples += line.count;
        report.frames += line.count * frames.len() as u64;
        let is_expected = self.walk == Walk::WithoutSymbols;
        report.unnamed += line.count * if is_expected { unnamed - library } else { unnamed };
        report.unnamed_library += if is_expected { 0 } else { line.count * library };
        if is_complete {
            report.complete += line.count;
        } else {
            report.add_example("incomplete", "", line);
        }
        if unnamed > library || unnamed > 0 && !is_expected {
            report.add_example("without a name", "", line);
        }
        let mut problems = self.wrong_calls(is_complete.then_some(thread), &frames, line, report);
        problems.extend(mixed_generations(&frames));
        if is_complete {
            problems.extend(self.wrong_depth(&frames));
        }
        if let Some(Problem { why, .. }) = problems.iter().find(|problem| !problem.is_gap) {
            report.wrong += line.count;
            report.add_example("wrong", why, line);
        } else if let Some(Problem { why, .. }) = problems.first() {
            report.gaps += line.count;
            report.add_example("with gaps", why, line);
        }
    }

    /// Returns the calls on a stack that the program never makes. Without a thread, the start of
    /// the stack is not checked.
    fn wrong_calls(
        &self,
        thread: Option<&str>,
        frames: &[&str],
        line: &Line,
        report: &mut Report,
    ) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut caller = thread.map(str::to_owned);
        let (mut call_path, mut is_hidden) = (CallPath::Direct, false);
        for (i, frame) in frames.iter().enumerate() {
            let Some(callee) = method(frame) else {
                call_path = CallPath::Through;
                is_hidden |= self.hides(frame);
                continue;
            };
            let is_top = i + 1 == frames.len();
            let is_unknown = is_hidden || self.walk == Walk::FramePointers && is_top;
            if let Some(caller) = caller.filter(|_| !is_unknown) {
                report.calls += line.count;
                let (why, is_gap) = match self.calls.get(&(caller.as_str(), callee.as_str())) {
                    Some(known) if *known == CallPath::Through || call_path == CallPath::Direct => {
                        (None, false)
                    }
                    Some(_) => (Some("calls directly, without other frames between"), false),
                    None => (Some("does not call"), self.calls_indirectly(&caller, &callee)),
                };
                let text = |why| format!("{caller} {why} {callee}");
                problems.extend(why.map(|why| Problem { why: text(why), is_gap }));
            }
            report.methods.insert(callee.clone());
            (caller, call_path, is_hidden) = (Some(callee), CallPath::Direct, false);
        }
        problems
    }

    /// Whether `from` calls `to` indirectly.
    fn calls_indirectly(&self, from: &str, to: &str) -> bool {
        let mut known = BTreeSet::from([from]);
        let mut next = vec![from];
        while let Some(caller) = next.pop() {
            for (_, callee) in self.calls.keys().filter(|(from, _)| *from == caller) {
                if *callee == to {
                    return true;
                }
                if known.insert(callee) {
                    next.push(callee);
                }
            }
        }
        false
    }

    /// Whether callers may be missing next to this frame.
    fn hides(&self, frame: &str) -> bool {
        let is_java = frame.contains('.') && !frame.contains("::");
        self.walk == Walk::FramePointers && (frame == "Interpreter" || !is_java)
    }

    fn wrong_depth(&self, frames: &[&str]) -> Option<Problem> {
        let methods: Vec<String> = frames.iter().filter_map(|frame| method(frame)).collect();
        let count = |of: &str| methods.iter().filter(|method| *method == of).count();
        DEPTHS.into_iter().find_map(|(bottom, repeated, depth)| {
            let found = count(repeated);
            let is_hidden = frames.iter().any(|frame| self.hides(frame));
            let is_right = match self.walk {
                // One repetition is missing if the bottom method has just begun.
                Walk::FramePointers => is_hidden || found + 1 == depth || found == depth,
                _ => found == depth,
            };
            let is_wrong = count(bottom) > 0 && !is_right;
            let why = format!("{found} of {depth} {repeated} under {bottom}");
            // Between two calls, HotSpot's debug information may attribute an instruction to the
            // method that is inlined next. The stack then has too few frames of `repeated`, or one
            // too many. Such a stack counts as one with gaps.
            is_wrong.then_some(Problem { why, is_gap: found <= depth + 1 })
        })
    }
}

/// Whether this number of impossible stacks is acceptable: see [`Report::is_possible`].
pub fn is_rare(wrong: u64, samples: u64) -> bool {
    wrong <= 1 + samples / 5_000
}

impl Report {
    /// Returns the percentage of complete samples and that of named frames.
    pub fn quality(&self) -> (f64, f64) {
        let share = |part: u64, of: u64| part as f64 * 100.0 / of.max(1) as f64;
        (share(self.complete, self.samples), 100.0 - share(self.unnamed, self.frames))
    }

    /// Whether there are almost no impossible stacks. A few are accepted, because there are rare
    /// instants at which the words on the stack look like those of another state: at two or three
    /// instructions, in the kernel's signal frames, and in the JVM's own stubs.
    pub fn is_possible(&self) -> bool {
        is_rare(self.wrong, self.samples)
    }

    /// Whether at most 3 % of the stacks are impossible. This limit applies if the C library has
    /// no unwind tables: the walker then guesses some of the steps from a callback to the function
    /// of the C library that has called it.
    pub fn is_possible_without_tables(&self) -> bool {
        self.wrong * 100 <= self.samples * 3
    }

    /// Asserts the promised quality: at most 1 % incomplete stacks, 0.3 % frames without a name and
    /// 4 % stacks with gaps, and impossible stacks as in [`Report::is_possible`]. Gaps are
    /// accepted, because near a method's end, HotSpot's debug information names the method that was
    /// inlined last. While a recursion returns, a stack may therefore still show the recursion's
    /// bottom method, although that method and some of its callers have already returned.
    ///
    /// # Panics
    /// If the quality is lower.
    pub fn assert(&self, title: &str) {
        let (complete, named) = self.quality();
        println!("{title}: {self}{}", self.offenders());
        let is_right = complete >= 99.0
            && named >= 99.7
            && self.is_possible()
            && self.gaps * 100 <= self.samples * 4;
        assert!(is_right, "{title}: {self}{}", self.offenders());
    }

    /// Asserts the quality for a C library that has neither unwind tables nor frame pointers, so
    /// that the callers of its callbacks are guessed: at most 7 % incomplete stacks, 1 % frames
    /// without a name, 3 % impossible stacks and 3 % stacks with gaps.
    ///
    /// # Panics
    /// If the quality is lower.
    pub fn assert_without_tables(&self, title: &str) {
        let (complete, named) = self.quality();
        println!("{title}: {self}");
        let is_right = complete >= 93.0
            && named >= 99.0
            && self.is_possible_without_tables()
            && self.gaps * 100 <= self.samples * 3;
        assert!(is_right, "{title}: {self}{}", self.offenders());
    }

    /// Keeps a stack as an example for the message, at most `SHOWN` per kind of problem.
    fn add_example(&mut self, kind: &'static str, why: &str, line: &Line) {
        const SHOWN: usize = 5;
        let stacks = self.offenders.entry(kind).or_default();
        if stacks.len() < SHOWN {
            stacks.push(format!("{why} ({} samples): {}", line.count, brief(&line.frames)));
        }
    }

    /// Formats [`Report::offenders`] for people.
    pub fn offenders(&self) -> String {
        let mut text = String::new();
        for (kind, stacks) in &self.offenders {
            write!(text, "\n{kind}:\n  {}", stacks.join("\n  ")).expect("a string grows");
        }
        text
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (complete, named) = self.quality();
        write!(
            f,
            "{} samples, {complete:.2} % complete; {} frames, {named:.3} % named ({} of {} others in \
             libraries without symbols); {} calls compared, {} samples wrong, {} with gaps; \
             {} methods",
            self.samples,
            self.frames,
            self.unnamed_library,
            self.unnamed,
            self.calls,
            self.wrong,
            self.gaps,
            self.methods.len(),
        )
    }
}

/// Returns the table's name of the line's thread, or `None` if it is not one of the program's
/// threads.
fn thread_of(line: &Line) -> Option<&'static str> {
    let (name, _tid) = line.frames[1].rsplit_once('-')?;
    // The kernel limits thread names to 15 bytes. A longer name is cut at the end or, by some versions
    // of HotSpot, in the middle. The first seven bytes always remain.
    if name.starts_with("ForkJoi") {
        return Some("carrier");
    }
    ["calls", "library", "outside", "virtual", "lines", "changes"]
        .into_iter()
        .find(|known| *known == name)
}

/// Whether a thread starts in this function.
pub fn is_entry(frame: &str) -> bool {
    ["thread_native_entry", "start", "start_thread", "clone", "clone3", "__clone", "__clone3"]
        .contains(&frame)
}

/// Returns the method of a frame as the table writes it, or `None` if it is not part of the
/// program.
fn method(frame: &str) -> Option<String> {
    if frame.starts_with("stackload_") || frame.starts_with("Java_StackOutside") {
        return Some(frame.to_owned());
    }
    let is_one = |class: &&str| {
        let rest = frame.strip_prefix(*class);
        rest.is_some_and(|rest| rest.starts_with(|c: char| c == '.' || c == '$' || c.is_numeric()))
    };
    // The class that the JDK generates for a lambda expression is not part of the program.
    if !CLASSES.iter().any(is_one) || frame.contains("$$Lambda") {
        return None;
    }
    let (class, method) = frame.rsplit_once('.')?;
    let class = class.rsplit('$').next()?.trim_end_matches(|c: char| c.is_numeric());
    let method = match method.rsplit_once('$') {
        Some((name, number)) if number.chars().all(char::is_numeric) => name,
        _ => method,
    };
    Some(format!("{class}.{method}"))
}

/// Reports a stack that contains frames of two generations of the classes that are repeatedly
/// loaded and unloaded.
fn mixed_generations(frames: &[&str]) -> Option<Problem> {
    let numbers: BTreeSet<&str> = frames
        .iter()
        .filter_map(|frame| {
            let made = frame.strip_prefix("StackGone").or(frame.strip_prefix("StackShift"))?;
            made.split(['.', '$']).next()
        })
        .collect();

    let why = format!("generations {numbers:?} on one stack");
    (numbers.len() > 1).then_some(Problem { why, is_gap: false })
}

/// Formats a stack for people: repeated frames are counted, kernel frames are omitted.
fn brief(frames: &[String]) -> String {
    let user = frames.iter().take_while(|frame| !frame.ends_with("_[k]")).count();
    let mut text = String::new();
    for same in frames[..user].chunk_by(|a, b| a == b) {
        let times = if same.len() > 1 { format!(" x{}", same.len()) } else { String::new() };
        write!(text, ";{}{times}", same[0]).expect("a string grows");
    }
    text.split_off(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: &str = "java;calls-7;start_thread;java.lang.Thread.run;StackCalls.run;";

    /// Returns the number of wrong samples and of samples with gaps.
    fn check(stack: &str) -> (u64, u64) {
        let report = CallGraph::new(Walk::Complete).check(&format!("{BEGIN}{stack} 1"));
        (report.wrong, report.gaps)
    }

    #[test]
    fn check_distinguishes_wrong_stacks_from_gaps() {
        let down = "StackCalls$Deep.down;";
        let whole = format!("StackCalls$Deep.turn;{}StackCalls$Deep.bottom", down.repeat(300));
        assert_eq!(check(&whole), (0, 0));
        assert_eq!(check(&whole.replacen(down, "", 1)), (0, 1));
        assert_eq!(check(&whole.replacen("StackCalls$Deep.turn;", "", 1)), (0, 1));
        assert_eq!(check(&whole.replacen("turn;", "turn;memcpy;", 1)), (1, 0));
        assert_eq!(check(&whole.replacen(down, &down.repeat(2), 1)), (0, 1));
        assert_eq!(check(&whole.replacen(down, &down.repeat(3), 1)), (1, 0));
        assert_eq!(check(&whole.replacen("Deep.turn", "Mutual.turn", 1)), (1, 0));
    }

    #[test]
    fn frame_names_map_to_call_graph_methods() {
        for (frame, expected) in [
            ("StackCalls$Interfaces$Square.area", Some("Square.area")),
            ("StackLibrary$Lambdas.lambda$turn$0", Some("Lambdas.lambda$turn")),
            ("StackLibrary$Lambdas$$Lambda/0x0000.applyAsLong", None),
            ("StackGone0417$Base.value", Some("Base.value")),
            ("StackGone0417.down", Some("StackGone.down")),
            ("StackGone0417.<init>", Some("StackGone.<init>")),
            ("StackOverflow::check", None),
            ("java.lang.StackWalker.walk", None),
        ] {
            assert_eq!(method(frame).as_deref(), expected, "{frame}");
        }
    }

    #[test]
    fn stack_with_two_class_generations_is_wrong() {
        assert!(mixed_generations(&["StackGone0001.down", "StackGone0001$Base.value"]).is_none());
        assert!(mixed_generations(&["StackGone0001.down", "StackGone0002$Base.value"]).is_some());
    }
}
