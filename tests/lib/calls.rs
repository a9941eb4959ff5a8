//! Whether the calls on a profile's stacks are possible, judged by the callers' bytecode.
//!
//! Two adjacent Java frames are a call. Methods that the JVM calls by itself (a class's
//! initialiser, a class loader, `main`, the linkage of `invokedynamic`) are called through native
//! frames, so they are not adjacent to a Java caller. A call is possible if the caller's bytecode
//! has an instruction that invokes a method of the callee's name and parameters, and if one object
//! can be an instance of both the class that the instruction names and the callee's class.
//! `invokedynamic` and method handles lead to code that `java.lang.invoke` generates. The callees of
//! that code are unknown, except for lambdas: they call the methods that their host's class file
//! names for them.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
    path::Path,
};

use cafebabe::MethodAccessFlags;

use Verdict::{ElsewhereInMethod, Impossible, Possible, Unknown};

use crate::{
    classfile::{Call, CallKind, ClassPath, Target},
    speedscope::{self, Frame, Sample},
};

/// Maximum number of stacks kept for each impossible call.
const MAX_STACKS: usize = 3;

/// Result of the check of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The caller's bytecode has such a call at the line of the frame.
    Possible,
    /// The caller's bytecode has such a call, but only at other lines.
    ElsewhereInMethod,
    /// The caller's bytecode cannot make this call. Contains the reason.
    Impossible(&'static str),
    /// The call cannot be judged. Contains the reason.
    Unknown(&'static str),
}

/// Samples and example stacks of a call that is impossible, or possible only at other lines.
#[derive(Debug, Default)]
pub struct Offence {
    /// Number of samples with this call.
    pub samples: u64,
    /// At most `MAX_STACKS` complete stacks.
    pub stacks: Vec<String>,
}

/// Result of the check of one profile.
#[derive(Debug, Default)]
pub struct Report {
    /// Number of samples.
    pub samples: u64,
    /// Samples with Java frames.
    pub java: u64,
    /// Samples with an impossible call.
    pub samples_with_impossible_call: u64,
    /// Calls that were judged.
    pub calls: u64,
    /// Judged calls that the caller's bytecode does not contain.
    pub impossible: u64,
    /// Judged calls that the caller's bytecode contains at other lines only.
    pub elsewhere: u64,
    /// Number of calls that could not be judged, by reason.
    pub unknown: BTreeMap<&'static str, u64>,
    /// Number of impossible calls by the innermost user frame of their sample: a stub's name, or a
    /// kind of code. A high number suggests that the walker finds a wrong caller of such frames;
    /// the callers further out are then wrong, too.
    pub leaves: BTreeMap<String, u64>,
    /// Impossible calls by reason, caller and callee.
    pub offences: BTreeMap<(&'static str, String, String), Offence>,
    /// Calls at other lines only, by caller and callee.
    pub at_other_lines: BTreeMap<(String, String), Offence>,
}

/// A method as a frame names it.
struct Named<'a> {
    class: &'a str,
    name: &'a str,
    parameters: &'a str,
}

impl<'a> Named<'a> {
    fn of(frame: &'a Frame) -> Option<Self> {
        let (head, _) = frame.name.split_once('(')?;
        let parameters = &frame.name[head.len()..];
        let (class, name) = head.rsplit_once('.')?;
        Some(Self { class, name, parameters })
    }

    fn key(&self) -> String {
        format!("{}{}", self.name, self.parameters)
    }

    fn is(&self, target: &Target) -> bool {
        self.name == target.name && self.parameters == target.parameters
    }
}

/// Judges calls by class files.
pub struct Checker {
    classes: ClassPath,
    verdicts: std::cell::RefCell<HashMap<(String, u64, String), Verdict>>,
}

impl Checker {
    /// Creates a checker that uses these class files.
    pub fn new(classes: ClassPath) -> Self {
        Self { classes, verdicts: std::cell::RefCell::default() }
    }

    /// Judges all calls of a profile in speedscope's format, which javaprof recorded with
    /// `--signatures` at `hertz`.
    ///
    /// # Panics
    /// If the file is not such a profile.
    pub fn check_file(&self, path: &Path, hertz: u64) -> Report {
        let mut samples = speedscope::read(path);
        for sample in &mut samples {
            sample.weight /= 1_000_000_000 / hertz;
        }
        self.check(&samples)
    }

    /// Returns the class files that could not be read, with the reasons.
    pub fn unreadable_files(&self) -> String {
        let lines = self.classes.unreadable().into_iter();
        lines.map(|line| format!("cannot read the class file of {line}\n")).collect()
    }

    /// Judges all calls of these samples. A sample's weight is the number of equal samples.
    pub fn check(&self, samples: &[Sample]) -> Report {
        let mut report = Report::default();
        for sample in samples {
            let count = sample.weight;
            report.samples += count;
            report.java += if sample.frames.iter().any(is_java) { count } else { 0 };
            let mut has_impossible_call = false;
            for pair in sample.frames.windows(2) {
                has_impossible_call |= self.check_pair(&pair[0], &pair[1], sample, &mut report);
            }
            report.samples_with_impossible_call += if has_impossible_call { count } else { 0 };
        }
        report
    }

    fn check_pair(&self, caller: &Frame, callee: &Frame, s: &Sample, report: &mut Report) -> bool {
        if !is_java(caller) || !(is_java(callee) || callee.kind == "stub") {
            return false;
        }
        let verdict = self.judge(caller, callee);
        if let Unknown(why) = verdict {
            *report.unknown.entry(why).or_default() += s.weight;
            return false;
        }
        report.calls += s.weight;
        let offence = match verdict {
            Possible | Unknown(_) => return false,
            ElsewhereInMethod => {
                report.elsewhere += s.weight;
                let key = (text(caller), callee.name.clone());
                report.at_other_lines.entry(key).or_default()
            }
            Impossible(why) => {
                report.impossible += s.weight;
                *report.leaves.entry(leaf(s)).or_default() += s.weight;
                let key = (why, text(caller), callee.name.clone());
                report.offences.entry(key).or_default()
            }
        };
        offence.samples += s.weight;
        if offence.stacks.len() < MAX_STACKS {
            offence.stacks.push(stack(s, caller, callee));
        }
        matches!(verdict, Impossible(_))
    }

    /// Judges one call.
    pub fn judge(&self, caller: &Frame, callee: &Frame) -> Verdict {
        let key = (caller.name.clone(), caller.line.unwrap_or(0), callee.name.clone());
        if let Some(verdict) = self.verdicts.borrow().get(&key) {
            return verdict.clone();
        }
        let verdict = match callee.kind.as_str() {
            "stub" => self.judge_stub(caller, &callee.name),
            _ => self.judge_call(caller, callee),
        };
        self.verdicts.borrow_mut().insert(key, verdict.clone());
        verdict
    }

    fn judge_call(&self, at: &Frame, callee: &Frame) -> Verdict {
        let (Some(caller), Some(callee)) = (Named::of(at), Named::of(callee)) else {
            return Unknown("a frame without class or parameters");
        };
        if let Some(class) = self.classes.class(callee.class)
            && !is_filled_in_later(callee.class)
        {
            match class.methods.get(&callee.key()) {
                None if is_handle(callee.class) => {}
                None => return Impossible("the callee's class has no such method"),
                Some(methods) if !methods.iter().any(|m| m.is_concrete()) => {
                    return Impossible("the callee is abstract");
                }
                Some(_) => {}
            }
        }
        if callee.name == "<clinit>" {
            return Impossible("only the JVM calls <clinit>");
        }
        // Some compilers write class files whose names contain `$$Lambda`. Their bytecode is judged
        // like that of any other class.
        if let Some((host, _)) = caller.class.split_once("$$Lambda")
            && self.classes.class(caller.class).is_none()
        {
            return self.judge_lambda(host, &callee);
        }
        self.judge_by_bytecode(&caller, at, |call| self.admits(call, &callee))
    }

    /// Judges a call by the caller's instructions. It is possible if `admits` accepts an instruction
    /// at the frame's line.
    fn judge_by_bytecode(
        &self,
        caller: &Named<'_>,
        at: &Frame,
        admits: impl Fn(&Call) -> bool,
    ) -> Verdict {
        if is_generated(caller.class) || is_filled_in_later(caller.class) {
            return Unknown("the caller is generated by java.lang.invoke or reflection");
        }
        let Some(class) = self.classes.class(caller.class) else {
            return Unknown("no class file of the caller");
        };
        let Some(methods) = class.methods.get(&caller.key()) else {
            return Impossible("the caller's class has no such method");
        };
        let line = at.line.unwrap_or(0);
        let mut verdict = Impossible("the caller does not call it");
        for method in methods {
            for call in method.calls.iter().filter(|call| admits(call)) {
                if u64::from(call.line) == line || line == 0 || !method.has_lines {
                    return Possible;
                }
                verdict = ElsewhereInMethod;
            }
        }
        verdict
    }

    /// Judges a call of a stub. Only stubs that serve one kind of instruction can be judged.
    fn judge_stub(&self, at: &Frame, stub: &str) -> Verdict {
        let Some(caller) = Named::of(at) else {
            return Unknown("a frame without class or parameters");
        };
        let by_object = |call: &Call| matches!(call.kind, CallKind::Virtual | CallKind::Interface);
        let linked = |call: &Call| {
            matches!(call.kind, CallKind::Static | CallKind::Dynamic)
                || self.is_polymorphic(&call.target)
        };
        match plain_stub(stub) {
            "vtable chunks" | "ic_miss" | "resolve_virtual_call" => {
                self.judge_by_bytecode(&caller, at, by_object)
            }
            "resolve_opt_virtual_call" => {
                self.judge_by_bytecode(&caller, at, |c| by_object(c) || c.kind == CallKind::Special)
            }
            "resolve_static_call" => self.judge_by_bytecode(&caller, at, linked),
            "I2C/C2I adapters" => self.judge_by_bytecode(&caller, at, |_| true),
            "slow_subtype_check" => self.judge_type_test(&caller, at),
            _ => Unknown("the stub belongs to no kind of instruction"),
        }
    }

    /// Judges a call of the type-check stub. It is possible if the caller tests a type.
    fn judge_type_test(&self, caller: &Named<'_>, at: &Frame) -> Verdict {
        if is_generated(caller.class) || is_filled_in_later(caller.class) {
            return Unknown("the caller is generated by java.lang.invoke or reflection");
        }
        let Some(class) = self.classes.class(caller.class) else {
            return Unknown("no class file of the caller");
        };
        let Some(methods) = class.methods.get(&caller.key()) else {
            return Impossible("the caller's class has no such method");
        };
        let line = at.line.unwrap_or(0);
        // HotSpot records no debug information for calls of this stub, so it is unknown which
        // methods are inlined at such a call: see `Scopes::inlined` of libjvmprobe.
        let may_inline = methods.iter().any(|method| !method.calls.is_empty());
        let mut verdict = match may_inline {
            true => Unknown("the caller tests no type, but a method inlined into it may"),
            false => Impossible("the caller tests no type"),
        };
        for method in methods {
            for &there in &method.type_tests {
                if u64::from(there) == line || line == 0 || !method.has_lines {
                    return Possible;
                }
                verdict = ElsewhereInMethod;
            }
        }
        verdict
    }

    /// Judges a call by the class of a lambda or a method reference. Such a class calls methods that
    /// are named by the bootstrap arguments in its host's class file, methods that box and unbox
    /// values, methods of `java.lang.invoke`, and the constructor of `Object`.
    fn judge_lambda(&self, host: &str, callee: &Named<'_>) -> Verdict {
        let Some(class) = self.classes.class(host) else {
            return Unknown("no class file of the lambda's class");
        };
        let boxes = callee.class.starts_with("java.lang.")
            && (callee.name == "valueOf" || callee.name.ends_with("Value"));
        let is_own = callee.name == "<init>" && callee.class == "java.lang.Object";
        let is_of_handles = callee.class.starts_with("java.lang.invoke.");
        let is_named = class.handles.iter().any(|handle| {
            callee.is(handle) && self.can_be_of_one_object(&handle.class, callee.class)
        });
        match boxes || is_own || is_of_handles || is_named {
            true => Possible,
            false => Impossible("no lambda of this class calls it"),
        }
    }

    /// Whether an instruction can call a method.
    fn admits(&self, call: &Call, callee: &Named<'_>) -> bool {
        let target = &call.target;
        match call.kind {
            CallKind::Dynamic => is_invoke_infrastructure(callee.class),
            _ if self.is_polymorphic(target) => is_invoke_infrastructure(callee.class),
            _ if !callee.is(target) => false,
            _ if callee.name == "<init>" => callee.class == target.class,
            // The named class, or a superclass from which it inherits the method.
            CallKind::Static | CallKind::Special => {
                let (ancestors, is_complete) = self.classes.ancestors(&target.class);
                ancestors.contains(callee.class) || !is_complete
            }
            CallKind::Virtual | CallKind::Interface => {
                self.can_be_of_one_object(&target.class, callee.class)
            }
        }
    }

    /// Whether the target is a signature polymorphic method (JVMS 2.9.3), which leads to code
    /// generated by java.lang.invoke.
    fn is_polymorphic(&self, target: &Target) -> bool {
        let is_handle = matches!(
            &*target.class,
            "java.lang.invoke.MethodHandle" | "java.lang.invoke.VarHandle"
        );
        let Some(class) = self.classes.class(&target.class).filter(|_| is_handle) else {
            return false;
        };
        let any = "(java.lang.Object[])";
        let wanted = MethodAccessFlags::NATIVE | MethodAccessFlags::VARARGS;
        let method = class.methods.get(&(target.name.clone() + any));
        method.is_some_and(|methods| methods.iter().any(|m| m.flags.contains(wanted)))
    }

    /// Whether a call through class `named` can reach a method of class `found`: one is the other's
    /// ancestor, or a third class is a subtype of both.
    fn can_be_of_one_object(&self, named: &str, found: &str) -> bool {
        let (of_named, named_complete) = self.classes.ancestors(named);
        let (of_found, found_complete) = self.classes.ancestors(found);
        of_named.contains(found)
            || of_found.contains(named)
            || !named_complete
            || !found_complete
            || self.classes.have_common_subtype(named, found)
    }
}

/// Whether a frame is Java code.
fn is_java(frame: &Frame) -> bool {
    matches!(&*frame.kind, "java" | "inlined" | "interpreted")
}

/// Whether a class is generated at run time, judged by its name.
fn is_generated(class: &str) -> bool {
    class.starts_with("java.lang.invoke.LambdaForm$")
        || class.starts_with("java.lang.invoke.BoundMethodHandle$Species_")
        || class.contains("$$StringConcat")
        || class.contains("$$TypeSwitch")
        || class.contains("$$InjectedInvoker")
        || class.starts_with("jdk.internal.reflect.Generated")
        || class.rsplit(['.', '$']).next().is_some_and(|last| last.starts_with("Proxy"))
            && class.contains("$Proxy")
}

/// Whether a class has signature polymorphic methods. In the frame of such a method, the parameter
/// types are those of the call, not those of the declaration.
fn is_handle(class: &str) -> bool {
    matches!(class, "java.lang.invoke.MethodHandle" | "java.lang.invoke.VarHandle")
}

/// Whether methods are added to the class after its compilation: by jlink, or when a CDS archive is
/// dumped.
fn is_filled_in_later(class: &str) -> bool {
    class.starts_with("java.lang.invoke.") && class.ends_with("$Holder")
}

/// Whether `invokedynamic` and method handles lead to this class.
fn is_invoke_infrastructure(class: &str) -> bool {
    class.starts_with("java.lang.invoke.") || is_generated(class) || class.contains("$$Lambda")
}

/// Returns a stub's name without the prefixes and suffixes that JDK versions add: `ic_miss_stub`,
/// `Shared Runtime ic_miss_blob`, `slow_subtype_check Runtime1 stub`, `C1 Runtime
/// slow_subtype_check_blob`.
fn plain_stub(name: &str) -> &str {
    let name = ["C1 Runtime ", "Shared Runtime "]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name);
    [" Runtime1 stub", "_stub", "_blob"]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(name)
}

