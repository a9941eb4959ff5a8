//! What javaclass reports, as its JSON output spells it.
//!
//! Names and meanings are documented in javaclass(8) and stable: fields may be added, none is
//! renamed. Sizes are in bytes.

use libjvmprobe::render::stack::StackFrame;
use serde::Serialize;

use crate::origin::Kind;

/// One line of output.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Record {
    /// A class, or several hidden ones that are alike.
    Class(Class),
    /// What of a list is used.
    Listed(Listed),
    /// A class of a jar that is not used.
    Unused(Unused),
    /// Something that became of a class.
    Change(Changed),
    /// How many classes came and went.
    Rates(Rates),
    /// How many classes loaders have, and whether they become more.
    Loader(LoaderGrowth),
    /// Totals of one JVM.
    Summary(Summary),
}

/// How many of a class's methods were called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MethodCounts {
    /// All with code.
    pub methods: u64,
    /// Those that were called.
    pub called: u64,
    /// Those of which it is unknown.
    pub unknown: u64,
    /// Those that were not called, as far as can be known.
    pub not_called: u64,
}

/// A class.
#[derive(Clone, Debug, Serialize)]
pub struct Class {
    /// The process.
    pub pid: u32,
    /// Its name, as Java's source would have it.
    pub class: String,
    /// How many classes these are: hidden ones that are alike are told together.
    pub classes: u64,
    /// Whether it is hidden.
    pub hidden: bool,
    /// What kind of place it comes from.
    pub origin_kind: Kind,
    /// The place.
    pub origin: String,
    /// Whether that is the first of the class path that has a class of this name: the JVM's own
    /// word could not be read.
    #[serde(skip_serializing_if = "is_false")]
    pub origin_by_name: bool,
    /// Its module, where that has a name.
    pub module: Option<String>,
    /// Its loader's class; null for the boot loader.
    pub loader: Option<String>,
    /// Its loader's name, where it has one.
    pub loader_name: Option<String>,
    /// Its loader as the JVM's log names it.
    pub loader_id: Option<String>,
    /// `loaded`, `linked`, `initializing`, `initialized`, `failed`; of several, the furthest.
    pub state: &'static str,
    /// Which thread initialises it, by its number in its own PID namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initializer: Option<u32>,
    /// Whether it comes from an archive (CDS, AOT cache).
    pub archived: bool,
    /// Whether it was redefined; null where that is unknown.
    pub redefined: Option<bool>,
    /// What it takes of metaspace: an estimate.
    pub bytes: u64,
    /// Its methods, counted.
    #[serde(flatten)]
    pub counts: MethodCounts,
    /// Its methods, with `--methods`.
    #[serde(skip_serializing_if = "Vec::is_empty", rename = "method_list")]
    pub list: Vec<Method>,
}

/// What is only told where it is so.
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
    /// Why it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'static str>,
    /// How often it was counted: a lower bound.
    pub counted: u64,
    /// Whether it is compiled now.
    pub compiled: bool,
}

/// What of a line of a list is used.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// The process.
    pub pid: u32,
    /// The line.
    pub pattern: String,
    /// The vulnerability that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vulnerability: Option<String>,
    /// `not loaded`, `loaded`, `initialized`, `called`, `not called`, `unknown`.
    pub found: &'static str,
    /// Whether it is in use, or may be.
    pub in_use: bool,
    /// The class, or the method with its class, that says so; of several, the first.
    pub example: Option<String>,
    /// Why it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'static str>,
    /// How many classes match.
    pub classes: u64,
    /// Where the first of them comes from.
    pub origin: Option<String>,
    /// When the first of them was loaded, where that was watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_loaded: Option<Box<Changed>>,
    /// When the first of them was initialised, or failed to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_initialized: Option<Box<Changed>>,
}

/// Something that became of a class.
#[derive(Clone, Debug, Serialize)]
pub struct Changed {
    /// Wall-clock time, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// The same on `CLOCK_MONOTONIC`.
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
    /// Of a class that was loaded: whether it comes from an archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archived: Option<bool>,
    /// Of an initialisation: how long it took, with all that it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ns: Option<u64>,
    /// What caused it, innermost frame first, with `--stacks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<Vec<StackFrame>>,
}

/// How many classes came and went in a time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Rates {
    /// Wall-clock time of the end, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// The process.
    pub pid: u32,
    /// `interval` or `trace`.
    pub scope: &'static str,
    /// Wall time that this covers.
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

/// Loaders of one class and name, and whether they grow.
#[derive(Clone, Debug, Serialize)]
pub struct LoaderGrowth {
    /// The process.
    pub pid: u32,
    /// Their class and name.
    pub loader: String,
    /// How many there are.
    pub loaders: u64,
    /// How many more than at first.
    pub loaders_more: i64,
    /// How many classes they have.
    pub classes: u64,
    /// How many more than at first.
    pub classes_more: i64,
    /// How often they were counted.
    pub reads: u64,
    /// How often they had more than the time before.
    pub rises: u64,
    /// How often they had less.
    pub falls: u64,
    /// Whether they had more at least twice, and never less.
    pub only_grows: bool,
}

/// A class of a jar that is not loaded, or not initialised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unused {
    /// The process.
    pub pid: u32,
    /// The jar; within another one behind `!/`.
    pub jar: String,
    /// The class.
    pub class: String,
    /// `not loaded`, by any loader from anywhere, or `not initialized`.
    pub state: &'static str,
}

/// Totals of one JVM.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// The process.
    pub pid: u32,
    /// The version of javaclass that says so.
    pub version: &'static str,
    /// The JVM's name and version.
    pub jvm: String,
    /// Its classes, arrays apart.
    pub classes: u64,
    /// How many of them are hidden.
    pub hidden: u64,
    /// How many are linked, or further.
    pub linked: u64,
    /// How many are initialised.
    pub initialized: u64,
    /// Of how many a method was called.
    pub classes_called: u64,
    /// Their methods.
    #[serde(flatten)]
    pub counts: MethodCounts,
    /// What they take of metaspace: an estimate.
    pub bytes: u64,
    /// How many loaders there are.
    pub loaders: u64,
    /// How many classes were unloaded since it started, which may have been used; null where that
    /// is not known.
    pub unloaded: Option<u64>,
    /// Classes that could not be read.
    pub unreadable: u64,
    /// Whether all lists of classes were read to their ends.
    pub complete: bool,
    /// Why methods without a trace are unknown, where that is so of all.
    pub not_counted: Option<&'static str>,
    /// How long it took to read them, in nanoseconds.
    pub duration_ns: u64,
}
