//! Who called whom, counted: the return addresses that are on a thread's stack, kept by what its
//! instructions do, one by one, and by nothing that a walker knows.
//!
//! A call puts one on top, a return takes it off. The interpreter calls methods by pushing an
//! address of its own and jumping, and returns by jumping to the address on top. A signal puts
//! the interrupted address and its trampoline on top, and the system call that ends it takes them
//! off. A deoptimisation handler pushes its own address. What throws exceptions or makes other frames (deoptimisation, continuations) does what
//! this does not know: then the count is lost, and nothing more is said.

/// What an instruction does to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insn {
    Call,
    Return,
    /// Where a register or memory says.
    Jump,
    Push,
    Pop,
    Syscall,
    Other,
}

/// Reads an instruction.
pub fn decode(code: &[u8]) -> Insn {
    let is_prefix = |b: &&u8| matches!(**b, 0x66 | 0x2e | 0x3e | 0x64 | 0x65 | 0xf2 | 0xf3);
    let mut rest = &code[code.iter().take_while(is_prefix).count()..];
    if rest.first().is_some_and(|b| (0x40..0x50).contains(b)) {
        rest = &rest[1..];
    }
    match rest {
        [0xe8, ..] => Insn::Call,
        [0xc3 | 0xc2, ..] => Insn::Return,
        [0x50..0x58, ..] => Insn::Push,
        [0x58..0x60, ..] => Insn::Pop,
        [0xff, modrm, ..] => match modrm >> 3 & 7 {
            2 => Insn::Call,
            4 => Insn::Jump,
            6 => Insn::Push,
            _ => Insn::Other,
        },
        [0x0f, 0x05, ..] => Insn::Syscall,
        _ => Insn::Other,
    }
}

/// The count.
pub struct Shadow {
    /// Outermost first.
    pub callers: Vec<u64>,
    /// What the interpreter has pushed, of its own.
    pushed: Option<u64>,
    /// Whether it has the address on top in a register, to push it again or to jump there.
    is_held: bool,
}

/// One step, as far as it matters.
pub struct Step {
    pub insn: Insn,
    pub from: u64,
    pub to: u64,
    /// What was on top of the stack, and what is now.
    pub old_top: u64,
    pub top: u64,
    pub is_sigreturn: bool,
    /// Whether `from` and `top` are in the interpreter.
    pub from_interpreter: bool,
    pub top_interpreter: bool,
}

impl Shadow {
    /// Begins with callers that are known, innermost first.
    pub fn new(callers: &[u64]) -> Self {
        Self { callers: callers.iter().rev().copied().collect(), pushed: None, is_held: false }
    }

    /// A signal's handler begins.
    pub fn signal(&mut self, interrupted: u64, trampoline: u64) {
        self.callers.extend([interrupted, trampoline]);
    }

    /// Takes a step; `false` where the count is lost.
    pub fn step(&mut self, step: &Step, is_same_code: impl FnOnce(u64, u64) -> bool) -> bool {
        match step.insn {
            Insn::Call => {
                let is_call = (step.from..=step.from + 16).contains(&step.top);
                self.callers.push(step.top);
                return is_call;
            }
            Insn::Return => {
                let Some(caller) = self.callers.pop() else { return false };
                // Into the handler of a method that was deoptimised in the meantime.
                return caller == step.to || is_same_code(caller, step.to);
            }
            Insn::Pop if step.from_interpreter && self.callers.last() == Some(&step.old_top) => {
                self.is_held = true;
            }
            Insn::Push if self.is_held && self.callers.last() == Some(&step.top) => {
                self.is_held = false;
            }
            Insn::Push if step.from_interpreter && step.top_interpreter => {
                self.pushed = Some(step.top);
            }
            // A deoptimisation handler, by its own address: as if it had called what makes the
            // frames.
            Insn::Push if (step.from.saturating_sub(16)..=step.from).contains(&step.top) => {
                self.callers.push(step.top);
            }
            Insn::Jump => {
                self.is_held = false;
                if let Some(pushed) = self.pushed.take() {
                    self.callers.push(pushed);
                } else if self.callers.last() == Some(&step.to) {
                    self.callers.pop();
                }
            }
            Insn::Syscall if step.is_sigreturn => {
                self.callers.pop();
            }
            _ => {}
        }
        true
    }
}
