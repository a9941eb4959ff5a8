//! Decides from HotSpot's counters whether a method was called.
//!
//! The interpreter counts every call (interpreter/templateInterpreterGenerator.cpp), and counts
//! are never reset to zero. So a method without a count was never interpreted. It may still have
//! run, because some compiled code runs methods without counting them:
//!
//! - Accessors and methods of at most [`TRIVIAL`] bytes are inlined even if they were never called,
//!   and tier 3 does not count accessors that it inlines (c1/c1_LIRGenerator.cpp;
//!   opto/bytecodeInfo.cpp, which rejects all other uncounted methods as "never executed").
//! - C1 inlines methods of up to `MaxInlineSize` bytes without looking at counts. It counts inlined
//!   methods at tier 3 only: not at tier 2, which is used while C2's queue is long, and not at tier
//!   1, which is used for methods that C2 cannot compile (c1/c1_GraphBuilder.cpp,
//!   c1_Compilation.hpp). Inlining at these tiers leaves no trace: no counters, no profile, no
//!   resolved constant. A method that cannot reach a safepoint, make a call or throw an exception is not
//!   even in the debug information of the compiled code, and that code may have been discarded. The only
//!   remaining evidence is the caller, with a call that names the method (`reach`).
//! - Methods with `@ForceInline` are inlined even if they were never called.
//! - The work of an intrinsic is done by code other than the method's own.
//! - Methods for which a compiler command demands inlining may be inlined uncounted, too
//!   (compiler/compilerOracle.cpp).
//! - In a JVM whose only compiler is C1 at tier 1, compiled code contains inlined methods of up to
//!   `MaxInlineSize` bytes and counts no calls. Nothing is known about compilers other than C1 and C2.
//! - With `-Xint` nothing is counted, with `-Xcomp` nothing is interpreted.
//!
//! A class whose initialisation has not begun has run no code of its own (JVMS 5.5).

use crate::{
    hotspot::{
        flags::Flags,
        layout::Item,
        loaded::{State, method::MethodFacts},
        resolved::Layout,
    },
    process::memory::Memory,
};

/// `MaxTrivialSize`: maximum size in bytes of methods that C2 inlines without looking at counts.
/// Accessors are not longer.
const TRIVIAL: u64 = 6;
/// Default of `MaxInlineSize` and `C1MaxInlineSize`, in bytes.
const INLINED_BY_C1: u64 = 35;

/// Whether a method was called since the JVM started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Usage {
    /// It was called.
    Called,
    /// It was not called, as far as HotSpot's data show.
    NotCalled,
    /// It cannot be determined whether it was called.
    Unknown(Why),
    /// It has no code.
    Abstract,
}

/// Reason why it is unknown whether a method was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// It is inlined in compiled code, which may or may not have run.
    Inlined,
    /// It is so small that compilers inline it even if it was never counted.
    Small,
    /// Code of tier 1 or 2, which does not count inlined methods, may contain it or may have contained
    /// it.
    Uncounted,
    /// The compilers inline it wherever possible (`@ForceInline`).
    ForcedInline,
    /// It is an intrinsic: the JVM does its work with code other than the method's own.
    Intrinsic,
    /// Its class was redefined, which restarted its counters.
    Redefined,
    /// It cannot be determined whether its class was redefined since it was loaded.
    PerhapsRedefined,
    /// Its counters come from an archive, and so from another run.
    Archived,
    /// It has a profile, which may have been created for compiled code that inlines it, and the
    /// profile's counter cannot be read.
    Profiled,
    /// It is compiled but was not counted, so it may have been compiled ahead of time.
    Compiled,
    /// The JVM counts no calls: it runs with `-Xint` or has just started.
    NotCounted,
    /// The JVM compiles before it interprets: `-Xcomp`.
    CompiledFirst,
    /// The JVM's only compiler inlines without counting: `-XX:TieredStopAtLevel=1`.
    OnlyC1,
    /// The user configured methods to inline: with `-XX:CompileCommand=inline,...` or in a file.
    InlineCommand,
    /// The JVM uses a compiler other than C1 and C2.
    OtherCompiler,
    /// Metaspace was exhausted at least once, so there may have been no space for counters.
    OutOfMetaspace,
}

