//! Records stacks of live JVMs for `tests/walk/recordings`.
//!
//! ```text
//! cargo run --release -p walk-harness --example record -- FOLDER [SECONDS [RUNTIME [FLAGS]]]
//! ```
//!
//! `StackLoad` runs under this program, which stops its threads one after the other and takes
//! them through some thousand instructions each. At every instruction the walker of `bpf/walk/`
//! runs on the live thread, and its answer is compared with two things that know nothing of it:
//! the calls and returns that were counted since the thread was stopped ([`shadow`]), and the
//! table of the program's calls (`tests/lib/callgraph.rs`). One stack of each kind of instant
//! ([`kinds`]) is recorded. Where the walker disagrees, nothing is recorded: that is told.
#![allow(clippy::print_stdout, reason = "for whoever runs it")]
#![allow(missing_docs, reason = "a program's own")]

mod kinds;
mod live;
mod shadow;
mod tracee;

use std::{
    collections::{BTreeMap, HashMap},
    error::Error,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    callgraph::{CallGraph, Walk},
    runtimes::{self, Runtime},
    stackload::{self, Native},
};
use walk_harness::{
    harness::{self, Stack, Start},
    recording::Recording,
};

use crate::{
    kinds::{Kind, Seen},
    live::Live,
    shadow::{Insn, Shadow, Step, decode},
    tracee::{Stop, Tracee},
};

/// Stacks that are deeper take long to walk at each instruction, and are large.
const MAX_DEPTH: usize = 60;
/// Instructions of a thread at a time.
const STEPS: usize = 4_000;
/// A recording that is larger is left to others of its kind.
const MAX_BYTES: usize = 9_000;
/// `walk_end` of a stack that reaches the thread's entry with no step guessed.
const ENTRY: u64 = 5;

/// What is recorded of where nothing is said.
const RUNS: [(&str, &str); 10] = [
    ("temurin-11", ""),
    ("temurin-17", ""),
    ("temurin-21", ""),
    ("temurin-25", ""),
    ("temurin-11", "-XX:TieredStopAtLevel=1"),
    ("temurin-21", "-XX:+UseZGC -XX:+ZGenerational"),
    ("temurin-25", "-XX:+UseZGC"),
    ("temurin-17", "-Xint"),
    ("temurin-21", "-XX:-TieredCompilation"),
    ("musl-17", ""),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().ok_or("which folder?")?);
    let seconds = args.next().map_or(Ok(30), |n| n.parse())?;
    fs::create_dir_all(&folder)?;
    tracee::tick();
    match args.next() {
        Some(name) => run(&folder, &name, &args.next().unwrap_or_default(), seconds)?,
        None => {
            for (name, flags) in RUNS {
                run(&folder, name, flags, seconds)?;
            }
        }
    }
    Ok(())
}

/// The program's threads, each in a JVM of its own: they would take each other's processors.
fn run(folder: &Path, name: &str, flags: &str, seconds: u64) -> Result<(), Box<dyn Error>> {
    let runtime = runtimes::named(name);
    let parts = ["calls", "library", "outside", "virtual"];
    let mut seen = Seen::default();
    for part in parts.into_iter().filter(|part| *part != "virtual" || runtime.major >= 21) {
        let all_flags = format!("-Dstackload.parts={part} {flags}");
        let mut load = stackload::start(runtime, &all_flags, Native::WithoutFramePointers);
        load.go(seconds as f64 + 60.0);
        // The first second has what is interpreted and compiled for the first time.
        thread::sleep(Duration::from_millis(300));
        let mut recorder = Recorder::new(folder, runtime, flags, Live::new(&load)?, seen);
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut turn = 0_usize;
        while Instant::now() < end {
            turn += 1;
            let threads = threads(load.pid());
            let Some((tid, name)) = threads.get(turn % threads.len().max(1)) else {
                thread::sleep(Duration::from_millis(10));
                continue;
            };
            // Threads come and go.
            if let Err(error) = recorder.thread(*tid, name) {
                recorder.count("a thread that was gone", &error.to_string());
            }
            thread::sleep(Duration::from_millis(3 + turn as u64 % 17));
        }
        recorder.tell(part);
        seen = recorder.seen;
        load.kill();
    }
    Ok(())
}

/// The threads of the program.
fn threads(pid: u32) -> Vec<(i32, String)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let named = tasks.filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        Some((task.file_name().to_str()?.parse().ok()?, name.trim_end().to_owned()))
    });
    let is_ours =
        |name: &str| ["calls", "library", "outside"].contains(&name) || name.starts_with("ForkJoi");
    named.filter(|(_, name)| is_ours(name)).collect()
}