/// Describes the innermost user-space frame of a sample.
fn leaf(sample: &Sample) -> String {
    match sample.frames.iter().rfind(|frame| frame.kind != "kernel") {
        Some(frame) if frame.kind == "stub" => plain_stub(&frame.name).to_owned(),
        Some(frame) => format!("{} code", frame.kind),
        None => "nothing".to_owned(),
    }
}

fn text(frame: &Frame) -> String {
    let line = frame.line.map_or_else(String::new, |line| format!(":{line}"));
    format!("{}{line}", frame.name)
}

/// Formats a complete stack with kinds and lines, outermost first. The call is marked.
fn stack(sample: &Sample, caller: &Frame, callee: &Frame) -> String {
    let mut out = format!("{} samples, {}\n", sample.weight, sample.thread);
    for frame in &sample.frames {
        let mark =
            if std::ptr::eq(frame, caller) || std::ptr::eq(frame, callee) { ">" } else { " " };
        // Writing into a String does not fail.
        let _ = writeln!(out, "  {mark} {:11} {}", frame.kind, text(frame));
    }
    out
}

impl Report {
    /// Returns the number of impossible calls per 100,000 judged calls.
    pub fn rate(&self) -> f64 {
        self.impossible as f64 * 100_000.0 / self.calls.max(1) as f64
    }