impl Why {
    /// Returns the reason's name in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inlined => "inlined",
            Self::Small => "small",
            Self::Uncounted => "inlined uncounted",
            Self::ForcedInline => "forced inline",
            Self::Intrinsic => "intrinsic",
            Self::Redefined => "redefined",
            Self::PerhapsRedefined => "perhaps redefined",
            Self::Archived => "archived profile",
            Self::Profiled => "profiled",
            Self::Compiled => "compiled",
            Self::NotCounted => "not counted",
            Self::CompiledFirst => "compiled first",
            Self::OnlyC1 => "only C1",
            Self::InlineCommand => "told to inline",
            Self::OtherCompiler => "other compiler",
            Self::OutOfMetaspace => "out of metaspace",
        }
    }
}

impl Usage {
    /// Returns the name in reports and JSON, without the reason.
    pub fn name(self) -> &'static str {
        match self {
            Self::Called => "called",
            Self::NotCalled => "not called",
            Self::Unknown(_) => "unknown",
            Self::Abstract => "abstract",
        }
    }
}

/// Evidence about a method from compiled code and from the constants of other classes.
#[derive(Clone, Copy, Debug)]
pub(super) struct InCode {
    /// Whether the debug information of compiled code lists it as inlined.
    pub(super) is_inlined: bool,
    /// The lowest inline level at which compiled code may have called it; `None` if no code calls it.
    pub(super) called_at: Option<u8>,
}

/// Minimum numbers of calls and loop iterations with which a method may be compiled.
///
/// `CallPredicate::apply_scaled` and `LoopPredicate::apply_scaled` (compiler/compilationPolicy.cpp;
/// in JDK 11 runtime/tieredThresholdPolicy.cpp) compare the counters with these minimum numbers, multiplied
/// by a factor of at least one, which grows with the compilers' queues. The numbers are flags of the JVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CompileThresholds {
    /// Number of calls that is sufficient alone.
    calls: u64,
    /// Number of calls that is sufficient if calls and iterations together reach `together`.
    min_calls: u64,
    together: u64,
    /// Number of loop iterations that is sufficient alone.
    loops: u64,
}

impl CompileThresholds {
    /// Used if the thresholds are unknown: a single call or iteration is sufficient.
    const ANY: Self = Self { calls: 1, min_calls: 1, together: 1, loops: 1 };

    /// Whether these counts reach a threshold.
    fn is_reached(self, calls: u64, loops: u64) -> bool {
        let is_enough = calls >= self.min_calls && calls.saturating_add(loops) >= self.together;
        calls >= self.calls || is_enough || loops >= self.loops
    }
}

/// How a JVM counts calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counting {
    /// If the JVM does not count calls reliably: the reason. In that case the usage of all methods without
    /// evidence of a call is unknown.
    not_counted: Option<Why>,
    /// Maximum size in bytes of methods that may be inlined uncounted, and the reason.
    inlined: (u64, Why),
    /// Maximum size in bytes of methods that C1 inlines into the method that it compiles.
    inlined_by_c1: u64,
    compile_thresholds: CompileThresholds,
    /// Whether any class was redefined; `None` if unknown.
    redefined: Option<bool>,
}

