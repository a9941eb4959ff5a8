//! Single-steps threads of a JVM through several thousand instructions each, and at each instruction
//! compares the walker's result with the shadow stack and with the table of calls.

use std::{
    collections::{BTreeMap, HashMap},
    error::Error,
    fs,
    path::Path,
};

use jvmprobe_tests::{
    callgraph::{CallGraph, Walk},
    runtimes::Runtime,
};
use walk_harness::harness::{Registers, Stack};

use crate::{
    arch::{self, decode},
    kinds::Seen,
    live::Live,
    shadow::{Insn, Shadow, Step},
    tracee::{Stop, Tracee},
};

/// Maximum depth. Deeper stacks take too long to walk at each instruction, and make large
/// recordings.
const MAX_DEPTH: usize = 60;
/// Number of instructions per visit to a thread.
const STEPS: usize = 4_000;
/// Number of instructions per visit to the `changes` thread, whose code is deoptimised all the
/// time. A visit begins close to a deoptimisation or to an entry by on-stack replacement.
const STEPS_OF_CHANGES: usize = 1_500;
/// Low byte of `walk_end` for a stack that reaches the thread's entry. The bits above it are 0 if no
/// step was guessed.
const ENTRY: u64 = 5;
/// Low byte of `walk_end` for a stack that ends where no caller is left.
const OUTERMOST: u64 = 1;

/// Recorder for one run of a JVM.
pub struct Recorder<'a> {
    pub folder: &'a Path,
    pub runtime: &'a Runtime,
    pub flags: String,
    pub live: Live,
    table: CallGraph,
    pub seen: Seen,
    pub names_of_stubs: HashMap<u64, String>,
    steps: u64,
    agreed: u64,
    /// Number of instructions at which the interpreter had no frame.
    without_frame: u64,
    recorded: usize,
    /// Files recorded in the current visit to a thread, as name and contents.
    pub found: Vec<(String, Vec<u8>)>,
    /// Files of `found` that were recorded while frames were being created, with the callers at
    /// that time. They can be checked only when the new frames run.
    unverified: Vec<(String, Vec<u64>)>,
    disagreements: usize,
    /// Addresses where deoptimisation starts, and entries of methods for on-stack replacement.
    rare: Vec<u64>,
    /// Addresses for the `changes` thread: functions of the JVM that are called shortly before or
    /// after deoptimisation or on-stack replacement, and the code that creates frames.
    turning_points: Vec<u64>,
    functions: usize,
    turn: usize,
    /// Events by description, with their number and an example.
    events: BTreeMap<String, (u64, String)>,
}

impl<'a> Recorder<'a> {
    pub fn new(
        folder: &'a Path,
        runtime: &'a Runtime,
        flags: &str,
        mut live: Live,
        seen: Seen,
    ) -> Self {
        let (making, loops) = live.rare_code();
        let functions = live.turning_points();
        let turning_points = [&functions[..], &making].concat();
        Self {
            folder,
            runtime,
            flags: flags.into(),
            live,
            table: CallGraph::new(Walk::Complete),
            seen,
            names_of_stubs: HashMap::new(),
            steps: 0,
            agreed: 0,
            without_frame: 0,
            recorded: 0,
            found: Vec::new(),
            unverified: Vec::new(),
            disagreements: 0,
            rare: [making, loops].concat(),
            turning_points,
            functions: functions.len(),
            turn: 0,
            events: BTreeMap::new(),
        }
    }

    pub fn count(&mut self, what: &str, example: &str) {
        self.events.entry(what.into()).or_insert_with(|| (0, example.into())).0 += 1;
    }

    pub fn print_summary(&self, part: &str) {
        println!(
            "{} {} {part}: {} instructions, at {} of them the walker and the shadow stack agreed, \
             at {} the interpreter had no frame; {} recorded",
            self.runtime.name,
            self.flags,
            self.steps,
            self.agreed,
            self.without_frame,
            self.recorded
        );
        for (what, (times, example)) in &self.events {
            println!("  {times:6} x {what}: {example}");
        }
    }

