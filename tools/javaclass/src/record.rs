//! Records that javaclass reports, with the names of its JSON output.
//!
//! Names and meanings are documented in javaclass(8) and stable: fields may be added, but none is
//! renamed. Sizes are in bytes.

use std::sync::Arc;

use libjvmprobe::stack::StackFrame;
use serde::Serialize;

use crate::origin::Kind;

/// One line of output.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Record {
    /// A class, or several hidden classes of the same name and loader.
    Class(Class),
    /// The usage of a line of a list.
    Listed(Listed),
    /// An unused class of a jar.
    Unused(Unused),
    /// A class that was loaded, unloaded or initialised.
    Change(Changed),
    /// Numbers of classes loaded, unloaded and initialised.
    Rates(Rates),
    /// Numbers of loaders and of their classes, and whether these numbers grow.
    Loader(LoaderGrowth),
    /// Totals of one JVM.
    Summary(Summary),
}

/// Numbers of the methods of a class or of several classes, by usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MethodCounts {
    /// All methods with code.
    pub methods: u64,
    /// Methods that were called.
    pub called: u64,
    /// Methods whose usage is unknown.
    pub unknown: u64,
    /// Methods that were not called, as far as can be determined.
    pub not_called: u64,
}

/// A class.
#[derive(Clone, Debug, Serialize)]
pub struct Class {
    /// The process.
    pub pid: u32,
    /// Its name, as in Java source.
    pub class: String,
    /// Number of classes: hidden classes of the same name and loader share one record.
    pub classes: u64,
    /// Whether it is hidden.
    pub hidden: bool,
    /// The kind of its origin.
    pub origin_kind: Kind,
    /// Its origin: a path, a module's name, or a text in parentheses.
    pub origin: String,
    /// Whether the origin was found by the class's name, because the JVM's own record of the origin could
    /// not be read. The origin is then the first jar on the class path that has a class of this name or, if
    /// no jar has it, the first folder.
    #[serde(skip_serializing_if = "is_false")]
    pub origin_by_name: bool,
    /// Its module, if that has a name.
    pub module: Option<String>,
    /// Its loader's class; null for the boot loader.
    pub loader: Option<String>,
    /// Its loader's name, if it has one.
    pub loader_name: Option<String>,
    /// Its loader as the JVM's log names it.
    pub loader_id: Option<String>,
    /// `loaded`, `linked`, `initializing`, `initialized`, `failed`; of several classes, the furthest state.
    pub state: &'static str,
    /// ID of the thread that initialises it, in that thread's own PID namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initializer: Option<u32>,
    /// Whether it comes from an archive (CDS, AOT cache).
    pub archived: bool,
    /// Whether it was redefined; null if unknown.
    pub redefined: Option<bool>,
    /// Metaspace that it uses: an estimate.
    pub bytes: u64,
    /// Numbers of its methods.
    #[serde(flatten)]
    pub counts: MethodCounts,
    /// Its methods, with `--methods`.
    #[serde(skip_serializing_if = "Vec::is_empty", rename = "method_list")]
    pub list: Vec<Method>,
}

/// Omits a field from JSON if it is false.
fn is_false(value: &bool) -> bool {
    !value
}

/// A method.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Method {
    /// Its name.
    pub name: String,
    /// Its descriptor.
    pub descriptor: String,
    /// `called`, `not called`, `unknown`, `abstract`.
    pub usage: &'static str,
    /// The reason why its usage is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'static str>,
    /// Number of counted calls: a lower bound.
    pub counted: u64,
    /// Whether it is compiled now.
    pub compiled: bool,
}

/// The usage of a line of a list.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// The process.
    pub pid: u32,
    /// Text of the line.
    pub pattern: String,
    /// The vulnerability to which the line belongs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vulnerability: Option<String>,
    /// `not loaded`, `loaded`, `initialized`, `called`, `not called`, `unknown`.
    pub found: &'static str,
    /// Whether it is in use, or may be.
    pub in_use: bool,
    /// The class, or the method with its class, on which `found` is based; of several, the first.
    pub example: Option<String>,
    /// The reason why its usage is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'static str>,
    /// Number of matching classes.
    pub classes: u64,
    /// Origin of the class in `example`.
    pub origin: Option<String>,
    /// First load of a matching class, if it was observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_loaded: Option<Box<Changed>>,
    /// First initialisation of a matching class, or first failed one, if it was observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_initialized: Option<Box<Changed>>,
}