impl Counting {
    /// Reads flags and variables of the JVM. `counts_any` returns whether any method was counted.
    pub(super) fn read(
        memory: &Memory,
        layout: &Layout,
        counts_any: impl FnOnce() -> bool,
    ) -> Self {
        let flags = Flags::read(memory, layout).ok();
        let is_on = |name| flags.as_ref().and_then(|flags| flags.flag_bool(memory, name));
        let number = |name| flags.as_ref().and_then(|flags| flags.flag_u64(memory, name));
        let variable = |item| layout.try_address(item);
        let is_set =
            |item| variable(item).and_then(|at| memory.array::<1>(at).ok()).map(|b| b != [0]);
        let redefinitions = variable(Item::Redefinitions).and_then(|at| memory.u64(at).ok());
        let not_counted = if is_on("UseJVMCICompiler") == Some(true) {
            Some(Why::OtherCompiler)
        } else if is_on("UseInterpreter") == Some(false) {
            Some(Why::CompiledFirst)
        } else if is_set(Item::OutOfMetaspace) == Some(true) {
            Some(Why::OutOfMetaspace)
        } else if !counts_any() {
            Some(Why::NotCounted)
        } else {
            None
        };
        let text = |name| flags.as_ref().and_then(|flags| flags.flag_string(memory, name));
        let forces_inline = text("CompileCommand")
            .is_some_and(|commands| forces_inlining(&commands))
            || ["CompileCommandFile", "CompilerDirectivesFile"]
                .iter()
                .any(|name| text(name).is_some_and(|file| !file.is_empty()));
        // Without tiers, C2 is the only compiler, except in a build without C2. Such a build lacks C2's
        // flags, for example DoEscapeAnalysis.
        let stops_early = number("TieredStopAtLevel").is_some_and(|level| level < 4);
        let only_c1 = is_on("TieredCompilation") != Some(false) && stops_early
            || is_on("NeverActAsServerClassMachine") == Some(true)
            || flags.is_some() && is_on("DoEscapeAnalysis").is_none()
            || text("CompilationMode").is_some_and(|mode| mode.starts_with("quick"));
        let most = |names: [&'static str; 2], least| {
            names.into_iter().filter_map(&number).fold(least, u64::max)
        };
        let by_c1 = most(["MaxInlineSize", "C1MaxInlineSize"], INLINED_BY_C1);
        let has_c1 = is_on("TieredCompilation") != Some(false);
        // No method has more than 65,535 bytes of bytecode.
        let inlined_by_c1 = if has_c1 { by_c1.min(u16::MAX.into()) } else { 0 };
        let inlined = match (forces_inline, only_c1) {
            (true, _) => (u64::MAX, Why::InlineCommand),
            (_, true) => (by_c1, Why::OnlyC1),
            _ => (most(["MaxTrivialSize", "C1MaxTrivialSize"], TRIVIAL), Why::Small),
        };
        let redefined = redefinitions.map(|n| n != 0).or_else(|| is_set(Item::HasRedefined));
        // The lower of the thresholds of tiers 3 and 4 is used. This is normally that of tier 3, but the user
        // may have changed the thresholds.
        let least = |names: [&'static str; 2]| names.map(&number).into_iter().min().flatten();
        let is_scaled = text("CompileCommand").is_some_and(|commands| scales(&commands));
        let compile_thresholds = || {
            Some(CompileThresholds {
                calls: least(["Tier3InvocationThreshold", "Tier4InvocationThreshold"])?,
                min_calls: least(["Tier3MinInvocationThreshold", "Tier4MinInvocationThreshold"])?,
                together: least(["Tier3CompileThreshold", "Tier4CompileThreshold"])?,
                loops: least(["Tier3BackEdgeThreshold", "Tier4BackEdgeThreshold"])?,
            })
        };
        let compile_thresholds =
            compile_thresholds().filter(|_| !is_scaled).unwrap_or(CompileThresholds::ANY);
        Self { not_counted, inlined, inlined_by_c1, compile_thresholds, redefined }
    }

    /// Returns the reason if the JVM does not count calls reliably. In that case the usage of all methods
    /// without evidence of a call is unknown.
    pub(super) fn not_counted(&self) -> Option<Why> {
        self.not_counted
    }

    /// Whether any class was redefined; `None` if unknown.
    pub(super) fn has_redefined(&self) -> Option<bool> {
        self.redefined
    }

    /// Returns the maximum size in bytes of methods that C1 inlines at a level even if none of their calls
    /// was counted. The level is the number of methods between the call and the method that is compiled.
    /// Each level lowers the limit by a tenth, down to `C1MaxTrivialSize` (`ScopeData::ScopeData`,
    /// `NestedInliningSizeRatio`, c1/c1_GraphBuilder.cpp).
    pub(super) fn inlined_by_c1(&self, level: u8) -> u64 {
        let (trivial, _) = self.inlined;
        match self.inlined_by_c1 {
            0 => 0,
            most => (0..level).fold(most, |limit, _| limit * 9 / 10).max(trivial),
        }
    }

    /// Whether C1 may inline a method at a level (`GraphBuilder::try_inline_full`,
    /// c1/c1_GraphBuilder.cpp).
    pub(super) fn may_be_inlined_by_c1(&self, facts: &MethodFacts, level: u8) -> bool {
        !facts.is_native && !facts.is_abstract && facts.inlined_size() <= self.inlined_by_c1(level)
    }

    /// Whether compiled code of a method may exist now or may have existed earlier. Only compiled code
    /// contains inlined methods.
    ///
    /// The JVM compiles a method when the method's counters reach a threshold, and counters are never reset.
    /// A method with counters from an archive may have been compiled before its first call in this run.
    pub(super) fn may_have_been_compiled(&self, facts: &MethodFacts) -> bool {
        facts.is_compiled
            || facts.has_overflowed
            || facts.has_archived_counters
            || facts.has_unread_profile
            || self.compile_thresholds.is_reached(facts.counted, facts.loops)
    }

    /// Decides the usage of a method whose class is in `state`; `redefined` is whether that class was
    /// redefined, if known.
    pub(super) fn judge(
        &self,
        facts: &MethodFacts,
        state: State,
        redefined: Option<bool>,
        in_code: InCode,
    ) -> Usage {
        if facts.is_abstract {
            return Usage::Abstract;
        }
        if facts.is_counted {
            return Usage::Called;
        }
        // The initialisation of the class has not begun, so none of its code has run, and the reasons below
        // do not apply.
        if state < State::Initializing {
            return Usage::NotCalled;
        }
        let redefined = match (self.redefined, redefined) {
            (Some(false), _) | (_, Some(false)) => None,
            (_, Some(true)) => Some(Why::Redefined),
            (_, None) => Some(Why::PerhapsRedefined),
        };
        let size = u64::from(facts.code_size);
        let reasons = [
            (facts.has_archived_counters, Why::Archived),
            (facts.is_intrinsic, Why::Intrinsic),
            (in_code.is_inlined, Why::Inlined),
            (facts.is_compiled && self.not_counted.is_some(), Why::Compiled),
            (facts.has_unread_profile, Why::Profiled),
        ];
        let of_method = reasons.into_iter().find(|(holds, _)| *holds).map(|(_, why)| why);
        // A method is compiled only after its calls were counted, unless its code comes from an archive of
        // compiled code.
        let compiled = facts.is_compiled.then_some(Why::Compiled);
        let (most, why) = self.inlined;
        let small = (!facts.is_native && size <= most).then_some(why);
        let by_c1 = in_code.called_at.is_some_and(|level| self.may_be_inlined_by_c1(facts, level));
        let uncounted = by_c1.then_some(Why::Uncounted);
        let forced = facts.is_forced_inline.then_some(Why::ForcedInline);
        let why = of_method.or(self.not_counted).or(redefined).or(compiled);
        let why = why.or(small).or(forced).or(uncounted);
        why.map_or(Usage::NotCalled, Usage::Unknown)
    }
}

#[cfg(test)]
impl Counting {
    /// Counting in a JVM without special flags.
    pub(super) const USUAL: Self = Self {
        not_counted: None,
        inlined: (TRIVIAL, Why::Small),
        inlined_by_c1: INLINED_BY_C1,
        compile_thresholds: CompileThresholds {
            calls: 200,
            min_calls: 100,
            together: 2000,
            loops: 60_000,
        },
        redefined: Some(false),
    };
}

/// Maximum length that is read of a string flag. Longer values are cut off.
const MAX_FLAG_LEN: usize = 4096;

/// Whether compiler commands force a method to be inlined. A cut-off text counts as yes.
fn forces_inlining(commands: &str) -> bool {
    let rest = commands.to_ascii_lowercase().replace("dontinline", "");
    rest.contains("inline") || commands.len() >= MAX_FLAG_LEN
}

/// Whether compiler commands change the compilation thresholds. A cut-off text counts as yes.
fn scales(commands: &str) -> bool {
    commands.to_ascii_lowercase().contains("scaling") || commands.len() >= MAX_FLAG_LEN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Addr,
        hotspot::loaded::refs::{Binding, Signature},
    };

