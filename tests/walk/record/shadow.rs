//! A shadow stack: the return addresses on a thread's stack, maintained from the effect of each single
//! instruction. It uses nothing that the walker knows about frames.
//!
//! A call pushes a return address, a return pops it. On processors whose calls store the return address in a register,
//! that register takes the place of the word on top of the stack. The interpreter calls methods by pushing an
//! address of its own and jumping, and returns by jumping to the address on top. A signal pushes
//! the interrupted address and the address of the signal trampoline. The return of the signal handler
//! pops the latter, and the system call `rt_sigreturn`, which the trampoline makes, pops the former.
//! A deoptimisation handler pushes its own address. Code that throws exceptions or creates other
//! frames (deoptimisation, continuations) has effects that are not modelled here. The shadow stack is
//! then lost, and the walker's result is not compared.

/// Effect of an instruction on the shadow stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insn {
    Call,
    Return,
    /// An indirect jump, through a register or memory.
    Jump,
    Push,
    #[cfg_attr(
        target_arch = "aarch64",
        expect(dead_code, reason = "no instruction of aarch64 does this alone")
    )]
    Pop,
    Syscall,
    Other,
}

/// The shadow stack.
pub struct Shadow {
    /// Return addresses, outermost first.
    pub callers: Vec<u64>,
    /// The last address of its own that the interpreter has pushed.
    pushed: Option<u64>,
    /// Whether the interpreter has popped the address on top into a register, to push it again or
    /// to jump there.
    is_held: bool,
}

/// The parts of a single step that matter here.
pub struct Step {
    pub insn: Insn,
    pub from: u64,
    pub to: u64,
    /// Word on top of the stack, or the link register, before the step and after it.
    pub old_top: u64,
    pub top: u64,
    pub is_sigreturn: bool,
    /// Whether `from` and `top` are in the interpreter.
    pub from_interpreter: bool,
    pub top_interpreter: bool,
}

impl Shadow {
    /// Starts with known callers, innermost first.
    pub fn new(callers: &[u64]) -> Self {
        Self { callers: callers.iter().rev().copied().collect(), pushed: None, is_held: false }
    }

    /// Pushes the interrupted address and the trampoline when a signal handler begins.
    pub fn signal(&mut self, interrupted: u64, trampoline: u64) {
        self.callers.extend([interrupted, trampoline]);
    }

    /// Applies a step. Returns `false` if the shadow stack is lost.
    pub fn step(&mut self, step: &Step, is_same_code: impl FnOnce(u64, u64) -> bool) -> bool {
        match step.insn {
            Insn::Call => {
                let is_call = (step.from..=step.from + 16).contains(&step.top);
                self.callers.push(step.top);
                return is_call;
            }
            Insn::Return => {
                // An address that was pushed last was not that of a call.
                self.pushed = None;
                let Some(caller) = self.callers.pop() else { return false };
                // If the caller was deoptimised in the meantime, the return leads to the deoptimisation
                // handler in the caller's code.
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
            // A deoptimisation handler pushes its own address, as if it had called the code that
            // creates the frames.
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