struct Recorder<'a> {
    folder: &'a Path,
    runtime: &'a Runtime,
    flags: String,
    live: Live,
    table: CallGraph,
    seen: Seen,
    names_of_stubs: HashMap<u64, String>,
    steps: u64,
    agreed: u64,
    /// Where the interpreter has no frame.
    early: u64,
    recorded: usize,
    /// Files of the thread that is looked at.
    found: Vec<(String, Vec<u8>)>,
    disagreements: usize,
    /// Where deoptimisation begins, and other rare code.
    rare: Vec<u64>,
    turn: usize,
    /// What happened how often, with an example.
    told: BTreeMap<String, (u64, String)>,
}

impl<'a> Recorder<'a> {
    fn new(
        folder: &'a Path,
        runtime: &'a Runtime,
        flags: &str,
        mut live: Live,
        seen: Seen,
    ) -> Self {
        let rare = live.rare();
        Self {
            folder,
            runtime,
            flags: flags.into(),
            live,
            table: CallGraph::new(Walk::Whole),
            seen,
            names_of_stubs: HashMap::new(),
            steps: 0,
            agreed: 0,
            early: 0,
            recorded: 0,
            found: Vec::new(),
            disagreements: 0,
            rare,
            turn: 0,
            told: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: &str, example: &str) {
        self.told.entry(what.into()).or_insert_with(|| (0, example.into())).0 += 1;
    }

    fn tell(&self, part: &str) {
        println!(
            "{} {} {part}: {} instructions, at {} of them the walker and the count agreed, at {} \
             the interpreter was without a frame; {} recorded",
            self.runtime.name, self.flags, self.steps, self.agreed, self.early, self.recorded
        );
        for (what, (times, example)) in &self.told {
            println!("  {times:6} x {what}: {example}");
        }
    }

    /// Whether the program's table of calls has nothing against a stack. Where an inlined method
    /// ends, HotSpot tells of its neighbour, which leaves gaps in the table's eyes.
    fn is_in_table(&mut self, thread: &str, stack: &Stack, with_gaps: bool) -> bool {
        let names = self.live.names(stack).join(";");
        let report = self.table.check(&format!("java;{thread}-1;{names} 1"));
        let is_whole = report.samples == 1 && report.complete == 1 && report.wrong == 0;
        is_whole && (with_gaps || report.gaps == 0)
    }

    /// Takes a thread through some thousand instructions. Where walker and count disagree, one of
    /// the two may have been wrong for longer than it shows: then nothing is kept.
    fn thread(&mut self, tid: i32, name: &str) -> Result<(), Box<dyn Error>> {
        let seen = self.seen.clone();
        self.found.clear();
        self.disagreements = 0;
        let result = self.steps_of(tid, name);
        let found = std::mem::take(&mut self.found);
        if self.disagreements > 0 {
            self.seen = seen;
            return result;
        }
        for (file, bytes) in found {
            fs::write(self.folder.join(file), bytes)?;
            self.recorded += 1;
        }
        result
    }

    fn steps_of(&mut self, tid: i32, name: &str) -> Result<(), Box<dyn Error>> {
        self.live.refresh()?;
        let mut tracee = Tracee::stop(tid)?;
        // Every third thread is stopped where it is seldom found.
        self.turn += 1;
        if self.turn.is_multiple_of(3)
            && let Some(&place) = self.rare.get(self.turn / 3 % self.rare.len().max(1))
            && tracee.run_to(place, 0)? == Stop::Away
        {
            return Ok(());
        }
        self.live.moved();
        let first = start(&tracee.registers()?);
        let stack = self.live.walk(&first);
        if stack.frames.len() > MAX_DEPTH {
            return Ok(());
        }
        if stack.end != ENTRY || !self.is_in_table(name, &stack, false) {
            self.count("a stack that the table does not know, to begin with", "");
            return Ok(());
        }
        let trail = self.live.trail(&first);
        let top = self.live.word(first.sp);
        let is_calling = self.live.is_interpreter(first.ip) && self.live.is_interpreter(top);
        let mut shadow = Some(Shadow::new(&trail[1..], is_calling.then_some(top)));
        let (mut since_entry, mut since_leave) = (usize::MAX / 2, usize::MAX / 2);
        let mut region = self.region(first.ip);
        let mut signals = 0;
        // Since the walker and the count agreed last.
        let mut doubts: Vec<(String, String)> = Vec::new();
        for _ in 0..STEPS {
            let regs = tracee.registers()?;
            let code = self.live.bytes::<16>(regs.rip).unwrap_or_default();
            let insn = decode(&code);
            let old_top = self.live.word(regs.rsp);
            let is_sigreturn = regs.rax == 15;
            let stop = tracee.step()?;
            self.live.moved();
            let (from, now) = (
                regs.rip,
                match stop {
                    Stop::Away => return Ok(()),
                    _ => tracee.registers()?,
                },
            );
            if let Stop::Signal(_) = stop {
                // The instruction has not run: it is interrupted before it.
                let interrupted = now.rip;
                if tracee.step()? != Stop::Stepped {
                    return Ok(());
                }
                self.live.moved();
                let now = tracee.registers()?;
                if let Some(shadow) = &mut shadow {
                    shadow.signal(interrupted, self.live.word(now.rsp));
                }
                signals += 1;
                continue;
            }
            self.steps += 1;
            let top = self.live.word(now.rsp);
            let step = Step {
                insn,
                from,
                to: now.rip,
                old_top,
                top,
                is_sigreturn,
                from_interpreter: self.live.is_interpreter(from),
                top_interpreter: self.live.is_interpreter(top),
            };
            if insn == Insn::Syscall && is_sigreturn {
                signals -= 1;
            }
            let live = &mut self.live;
            if shadow.as_mut().is_some_and(|s| !s.step(&step, |a, b| same_code(live, a, b))) {
                shadow = None;
            }
            // What generated code calls of the JVM takes long, and is like other native code.
            let is_out = self.live.is_code(from) && !self.live.is_code(now.rip);
            let now = match insn == Insn::Call && is_out && !self.steps.is_multiple_of(4) {
                true => {
                    if tracee.run_to(top, now.rsp + 8)? == Stop::Away {
                        return Ok(());
                    }
                    self.live.moved();
                    if let Some(shadow) = &mut shadow {
                        shadow.callers.pop();
                    }
                    tracee.registers()?
                }
                false => now,
            };
            let old = std::mem::replace(&mut region, self.region(now.rip));
            let is_entered = region != old && insn != Insn::Return;
            since_entry = if is_entered { 0 } else { since_entry.saturating_add(1) };
            since_leave = if code[0] == 0xc9 { 0 } else { since_leave.saturating_add(1) };
            let is_entry = insn == Insn::Call || is_entered;
            since_entry = if is_entry { 0 } else { since_entry };

            let at = start(&now);
            let mut kind = self.kind(&at, since_entry, since_leave);
            if signals > 0 {
                kind.name = format!("signal: {}", kind.name);
            }
            if name.starts_with("ForkJoi") {
                kind.name = format!("virtual thread: {}", kind.name);
            }
            let Some(shadow) = &shadow else {
                // Without a count there is the table, for what the count does not know.
                if kind.name.contains("deoptimisation") && self.seen.wants(&kind) {
                    self.record(&at, kind, name, false)?;
                }
                continue;
            };
            let trail = self.live.trail(&at);
            let callers = trail[1..].iter().zip(shadow.callers.iter().rev());
            let is_same = trail.len() == shadow.callers.len() + 1;
            let mut is_deoptimised = false;
            let live = &mut self.live;
            let is_same = is_same
                && callers.into_iter().all(|(&found, &counted)| {
                    let is_patched = found != counted && same_code(live, found, counted);
                    is_deoptimised |= is_patched;
                    found == counted || is_patched
                });
            if !is_same {
                // Where the interpreter has no frame (a method that is entered or left, or one
                // that is an intrinsic), or calls a part of itself, it is not told as such.
                let counted: Vec<u64> = shadow.callers.iter().rev().copied().collect();
                let first = counted.iter().zip(&trail[1..]).take_while(|(a, b)| a == b).count();
                if counted.get(first).is_some_and(|caller| self.live.is_interpreter(*caller))
                    && trail.get(1 + first..) == counted.get(first + 1..)
                {
                    self.early += 1;
                    continue;
                }
                let guess =
                    if self.live.walk(&at).end >> 8 > 0 { ", and said to be a guess" } else { "" };
                let code = self.live.bytes::<5>(at.ip).unwrap_or_default();
                let what = format!("{}{guess}", kind.name);
                self.disagreements += 1;
                let tail = |trail: &[u64]| format!("{:x?}", &trail[..trail.len().min(4)]);
                let example = format!(
                    "{} {code:02x?} ip {:x}, {} frames {}, counted {} {}",
                    kind.detail,
                    at.ip,
                    trail.len() - 1,
                    tail(&trail[1..]),
                    counted.len(),
                    tail(&counted)
                );
                doubts.push((what, example));
                continue;
            }
            self.agreed += 1;
            // The count is right, so the walker was wrong before.
            for (what, example) in doubts.drain(..) {
                self.count(&format!("WRONG at {what}"), &example);
            }
            if is_deoptimised {
                kind.name = "deoptimised caller".into();
            }
            if self.seen.wants(&kind) {
                self.record(&at, kind, name, true)?;
            }
        }
        if let Some((what, example)) = doubts.first() {
            let what = format!("no agreement since {what}");
            let example = example.clone();
            self.count(&what, &example);
        }
        Ok(())
    }

    /// Which code an address is in: that of a blob, the interpreter's, a file's.
    fn region(&mut self, ip: u64) -> u64 {
        if self.live.is_interpreter(ip) {
            return 1;
        }
        if self.live.is_code(ip) { self.live.blob(ip).begin } else { 2 }
    }

    fn kind(&mut self, at: &Start, since_entry: usize, since_leave: usize) -> Kind {
        let code = self.live.bytes::<16>(at.ip).unwrap_or_default();
        let blob =
            if self.live.is_code(at.ip) { self.live.blob(at.ip) } else { Default::default() };
        let name = match blob.kind {
            4 => self.name_of_stub(at),
            _ => String::new(),
        };
        let instant = kinds::Instant { ip: at.ip, blob, code: &code, since_entry, since_leave };
        kinds::kind(&self.live, &instant, || name)
    }

    fn name_of_stub(&mut self, at: &Start) -> String {
        if let Some(name) = self.names_of_stubs.get(&at.ip) {
            return name.clone();
        }
        let stack = self.live.walk(at);
        let name = self.live.names(&stack).pop().unwrap_or_default();
        self.names_of_stubs.insert(at.ip, name.clone());
        name
    }

    /// Records where the thread is.
    fn record(
        &mut self,
        at: &Start,
        kind: Kind,
        thread: &str,
        is_counted: bool,
    ) -> Result<(), Box<dyn Error>> {
        let mut recording = self.live.record(at)?;
        let (end, guess) = (recording.stack.end & 0xff, recording.stack.end >> 8);
        recording.names = self.live.names(&recording.stack);
        if end != ENTRY {
            self.count(&format!("not to the entry at {}", kind.name), "");
            return Ok(());
        }
        if !self.is_in_table(thread, &recording.stack, is_counted) {
            let what = format!("not in the table at {}", kind.name);
            self.count(&what, &recording.names.join(";"));
            return Ok(());
        }
        let Kind { name, detail } = &kind;
        recording.about = format!("{} {}: {name}: {detail}", self.runtime.name, self.flags);
        recording.truth = match is_counted {
            true => "calls and returns counted since a stack that the call table knows",
            false => "the call table",
        }
        .into();
        if guess > 0 {
            recording.about += ", partly guessed";
        }
        // What was recorded is enough.
        let again = harness::walk(&mut &recording, at);
        if again != recording.stack {
            self.count("a recording that is not walked as the live thread", name);
            return Ok(());
        }
        if self.save(&recording, &kind)? {
            self.seen.add(&kind);
        }
        Ok(())
    }

    /// Writes the file, unless it is large.
    fn save(&mut self, recording: &Recording, kind: &Kind) -> Result<bool, Box<dyn Error>> {
        let bytes = recording.compressed()?;
        if bytes.len() > MAX_BYTES {
            return Ok(false);
        }
        let words = format!("{} {} {} {}", self.runtime.name, self.flags, kind.name, kind.detail);
        let words: Vec<String> = words
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| !word.is_empty() && *word != "XX" && *word != "temurin")
            .map(str::to_ascii_lowercase)
            .collect();
        self.found.push((format!("{}.gz", words.join("-")), bytes));
        Ok(true)
    }
}

/// Whether two addresses lie in the same method.
fn same_code(live: &mut Live, a: u64, b: u64) -> bool {
    let of = live.blob(a.wrapping_sub(1));
    of.kind != 0 && (of.begin..of.end).contains(&b)
}

fn start(regs: &libc::user_regs_struct) -> Start {
    Start { ip: regs.rip, sp: regs.rsp, fp: regs.rbp, ax: regs.rax, bx: regs.rbx, r13: regs.r13 }
}