    fn facts() -> MethodFacts {
        MethodFacts {
            name: "run".into(),
            descriptor: "()V".into(),
            signature: Signature::default(),
            binding: Binding::Virtual,
            bytes: 0,
            code: Addr(0),
            code_size: 40,
            is_abstract: false,
            is_native: false,
            is_intrinsic: false,
            is_forced_inline: false,
            counted: 0,
            is_counted: false,
            loops: 0,
            has_overflowed: false,
            has_archived_counters: false,
            has_unread_profile: false,
            is_compiled: false,
        }
    }

    const USUAL: Counting = Counting::USUAL;
    const NOWHERE: InCode = InCode { is_inlined: false, called_at: None };
    const INLINED: InCode = InCode { is_inlined: true, ..NOWHERE };

    fn judge(counting: Counting, facts: &MethodFacts) -> Usage {
        counting.judge(facts, State::Initialized, None, NOWHERE)
    }

    #[test]
    fn counted_method_is_called() {
        let counted = MethodFacts { is_counted: true, ..facts() };
        for not_counted in [None, Some(Why::CompiledFirst)] {
            assert_eq!(judge(Counting { not_counted, ..USUAL }, &counted), Usage::Called);
        }
        assert_eq!(USUAL.judge(&counted, State::Linked, None, INLINED), Usage::Called);
        assert_eq!(judge(USUAL, &facts()), Usage::NotCalled);
    }