/// A class that was loaded, unloaded or initialised.
#[derive(Clone, Debug, Serialize)]
pub struct Changed {
    /// Wall-clock time, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// The same time on `CLOCK_MONOTONIC`, in nanoseconds.
    pub ts_ns: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The thread's name.
    pub thread: String,
    /// `loaded`, `unloaded`, `initialized`, `failed`.
    pub event: &'static str,
    /// The class.
    pub class: String,
    /// Whether its loader is the boot loader.
    pub boot_loader: bool,
    /// Whether a class that was loaded comes from an archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archived: Option<bool>,
    /// Duration of an initialisation, including all code that the initialiser called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ns: Option<u64>,
    /// Stack that caused the event, innermost frame first, with `--stacks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<Vec<StackFrame>>,
}

/// Numbers of classes loaded, unloaded and initialised in a period.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Rates {
    /// Wall-clock time of the end, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// The process.
    pub pid: u32,
    /// `interval` or `trace`.
    pub scope: &'static str,
    /// Wall-clock length of the period.
    pub duration_ns: u64,
    /// Classes that were loaded.
    pub loaded: u64,
    /// Classes that were unloaded.
    pub unloaded: u64,
    /// Classes that were initialised.
    pub initialized: u64,
    /// Classes whose initialisers threw.
    pub failed: u64,
}

/// Loaders of one class and name, and their growth.
#[derive(Clone, Debug, Serialize)]
pub struct LoaderGrowth {
    /// The process.
    pub pid: u32,
    /// Their class and name.
    pub loader: String,
    /// Number of these loaders.
    pub loaders: u64,
    /// Increase of their number since the first reading.
    pub loaders_more: i64,
    /// Number of their classes.
    pub classes: u64,
    /// Increase of the number of classes since the first reading.
    pub classes_more: i64,
    /// Number of readings.
    pub reads: u64,
    /// Number of readings with more loaders or classes than in the reading before.
    pub rises: u64,
    /// Number of readings with fewer loaders or classes than in the reading before.
    pub falls: u64,
    /// Whether there were at least two rises and no fall.
    pub only_grows: bool,
}

/// A class, contained in a jar, that is not loaded or not initialised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unused {
    /// The process.
    pub pid: u32,
    /// The jar; the path of a jar within another one follows `!/`.
    pub jar: Arc<str>,
    /// The class.
    pub class: String,
    /// `not loaded` if no loader has loaded a class of this name from any origin, or `not initialized`.
    pub state: &'static str,
}

/// Totals of one JVM.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// The process.
    pub pid: u32,
    /// The version of javaclass.
    pub version: &'static str,
    /// The JVM's name and version.
    pub jvm: String,
    /// Number of its classes, without array classes.
    pub classes: u64,
    /// Number of hidden classes.
    pub hidden: u64,
    /// Number of classes that are linked, or in a later state.
    pub linked: u64,
    /// Number of classes whose initialisation has begun or ended.
    pub initialized: u64,
    /// Number of classes with a called method.
    pub classes_called: u64,
    /// Numbers of the methods of all classes.
    #[serde(flatten)]
    pub counts: MethodCounts,
    /// Metaspace that all classes use: an estimate.
    pub bytes: u64,
    /// Number of loaders.
    pub loaders: u64,
    /// Number of classes unloaded since the JVM started, which may have been used; null if
    /// unknown.
    pub unloaded: Option<u64>,
    /// Number of classes that could not be read.
    pub unreadable: u64,
    /// Whether all lists of classes were read to their ends.
    pub complete: bool,
    /// If the call counters of this JVM do not show all calls, the reason. The usage of every method
    /// without evidence of a call is then unknown.
    pub not_counted: Option<&'static str>,
    /// Time taken to read the classes, in nanoseconds.
    pub duration_ns: u64,
}