    /// Returns the figures as a few lines of text.
    pub fn summary(&self) -> String {
        let unknown: u64 = self.unknown.values().sum();
        let mut out = format!(
            "{} samples, {} with Java frames; {} calls judged: {} impossible ({:.1} in 100,000) \
             in {} samples, {} at other lines only; {unknown} not judged\n",
            self.samples,
            self.java,
            self.calls,
            self.impossible,
            self.rate(),
            self.samples_with_impossible_call,
            self.elsewhere,
        );
        for (leaf, count) in &self.leaves {
            let _ = writeln!(out, "  impossible: {count} x on stacks that end in {leaf}");
        }
        for (why, count) in &self.unknown {
            let _ = writeln!(out, "  not judged: {count} x {why}");
        }
        out
    }

    /// Returns every impossible call, most frequent first, with some of its stacks. If `lines` is
    /// set, also returns the calls that the caller's bytecode contains only at other lines.
    pub fn details(&self, lines: bool) -> String {
        let mut all: Vec<_> = self
            .offences
            .iter()
            .map(|((why, caller, callee), offence)| (*why, caller, callee, offence))
            .collect();
        if lines {
            let elsewhere = self.at_other_lines.iter();
            all.extend(
                elsewhere.map(|((caller, callee), o)| ("not at this line", caller, callee, o)),
            );
        }
        all.sort_by_key(|(.., offence)| std::cmp::Reverse(offence.samples));
        let mut out = String::new();
        for (why, caller, callee, offence) in all {
            let _ = writeln!(out, "\n{} x {caller}\n  -> {callee}\n  {why}", offence.samples);
            out.extend(offence.stacks.iter().map(|stack| format!("{stack}\n")));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, process::Command};

    use super::*;
    use crate::{
        load,
        programs::{Program, class_path},
        runtimes,
    };

    const SOURCE: &str = include_str!("../java/PossibleCalls.java");
    const PLAIN: &str = "PossibleCalls.plain(PossibleCalls$Shape, PossibleCalls$Base)";

    /// Returns a checker with the class files of `PossibleCalls` and of a runtime.
    fn checker() -> Checker {
        let folder = tempfile::tempdir().unwrap();
        let jar: PathBuf = folder.path().join("classes.jar");
        let mut command = Command::new("jar");
        command.arg("cf").arg(&jar).arg("-C").arg(load::classes()).arg(".");
        assert!(command.status().expect("run jar, which is beside javac").success());
        let program = Program { jars: vec![jar], args: Vec::new() };
        Checker::new(class_path(runtimes::named("temurin-17"), &program))
    }

    fn frame(name: &str, line: Option<u64>) -> Frame {
        let kind = if name.contains('(') { "java" } else { "stub" };
        Frame { name: name.into(), file: None, line, kind: kind.into() }
    }

    /// Returns the source line that is marked with `// at MARK`.
    fn line(mark: &str) -> Option<u64> {
        let comment = format!("// at {mark}");
        let at = SOURCE.lines().position(|line| line.ends_with(&comment)).expect("a mark");
        Some(at as u64 + 1)
    }

    /// Judges a call without a known line.
    fn judge(checker: &Checker, caller: &str, callee: &str) -> Verdict {
        checker.judge(&frame(caller, None), &frame(callee, None))
    }

    fn is_impossible(checker: &Checker, caller: &str, callee: &str) -> bool {
        matches!(judge(checker, caller, callee), Impossible(_))
    }

    #[test]
    fn calls_match_invoke_instructions_and_overrides() {
        let checker = checker();
        for callee in [
            "PossibleCalls$Base.area()",
            "PossibleCalls$Small.area()",
            "PossibleCalls$Base.make(int)",
            "PossibleCalls$Small.<init>()",
        ] {
            assert_eq!(judge(&checker, PLAIN, callee), Possible, "{callee}");
        }
        for callee in [
            // Another class, other parameters, another name, not called at all.
            "PossibleCalls$Other.area()",
            "PossibleCalls.make(java.lang.String)",
            "PossibleCalls$Shape.twice()",
            "PossibleCalls.tests(java.lang.Object, int[])",
            "PossibleCalls$Square.<init>()",
        ] {
            assert!(is_impossible(&checker, PLAIN, callee), "{callee}");
        }
        let small = "PossibleCalls$Small.area()";
        assert_eq!(judge(&checker, small, "PossibleCalls$Base.area()"), Possible);
        assert!(is_impossible(&checker, small, small));
        let copy = "PossibleCalls.copy(int[])";
        assert_eq!(judge(&checker, copy, "java.lang.Object.clone()"), Possible);
    }

    #[test]
    fn line_numbers_distinguish_calls_in_a_method() {
        let checker = checker();
        let judge = |mark, callee| checker.judge(&frame(PLAIN, line(mark)), &frame(callee, None));
        let (area, make) = ("PossibleCalls$Base.area()", "PossibleCalls$Base.make(int)");
        // The receiver of the interface call may be a `Square`, which inherits the method from
        // `Base`.
        assert_eq!(judge("interface", area), Possible);
        assert_eq!(judge("class", area), Possible);
        assert_eq!(judge("static", area), ElsewhereInMethod);
        assert_eq!(judge("static", make), Possible);
        assert_eq!(judge("class", make), ElsewhereInMethod);
    }

    #[test]
    fn initialisers_and_abstract_methods_have_no_java_caller() {
        let checker = checker();
        for callee in [
            "PossibleCalls$Base.<clinit>()",
            "PossibleCalls$Shape.area()",
            "PossibleCalls$Base.none()",
        ] {
            assert!(is_impossible(&checker, PLAIN, callee), "{callee}");
        }
        assert!(is_impossible(&checker, "PossibleCalls.none()", "PossibleCalls$Base.area()"));
    }

    #[test]
    fn generated_lambda_and_handle_code_is_recognized() {
        let checker = checker();
        let made = "java.lang.invoke.LambdaForm$MH.linkToTargetMethod(java.lang.Object)";
        assert_eq!(judge(&checker, "PossibleCalls.lambda(int)", made), Possible);
        let held = "java.lang.invoke.Invokers$Holder.invokeExact_MT(java.lang.Object, int, \
                    java.lang.Object)";
        let handle = "PossibleCalls.handle(java.lang.invoke.MethodHandle)";
        assert_eq!(judge(&checker, handle, held), Possible);
        assert!(is_impossible(&checker, PLAIN, made));
        assert!(is_impossible(&checker, PLAIN, held));
        assert!(matches!(judge(&checker, held, "PossibleCalls$Base.make(int)"), Unknown(_)));
        let lambda = "PossibleCalls$$Lambda$7.getAsInt()";
        assert_eq!(judge(&checker, lambda, "PossibleCalls.lambda$lambda$0(int)"), Possible);
        assert!(is_impossible(&checker, lambda, "PossibleCalls.make(java.lang.String)"));
    }

    #[test]
    fn stubs_match_instructions_of_the_caller() {
        let checker = checker();
        let tests = "PossibleCalls.tests(java.lang.Object, int[])";
        for check in ["slow_subtype_check Runtime1 stub", "C1 Runtime slow_subtype_check_blob"] {
            assert_eq!(judge(&checker, tests, check), Possible, "{check}");
            let calls_nothing = "PossibleCalls$Base.make(int)";
            assert!(is_impossible(&checker, calls_nothing, check), "{check}");
            assert!(matches!(judge(&checker, PLAIN, check), Unknown(_)), "{check}");
        }
        assert_eq!(judge(&checker, PLAIN, "vtable chunks"), Possible);
        assert!(is_impossible(&checker, tests, "vtable chunks"));
        assert!(matches!(judge(&checker, tests, "fast_new_instance Runtime1 stub"), Unknown(_)));
    }

    #[test]
    fn skipped_or_swapped_frames_are_reported_impossible() {
        let checker = checker();
        let stack = |order: &[usize]| {
            let all = [
                frame("PossibleCalls.lambda$lambda$0(int)", None),
                frame("PossibleCalls.make(java.lang.String)", None),
                frame("java.lang.String.length()", None),
            ];
            let frames = order.iter().map(|&at| all[at].clone()).collect();
            Sample { thread: "main".into(), frames, weight: 5 }
        };
        let report = checker.check(&[stack(&[0, 1, 2])]);
        assert_eq!((report.samples, report.calls, report.impossible), (5, 10, 0));
        for (order, impossible) in [(&[0, 2][..], 5), (&[0, 2, 1], 10), (&[1, 0, 2], 10)] {
            let report = checker.check(&[stack(&[0, 1, 2]), stack(order)]);
            assert_eq!(
                (report.impossible, report.samples_with_impossible_call),
                (impossible, 5),
                "{order:?}"
            );
            assert!(report.details(false).contains("java.lang.String.length()"));
            assert_eq!(report.leaves["java code"], impossible);
        }
        // With native code between the frames, the JVM may have made the call.
        let mut apart = stack(&[0, 2]);
        apart
            .frames
            .insert(1, Frame { kind: "jvm".into(), ..frame("JavaCalls::call_helper", None) });
        assert_eq!(checker.check(&[apart]).calls, 0);
    }
}