    /// Whether a stack with this `walk_end` reaches the thread's entry. On musl, a stack that ends where
    /// no caller is left counts, too, because musl's own code has no unwind table that marks the entry.
    pub fn reaches_entry(&self, end: u64) -> bool {
        end & 0xff == ENTRY || self.runtime.musl && end & 0xff == OUTERMOST
    }

    /// Whether a stack reaches the thread's entry without a guess. On musl, guesses are allowed, because
    /// the steps to the entry are guesses there.
    fn has_no_guess(&self, end: u64) -> bool {
        self.reaches_entry(end) && (end >> 8 == 0 || self.runtime.musl)
    }

    /// Whether a stack is correct according to the program's table of calls. Near the end of an
    /// inlined method, HotSpot's debug information names the neighbouring inlined method instead.
    /// According to the table, this is a gap; `with_gaps` accepts it.
    pub fn is_in_table(&mut self, thread: &str, stack: &Stack, with_gaps: bool) -> bool {
        let names = self.live.names(stack).join(";");
        let report = self.table.check(&format!("java;{thread}-1;{names} 1"));
        let is_valid = report.samples == 1 && report.complete == 1 && report.wrong == 0;
        is_valid && (with_gaps || report.gaps == 0)
    }

    /// Single-steps a thread through several thousand instructions. If walker and shadow stack
    /// disagree, one of them may have been wrong for longer than is visible, so no recording of this
    /// visit is kept.
    pub fn thread(&mut self, tid: i32, name: &str) -> Result<(), Box<dyn Error>> {
        let seen = self.seen.clone();
        self.found.clear();
        self.unverified.clear();
        self.disagreements = 0;
        let result = self.step_thread(tid, name);
        let mut found = std::mem::take(&mut self.found);
        found.retain(|(file, _)| self.unverified.iter().all(|(unsure, _)| unsure != file));
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

    fn step_thread(&mut self, tid: i32, name: &str) -> Result<(), Box<dyn Error>> {
        self.live.refresh()?;
        let mut tracee = Tracee::stop(tid)?;
        // Every third visit begins in rarely executed code, and so does every visit to the `changes`
        // thread.
        self.turn += 1;
        let changes = name == "changes";
        if (changes || self.turn.is_multiple_of(3))
            && self.run_to_rare_code(&mut tracee, changes)? == Stop::Away
        {
            return Ok(());
        }
        self.live.discard_pages();
        if !self.step_to_next_bytecode(&mut tracee)? {
            return Ok(());
        }
        let first = tracee.registers()?.start();
        let stack = self.live.walk(&first);
        if stack.frames.len() > MAX_DEPTH {
            return Ok(());
        }
        let is_known = self.reaches_entry(stack.end) && (changes || self.has_no_guess(stack.end));
        if !is_known || !self.is_in_table(name, &stack, false) {
            let names = self.live.names(&stack).join(";");
            let example = format!("end {:x}, {names}", stack.end);
            self.count("initial stack is not in the call table", &example);
            return Ok(());
        }
        let trail = self.live.trail(&first);
        // A guessed stack cannot be the start of a shadow stack.
        let mut shadow = self.has_no_guess(stack.end).then(|| Shadow::new(&trail[1..]));
        // The `changes` thread has just been run to a turning point, so its code counts as just entered.
        let (mut since_entry, mut since_leave) =
            (if changes { 0 } else { usize::MAX / 2 }, usize::MAX / 2);
        let mut region = self.region(first.ip);
        let mut signals = 0;
        // Disagreements since the walker and the shadow stack agreed last.
        let mut doubts: Vec<(String, String)> = Vec::new();
        for _ in 0..if changes { STEPS_OF_CHANGES } else { STEPS } {
            let regs = tracee.registers()?;
            let from = regs.start().ip;
            let code = self.live.bytes::<16>(from).unwrap_or_default();
            let insn = decode(&code);
            let old_top = regs.top(&self.live);
            let is_sigreturn = regs.is_sigreturn();
            let stop = tracee.step()?;
            self.live.discard_pages();
            let now = match stop {
                Stop::Away => return Ok(()),
                _ => tracee.registers()?,
            };
            if let Stop::Signal(_) = stop {
                // The signal arrived before the instruction ran.
                let interrupted = now.start().ip;
                if tracee.step()? != Stop::Stepped {
                    return Ok(());
                }
                self.live.discard_pages();
                let now = tracee.registers()?;
                if let Some(shadow) = &mut shadow {
                    shadow.signal(interrupted, now.top(&self.live));
                }
                signals += 1;
                continue;
            }
            self.steps += 1;
            let top = now.top(&self.live);
            let step = Step {
                insn,
                from,
                to: now.start().ip,
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
            // Generated code has called a function of the JVM. Single-stepping it would take long,
            // and its code is like other native code, so three of four such calls run to their return
            // without single steps.
            let is_out = self.live.is_code(from) && !self.live.is_code(now.start().ip);
            let now = match insn == Insn::Call && is_out && !self.steps.is_multiple_of(4) {
                true => {
                    if tracee.run_to(top, now.sp_after_return())? == Stop::Away {
                        return Ok(());
                    }
                    self.live.discard_pages();
                    if let Some(shadow) = &mut shadow {
                        shadow.callers.pop();
                    }
                    tracee.registers()?
                }
                false => now,
            };
            let old = std::mem::replace(&mut region, self.region(now.start().ip));
            let is_entered = region != old && insn != Insn::Return;
            since_entry = if is_entered { 0 } else { since_entry.saturating_add(1) };
            since_leave = if arch::is_leave(&code) { 0 } else { since_leave.saturating_add(1) };
            let is_entry = insn == Insn::Call || is_entered;
            since_entry = if is_entry { 0 } else { since_entry };

            let at = now.start();
            let mut kind = self.kind(&at, since_entry, since_leave);
            if signals > 0 {
                kind.name = format!("signal: {}", kind.name);
            }
            if name.starts_with("ForkJoi") {
                kind.name = format!("virtual thread: {}", kind.name);
            }
            let trail = self.live.trail(&at);
            let Some(counted) = &shadow else {
                // There is no shadow stack. Instead, the recorded stack is checked against the table
                // now, and against the newly created frames when they run.
                if kind.name.contains("deoptimisation") && self.seen.wants(&kind) {
                    self.record(&at, kind, name, false)?;
                    let is_new = self.found.len() > self.unverified.len();
                    if let Some((file, _)) = self.found.last().filter(|_| is_new) {
                        self.unverified.push((file.clone(), trail));
                    }
                } else if kind.name.starts_with("interpreted") && !self.unverified.is_empty() {
                    self.check_created_frames(&at, &trail, name);
                }
                continue;
            };
            let callers = trail[1..].iter().zip(counted.callers.iter().rev());
            let is_same = trail.len() == counted.callers.len() + 1;
            let mut is_deoptimised = false;
            let live = &mut self.live;
            let is_same = is_same
                && callers.into_iter().all(|(&found, &counted)| {
                    let is_patched = found != counted && same_code(live, found, counted);
                    is_deoptimised |= is_patched;
                    found == counted || is_patched
                });
            if !is_same {
                // The walker omits a caller in the interpreter in two cases: the caller has no frame
                // (it is being entered or left, or is an intrinsic), or the interpreter has called a
                // part of itself.
                let counted: Vec<u64> = counted.callers.iter().rev().copied().collect();
                // Deoptimisation removes frames without returning from them.
                if kind.name.contains("deoptimisation") {
                    shadow = None;
                    continue;
                }
                let first = counted.iter().zip(&trail[1..]).take_while(|(a, b)| a == b).count();
                if counted.get(first).is_some_and(|caller| self.live.is_interpreter(*caller))
                    && trail.get(1 + first..) == counted.get(first + 1..)
                {
                    self.without_frame += 1;
                    continue;
                }
                let stack = self.live.walk(&at);
                let guess = if stack.end >> 8 > 0 { ", reported as a guess" } else { "" };
                let is_known =
                    self.reaches_entry(stack.end) && self.is_in_table(name, &stack, false);
                let table = if is_known { ", where the table agrees with the walker" } else { "" };
                let code = self.live.bytes::<16>(at.ip).unwrap_or_default();
                let what = format!("{}{guess}{table}", kind.name);
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
            // Walker and shadow stack agree again, so the shadow stack was correct all the time, and
            // the walker was wrong before.
            for (what, example) in doubts.drain(..) {
                self.count(&format!("WRONG at {what}"), &example);
            }
            is_deoptimised |= changes && trail[1..].iter().any(|&addr| self.live.is_handler(addr));
            if is_deoptimised {
                kind.name = "deoptimised caller".into();
            }
            if self.has_foreign_frame_pointer(&at, &trail) {
                kind.name += ", called by compiled code";
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

    /// Runs a thread to an address in rarely executed code.
    fn run_to_rare_code(&self, tracee: &mut Tracee, changes: bool) -> Result<Stop, Box<dyn Error>> {
        let (addrs, round) = match changes {
            true => (&self.turning_points, self.turn),
            false => (&self.rare, self.turn / 3),
        };
        let index = round % addrs.len().max(1);
        let Some(&addr) = addrs.get(index) else { return Ok(Stop::Stepped) };
        let stop = tracee.run_to(addr, 0)?;
        if stop == Stop::Away || !changes || index >= self.functions {
            return Ok(stop);
        }
        // Runs to the function's return, because single-stepping the function would take long, and
        // its code is like other native code.
        self.live.discard_pages();
        let regs = tracee.registers()?;
        Ok(tracee.run_to(regs.top(&self.live), regs.sp_after_return())?)
    }

    /// Whether the thread is in an interpreted method that was called by compiled code and has no frame
    /// at this instant. The frame pointer then leads to another method's frame.
    fn has_foreign_frame_pointer(&self, at: &Registers, trail: &[u64]) -> bool {
        let Some(&caller) = trail.get(1) else { return false };
        let other = self.live.word(at.fp + 8);
        self.live.is_interpreter(at.ip)
            && self.live.is_code(caller)
            && !self.live.is_interpreter(caller)
            && self.live.is_code(other)
            && other != caller
    }

    /// Single-steps a thread in the interpreter to the beginning of a bytecode, because the stack
    /// does not show whether a method that is being entered or left has a frame. Returns `false` if
    /// that takes too long, or if the thread gets a signal or does not stop.
    fn step_to_next_bytecode(&self, tracee: &mut Tracee) -> Result<bool, Box<dyn Error>> {
        for _ in 0..STEPS {
            let ip = tracee.registers()?.start().ip;
            if !self.live.is_interpreter(ip) {
                return Ok(true);
            }
            let is_last = self.live.bytes::<16>(ip).is_some_and(|code| arch::is_dispatch(&code));
            if tracee.step()? != Stop::Stepped {
                return Ok(false);
            }
            self.live.discard_pages();
            if is_last {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks the recordings in `unverified` when the thread runs the new frames. The outermost frames
    /// of its stack must be the recorded callers, without the innermost recorded caller.
    fn check_created_frames(&mut self, at: &Registers, trail: &[u64], thread: &str) {
        let stack = self.live.walk(at);
        if !self.has_no_guess(stack.end) || !self.is_in_table(thread, &stack, false) {
            return;
        }
        for (file, callers) in std::mem::take(&mut self.unverified) {
            // The innermost created frame may be the one that runs now; then it is not a caller.
            if !trail.ends_with(&callers[callers.len().min(2)..]) {
                self.disagreements += 1;
                let example = format!("{file} {callers:x?}, and then {trail:x?}");
                self.count("WRONG while frames are created", &example);
            }
        }
    }

    /// Identifies the code at an address: the interpreter (1), a blob (its beginning), or a file
    /// (2).
    fn region(&mut self, ip: u64) -> u64 {
        if self.live.is_interpreter(ip) {
            return 1;
        }
        if self.live.is_code(ip) { self.live.blob(ip).begin } else { 2 }
    }
}

/// Whether two addresses lie in the same method.
fn same_code(live: &mut Live, a: u64, b: u64) -> bool {
    let of = live.blob(a.wrapping_sub(1));
    of.kind != 0 && (of.begin..of.end).contains(&b)
}