    #[test]
    fn method_that_may_run_uncounted_is_unknown() {
        let unknown = |counting, facts: MethodFacts, why| {
            assert_eq!(judge(counting, &facts), Usage::Unknown(why), "{facts:?}");
        };
        unknown(USUAL, MethodFacts { code_size: 6, ..facts() }, Why::Small);
        unknown(USUAL, MethodFacts { is_intrinsic: true, ..facts() }, Why::Intrinsic);
        unknown(USUAL, MethodFacts { is_forced_inline: true, ..facts() }, Why::ForcedInline);
        unknown(USUAL, MethodFacts { has_archived_counters: true, ..facts() }, Why::Archived);
        unknown(USUAL, MethodFacts { has_unread_profile: true, ..facts() }, Why::Profiled);
        unknown(USUAL, MethodFacts { is_compiled: true, ..facts() }, Why::Compiled);
        let c1 = Counting { inlined: (INLINED_BY_C1, Why::OnlyC1), ..USUAL };
        unknown(c1, MethodFacts { code_size: 35, ..facts() }, Why::OnlyC1);
        assert_eq!(judge(c1, &facts()), Usage::NotCalled);
        for why in [Why::NotCounted, Why::CompiledFirst, Why::OtherCompiler, Why::OutOfMetaspace] {
            unknown(Counting { not_counted: Some(why), ..USUAL }, facts(), why);
        }
        let inlined = USUAL.judge(&facts(), State::Initialized, None, INLINED);
        assert_eq!(inlined, Usage::Unknown(Why::Inlined));
    }

    #[test]
    fn method_inlinable_at_its_c1_level_is_unknown() {
        let called = InCode { called_at: Some(0), ..NOWHERE };
        let judge = |counting: Counting, code_size, in_code| {
            let facts = MethodFacts { code_size, ..facts() };
            counting.judge(&facts, State::Initialized, None, in_code)
        };
        let unknown = Usage::Unknown(Why::Uncounted);
        for (code_size, called_at, usage) in [
            (7, Some(0), unknown),
            (35, Some(0), unknown),
            (36, Some(0), Usage::NotCalled),
            (32, Some(1), Usage::NotCalled),
            (31, Some(1), unknown),
            (7, Some(12), unknown),
            (7, Some(13), Usage::NotCalled),
            (7, None, Usage::NotCalled),
            (6, Some(200), Usage::Unknown(Why::Small)),
        ] {
            let in_code = InCode { called_at, ..NOWHERE };
            assert_eq!(judge(USUAL, code_size, in_code), usage, "{code_size} {in_code:?}");
        }
        let only_c2 = Counting { inlined_by_c1: 0, ..USUAL };
        assert_eq!(judge(only_c2, 7, called), Usage::NotCalled);
        let native = MethodFacts { is_native: true, code_size: 0, ..facts() };
        let native = USUAL.judge(&native, State::Initialized, None, called);
        assert_eq!(native, Usage::NotCalled);
    }

    #[test]
    fn compile_commands_that_force_inlining_are_detected() {
        for (commands, forces) in [
            ("quiet\ndontinline,A.b", false),
            ("dontinline A::b\ninline A::c", true),
            ("Inline,A.b", true),
            ("exclude,A.b", false),
            ("", false),
        ] {
            assert_eq!(forces_inlining(commands), forces, "{commands}");
        }
    }

    #[test]
    fn uncounted_native_method_is_not_called() {
        assert_eq!(
            judge(USUAL, &MethodFacts { is_native: true, code_size: 0, ..facts() }),
            Usage::NotCalled
        );
    }

    #[test]
    fn methods_of_uninitialized_classes_are_not_called() {
        let small = MethodFacts { code_size: 5, ..facts() };
        for not_counted in [None, Some(Why::NotCounted)] {
            let counting = Counting { not_counted, ..USUAL };
            for state in [State::Loaded, State::Linked] {
                assert_eq!(counting.judge(&small, state, None, NOWHERE), Usage::NotCalled);
            }
        }
        let abstract_one = MethodFacts { is_abstract: true, ..facts() };
        assert_eq!(judge(USUAL, &abstract_one), Usage::Abstract);
    }

    #[test]
    fn uncounted_method_of_a_redefined_class_is_unknown() {
        let any = Counting { redefined: Some(true), ..USUAL };
        let judge = |counting: Counting, redefined| {
            counting.judge(&facts(), State::Initialized, redefined, NOWHERE)
        };
        assert_eq!(judge(any, Some(true)), Usage::Unknown(Why::Redefined));
        assert_eq!(judge(any, Some(false)), Usage::NotCalled);
        assert_eq!(judge(any, None), Usage::Unknown(Why::PerhapsRedefined));
        assert_eq!(judge(USUAL, None), Usage::NotCalled);
        let unknown = Counting { redefined: None, ..USUAL };
        assert_eq!(judge(unknown, None), Usage::Unknown(Why::PerhapsRedefined));
    }
}
