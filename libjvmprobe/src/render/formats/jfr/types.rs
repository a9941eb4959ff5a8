//! Types of a recording: those of events, of the constants that events refer to, and of annotations.
//!
//! Names, labels and fields are those of the JDK (hotspot/share/jfr/metadata/metadata.xml, jdk.jfr's package
//! `jdk.jfr.events`), so that views and rules made for the JDK's recordings apply. Fields are left out if their values
//! cannot be known from outside of the JVM. `profiler.WallClockSample` and the identifiers of frame types are those of
//! async-profiler (src/jfrMetadata.cpp), which `jfrconv` and other readers know.

/// Identifier of a type. The metadata of a recording contains it, so that its value is of no importance to readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TypeId(pub(super) u64);

/// A type.
#[derive(Debug)]
pub(super) struct Type {
    /// Identifier.
    pub(super) id: TypeId,
    /// Full name.
    pub(super) name: &'static str,
    /// Name for people; empty for types that have none.
    pub(super) label: &'static str,
    /// Purpose.
    pub(super) family: Family,
    /// Category of an event, from the most general to the most specific.
    pub(super) category: &'static [&'static str],
    /// Fields, in the order of their values.
    pub(super) fields: &'static [Field],
}

/// Purpose of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// Numbers, texts, and constants with several fields.
    Value,
    /// Constants with a single field, which readers show as the value of that field.
    Simple,
    /// Annotations of types and fields.
    Annotation,
    /// Annotations that say how a number is to be read.
    ContentType,
    /// Events.
    Event,
}

/// A field of a type.
#[derive(Debug)]
pub(super) struct Field {
    /// Name.
    pub(super) name: &'static str,
    /// Type of its values.
    pub(super) of: TypeId,
    /// Name for people; empty if it has none.
    pub(super) label: &'static str,
    /// Meaning of its values.
    pub(super) unit: Unit,
}

/// Meaning of a field's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// The value itself.
    Plain,
    /// Key of a constant.
    Constant,
    /// List of values.
    List,
    /// Number that is never negative.
    Unsigned,
    /// Number of bytes.
    Bytes,
    /// Address in memory.
    Address,
    /// Share, from 0 to 1.
    Share,
    /// Point in time, in ticks.
    Time,
    /// Point in time, in milliseconds since 1970.
    TimeMillis,
    /// Duration in ticks.
    Duration,
}

macro_rules! ids {
    ($($name:ident = $id:literal,)*) => {
        $(pub(super) const $name: TypeId = TypeId($id);)*
    };
}

ids! {
    // The numbers 0 and 1 are those of the events with metadata and constants.
    BOOLEAN = 4,
    CHAR = 5,
    FLOAT = 6,
    DOUBLE = 7,
    BYTE = 8,
    SHORT = 9,
    INT = 10,
    LONG = 11,
    STRING = 20,
    CLASS = 21,
    THREAD = 22,
    CLASS_LOADER = 23,
    FRAME_TYPE = 24,
    THREAD_STATE = 25,
    STACK_TRACE = 26,
    STACK_FRAME = 27,
    METHOD = 28,
    PACKAGE = 30,
    SYMBOL = 31,
    GC_WHEN = 32,
    THREAD_GROUP = 33,
    GC_NAME = 34,
    GC_CAUSE = 35,
    VM_OPERATION = 36,
    DEOPTIMIZATION_REASON = 37,
    DEOPTIMIZATION_ACTION = 38,
    COMPILER = 39,
    LABEL = 201,
    CATEGORY = 202,
    CONTENT_TYPE = 203,
    TIMESTAMP = 204,
    TIMESPAN = 205,
    DATA_AMOUNT = 206,
    UNSIGNED = 207,
    MEMORY_ADDRESS = 208,
    PERCENTAGE = 209,
}

const fn field(name: &'static str, of: TypeId, label: &'static str, unit: Unit) -> Field {
    Field { name, of, label, unit }
}

const fn value(
    id: TypeId,
    name: &'static str,
    label: &'static str,
    fields: &'static [Field],
) -> Type {
    Type { id, name, label, family: Family::Value, category: &[], fields }
}

const fn simple(
    id: TypeId,
    name: &'static str,
    label: &'static str,
    fields: &'static [Field],
) -> Type {
    Type { id, name, label, family: Family::Simple, category: &[], fields }
}

const fn annotation(id: TypeId, name: &'static str, fields: &'static [Field]) -> Type {
    Type { id, name, label: "", family: Family::Annotation, category: &[], fields }
}

const fn content_type(id: TypeId, name: &'static str, fields: &'static [Field]) -> Type {
    Type { id, name, label: "", family: Family::ContentType, category: &[], fields }
}

const fn event(
    id: u64,
    name: &'static str,
    label: &'static str,
    category: &'static [&'static str],
    fields: &'static [Field],
) -> Type {
    Type { id: TypeId(id), name, label, family: Family::Event, category, fields }
}

/// Defines types of events: the constant of each one, with its identifier, name, label, category and fields, and the list
/// `EVENTS` of all of them.
macro_rules! events {
    ($($(#[$doc:meta])* $constant:ident =
        $id:literal, $name:literal, $label:literal, $category:expr, $fields:expr;)*) => {
        $($(#[$doc])* pub(super) const $constant: Type =
            event($id, $name, $label, $category, $fields);)*

        const EVENTS: &[&Type] = &[$(&$constant),*];
    };
}

const START: Field = field("startTime", LONG, "Start Time", Unit::Time);
const DURATION: Field = field("duration", LONG, "Duration", Unit::Duration);
const EVENT_THREAD: Field = field("eventThread", THREAD, "Event Thread", Unit::Constant);
const SAMPLED_THREAD: Field = field("sampledThread", THREAD, "Thread", Unit::Constant);
const STACK: Field = field("stackTrace", STACK_TRACE, "Stack Trace", Unit::Constant);
const STATE: Field = field("state", THREAD_STATE, "Thread State", Unit::Constant);
const GC_ID: Field = field("gcId", INT, "GC Identifier", Unit::Unsigned);
const SAFEPOINT_ID: Field = field("safepointId", LONG, "Safepoint Identifier", Unit::Unsigned);
/// A field of our own, behind those of the JDK.
const WEIGHT: Field = field("weight", LONG, "Occurrences", Unit::Unsigned);

const PROFILING: &[&str] = &["Java Virtual Machine", "Profiling"];
const APPLICATION: &[&str] = &["Java Application"];
const COLLECTOR: &[&str] = &["Java Virtual Machine", "GC", "Collector"];
const SAFEPOINTS: &[&str] = &["Java Virtual Machine", "Runtime", "Safepoint"];
const COMPILATIONS: &[&str] = &["Java Virtual Machine", "Compiler"];

const PHASES: &[&str] = &["Java Virtual Machine", "GC", "Phases"];
const PHASE: &[Field] = &[START, DURATION, GC_ID, field("name", STRING, "Name", Unit::Plain)];

const fn phase(id: u64, name: &'static str, label: &'static str) -> Type {
    event(id, name, label, PHASES, PHASE)
}

const THREADS: Field = field("totalThreadCount", INT, "Total Threads", Unit::Plain);
const CRITICAL: Field = field("jniCriticalThreadCount", INT, "JNI Critical Threads", Unit::Plain);

/// Value of an `int` that is not known, which the JDK's tools show as "N/A".
pub(super) const UNKNOWN_INT: u64 = 1 << 31;

const MONITOR_CLASS: Field = field("monitorClass", CLASS, "Monitor Class", Unit::Constant);
const SOCKET: &[Field] = &[
    START,
    DURATION,
    EVENT_THREAD,
    STACK,
    field("host", STRING, "Host", Unit::Plain),
    field("address", STRING, "Address", Unit::Plain),
    field("port", INT, "Port", Unit::Plain),
];
const FILE: &[Field] =
    &[START, DURATION, EVENT_THREAD, STACK, field("path", STRING, "Path", Unit::Plain)];
const ONLY_TIME: &[Field] = &[START, DURATION, EVENT_THREAD, STACK];

events! {
    /// A sample of CPU time. Each event represents one sampling interval.
    EXECUTION_SAMPLE = 101, "jdk.ExecutionSample", "Method Profiling Sample",
        PROFILING, &[START, SAMPLED_THREAD, STACK, STATE];

    /// Wall-clock time of a thread with one stack.
    WALL_CLOCK_SAMPLE = 102, "profiler.WallClockSample", "Wall Clock Sample",
        PROFILING, &[
            START, SAMPLED_THREAD, STACK, STATE,
            field("samples", INT, "Samples", Unit::Unsigned),
            field("timeSpan", LONG, "Time Span", Unit::Duration),
        ];

    /// Occurrences of an event that the JDK has no type for.
    EVENT_SAMPLE = 103, "jvmprobe.EventSample", "Event Sample",
        PROFILING, &[
            START, SAMPLED_THREAD, STACK,
            field("event", STRING, "Event", Unit::Plain),
            WEIGHT,
        ];

    /// Allocation of a class with one stack.
    ALLOCATION_SAMPLE = 104, "jdk.ObjectAllocationSample", "Object Allocation Sample",
        APPLICATION, &[
            START, EVENT_THREAD, STACK,
            field("objectClass", CLASS, "Object Class", Unit::Constant),
            field("weight", LONG, "Sample Weight", Unit::Bytes),
        ];

    /// Creation of a throwable.
    EXCEPTION_THROW = 105, "jdk.JavaExceptionThrow", "Java Exception",
        APPLICATION, &[
            START, EVENT_THREAD, STACK,
            field("message", STRING, "Message", Unit::Plain),
            field("thrownClass", CLASS, "Class", Unit::Constant),
            WEIGHT,
        ];

    /// Definition of a class.
    CLASS_DEFINE = 106, "jdk.ClassDefine", "Class Define",
        &["Java Virtual Machine", "Class Loading"], &[
            START, EVENT_THREAD, STACK,
            field("definedClass", CLASS, "Defined Class", Unit::Constant),
            WEIGHT,
        ];

    /// Start of a Java thread, with the stack of the thread that started it.
    THREAD_START = 107, "jdk.ThreadStart", "Java Thread Start",
        APPLICATION, &[
            START, EVENT_THREAD, STACK,
            field("parentThread", THREAD, "Parent Java Thread", Unit::Constant),
            field("threadClass", CLASS, "Class of the Thread Object", Unit::Constant),
            WEIGHT,
        ];

    /// Uncommon trap of compiled code.
    DEOPTIMIZATION = 108, "jdk.Deoptimization", "Deoptimization",
        COMPILATIONS, &[
            START, EVENT_THREAD, STACK,
            field("method", METHOD, "Method", Unit::Constant),
            field("lineNumber", INT, "Line Number", Unit::Plain),
            field("reason", DEOPTIMIZATION_REASON, "Reason", Unit::Constant),
            field("action", DEOPTIMIZATION_ACTION, "Action", Unit::Constant),
            WEIGHT,
        ];

    /// Compilation of a method.
    COMPILATION = 109, "jdk.Compilation", "Compilation",
        COMPILATIONS, &[
            START, DURATION, EVENT_THREAD,
            field("compiler", COMPILER, "Compiler", Unit::Constant),
            field("method", METHOD, "Method", Unit::Constant),
            field("compileLevel", SHORT, "Compilation Level", Unit::Unsigned),
            // As the JDK spells it.
            field("succeded", BOOLEAN, "Succeeded", Unit::Plain),
            field("isOsr", BOOLEAN, "On Stack Replacement", Unit::Plain),
        ];

    /// A garbage collection, or a concurrent cycle.
    GARBAGE_COLLECTION = 110, "jdk.GarbageCollection", "Garbage Collection",
        COLLECTOR, &[
            START, DURATION, GC_ID,
            field("name", GC_NAME, "Name", Unit::Constant),
            field("cause", GC_CAUSE, "Cause", Unit::Constant),
            field("sumOfPauses", LONG, "Sum of Pauses", Unit::Duration),
            field("longestPause", LONG, "Longest Pause", Unit::Duration),
        ];

    /// A pause of a garbage collection.
    GC_PHASE_PAUSE = 111, "jdk.GCPhasePause", "GC Phase Pause",
        PHASES, PHASE;

    /// Used heap before or after a garbage collection.
    GC_HEAP_SUMMARY = 112, "jdk.GCHeapSummary", "Heap Summary",
        &["Java Virtual Machine", "GC", "Heap"], &[
            START, GC_ID,
            field("when", GC_WHEN, "When", Unit::Constant),
            field("heapUsed", LONG, "Heap Used", Unit::Bytes),
        ];

    /// A collection of the young generation.
    YOUNG_COLLECTION = 113, "jdk.YoungGarbageCollection", "Young Garbage Collection",
        COLLECTOR, &[START, DURATION, GC_ID];

    /// A collection of the old generation or of the complete heap.
    OLD_COLLECTION = 114, "jdk.OldGarbageCollection", "Old Garbage Collection",
        COLLECTOR, &[START, DURATION, GC_ID];

    /// Request of a safepoint. The duration ends when all threads have stopped.
    SAFEPOINT_BEGIN = 115, "jdk.SafepointBegin", "Safepoint Begin",
        SAFEPOINTS, &[START, DURATION, SAFEPOINT_ID, THREADS, CRITICAL];

    /// Time until all threads have stopped.
    SAFEPOINT_SYNCHRONIZATION = 116, "jdk.SafepointStateSynchronization", "Safepoint State Synchronization",
        SAFEPOINTS, &[START, DURATION, SAFEPOINT_ID];

    /// End of a safepoint.
    SAFEPOINT_END = 117, "jdk.SafepointEnd", "Safepoint End",
        SAFEPOINTS, &[START, DURATION, SAFEPOINT_ID];

    /// Work of the VM thread at a safepoint.
    VM_OPERATION_EVENT = 118, "jdk.ExecuteVMOperation", "VM Operation",
        &["Java Virtual Machine", "Runtime"], &[
            START, DURATION,
            field("operation", VM_OPERATION, "Operation", Unit::Constant),
            field("safepoint", BOOLEAN, "At Safepoint", Unit::Plain),
            SAFEPOINT_ID,
        ];

    /// Wait of a thread to enter a monitor.
    MONITOR_ENTER = 140, "jdk.JavaMonitorEnter", "Java Monitor Blocked",
        APPLICATION, &[
            START, DURATION, EVENT_THREAD, STACK, MONITOR_CLASS,
            field("previousOwner", THREAD, "Previous Monitor Owner", Unit::Constant),
            field("address", LONG, "Monitor Address", Unit::Address),
        ];

    /// Wait of a thread in `Object.wait`.
    MONITOR_WAIT = 141, "jdk.JavaMonitorWait", "Java Monitor Wait",
        APPLICATION, &[
            START, DURATION, EVENT_THREAD, STACK, MONITOR_CLASS,
            field("notifier", THREAD, "Notifier Thread", Unit::Constant),
            field("address", LONG, "Monitor Address", Unit::Address),
        ];

    /// Wait of a thread in `LockSupport.park`.
    THREAD_PARK = 142, "jdk.ThreadPark", "Java Thread Park",
        APPLICATION, &[
            START, DURATION, EVENT_THREAD, STACK,
            field("parkedClass", CLASS, "Class Parked On", Unit::Constant),
            field("address", LONG, "Address of Object Parked", Unit::Address),
        ];

    /// Wait of a thread in `Thread.sleep`.
    THREAD_SLEEP = 143, "jdk.ThreadSleep", "Java Thread Sleep",
        APPLICATION, ONLY_TIME;

    /// Wait of a virtual thread that could not be unmounted.
    VIRTUAL_THREAD_PINNED = 144, "jdk.VirtualThreadPinned", "Virtual Thread Pinned",
        APPLICATION, ONLY_TIME;

    /// Wait to receive from a socket.
    SOCKET_READ = 145, "jdk.SocketRead", "Socket Read",
        APPLICATION, SOCKET;

    /// Wait to send to a socket.
    SOCKET_WRITE = 146, "jdk.SocketWrite", "Socket Write",
        APPLICATION, SOCKET;

    /// Wait to read a file.
    FILE_READ = 147, "jdk.FileRead", "File Read",
        APPLICATION, FILE;

    /// Wait to write a file.
    FILE_WRITE = 148, "jdk.FileWrite", "File Write",
        APPLICATION, FILE;

    /// Wait that the JDK has no type for.
    WAIT = 149, "jvmprobe.Wait", "Wait",
        APPLICATION, &[
            START, DURATION, EVENT_THREAD, STACK,
            field("kind", STRING, "Kind", Unit::Plain),
            field("on", STRING, "Awaited", Unit::Plain),
        ];

    /// The JVM that a recording is about.
    JVM_INFORMATION = 119, "jdk.JVMInformation", "JVM Information",
        &["Java Virtual Machine"], &[
            START,
            field("jvmName", STRING, "JVM Name", Unit::Plain),
            field("jvmVersion", STRING, "JVM Version", Unit::Plain),
            field("jvmArguments", STRING, "JVM Command Line Arguments", Unit::Plain),
            field("jvmFlags", STRING, "JVM Settings File Arguments", Unit::Plain),
            field("javaArguments", STRING, "Java Application Arguments", Unit::Plain),
            field("jvmStartTime", LONG, "JVM Start Time", Unit::TimeMillis),
            field("pid", LONG, "Process Identifier", Unit::Plain),
        ];

    /// The kernel of the host.
    OS_INFORMATION = 120, "jdk.OSInformation", "OS Information",
        &["Operating System"], &[START, field("osVersion", STRING, "OS Version", Unit::Plain)];

    /// A system property of the JVM.
    SYSTEM_PROPERTY = 121, "jdk.InitialSystemProperty", "Initial System Property",
        &["Java Virtual Machine"], &[
            START,
            field("key", STRING, "Key", Unit::Plain),
            field("value", STRING, "Value", Unit::Plain),
        ];

    /// Use of the host's processors.
    CPU_LOAD = 123, "jdk.CPULoad", "CPU Load",
        &["Operating System", "Processor"], &[
            START,
            field("jvmUser", FLOAT, "JVM User", Unit::Share),
            field("jvmSystem", FLOAT, "JVM System", Unit::Share),
            field("machineTotal", FLOAT, "Machine Total", Unit::Share),
        ];

    /// A setting of the recording.
    ACTIVE_SETTING = 122, "jdk.ActiveSetting", "Recording Setting",
        &["Flight Recorder"], &[
            START,
            field("id", LONG, "Event Id", Unit::Plain),
            field("name", STRING, "Setting Name", Unit::Plain),
            field("value", STRING, "Setting Value", Unit::Plain),
        ];
}

/// Types without events. Views of the JDK that also use other types fail if one of these is missing.
const UNUSED: [Type; 9] = [
    event(
        131,
        "jdk.NativeMethodSample",
        "Native Sample",
        PROFILING,
        &[START, SAMPLED_THREAD, STACK, STATE],
    ),
    event(
        132,
        "jdk.JavaErrorThrow",
        "Java Error",
        APPLICATION,
        &[
            START,
            EVENT_THREAD,
            STACK,
            field("message", STRING, "Message", Unit::Plain),
            field("thrownClass", CLASS, "Class", Unit::Constant),
        ],
    ),
    event(133, "jdk.ThreadEnd", "Java Thread End", APPLICATION, &[START, EVENT_THREAD]),
    event(
        134,
        "jdk.SafepointCleanup",
        "Safepoint Cleanup",
        SAFEPOINTS,
        &[START, DURATION, SAFEPOINT_ID],
    ),
    event(
        135,
        "jdk.Shutdown",
        "JVM Shutdown",
        &["Java Virtual Machine", "Runtime"],
        &[START, field("reason", STRING, "Reason", Unit::Plain)],
    ),
    phase(136, "jdk.GCPhasePauseLevel1", "GC Phase Pause Level 1"),
    phase(137, "jdk.GCPhasePauseLevel2", "GC Phase Pause Level 2"),
    phase(138, "jdk.GCPhasePauseLevel3", "GC Phase Pause Level 3"),
    phase(139, "jdk.GCPhasePauseLevel4", "GC Phase Pause Level 4"),
];

/// Returns all types.
pub(super) fn all() -> impl Iterator<Item = &'static Type> {
    TYPES.into_iter().chain(EVENTS.iter().copied()).chain(&UNUSED)
}

const NAME: &[Field] = &[field("name", STRING, "Name", Unit::Plain)];

/// All types of fields and of annotations.
const TYPES: [&Type; 36] = [
    &value(BOOLEAN, "boolean", "", &[]),
    &value(CHAR, "char", "", &[]),
    &value(FLOAT, "float", "", &[]),
    &value(DOUBLE, "double", "", &[]),
    &value(BYTE, "byte", "", &[]),
    &value(SHORT, "short", "", &[]),
    &value(INT, "int", "", &[]),
    &value(LONG, "long", "", &[]),
    &value(STRING, "java.lang.String", "", &[]),
    &value(
        CLASS,
        "java.lang.Class",
        "Java Class",
        &[
            field("classLoader", CLASS_LOADER, "Class Loader", Unit::Constant),
            field("name", SYMBOL, "Name", Unit::Constant),
            field("package", PACKAGE, "Package", Unit::Constant),
            field("modifiers", INT, "Access Modifiers", Unit::Plain),
        ],
    ),
    &value(
        THREAD,
        "java.lang.Thread",
        "Thread",
        &[
            field("osName", STRING, "OS Thread Name", Unit::Plain),
            field("osThreadId", LONG, "OS Thread Id", Unit::Plain),
            field("javaName", STRING, "Java Thread Name", Unit::Plain),
            field("javaThreadId", LONG, "Java Thread Id", Unit::Plain),
            field("group", THREAD_GROUP, "Java Thread Group", Unit::Constant),
        ],
    ),
    &value(
        THREAD_GROUP,
        "jdk.types.ThreadGroup",
        "Thread Group",
        &[
            field("parent", THREAD_GROUP, "Parent", Unit::Constant),
            field("name", STRING, "Name", Unit::Plain),
        ],
    ),
    &value(
        CLASS_LOADER,
        "jdk.types.ClassLoader",
        "Java Class Loader",
        &[
            field("type", CLASS, "Type", Unit::Constant),
            field("name", SYMBOL, "Name", Unit::Constant),
        ],
    ),
    &simple(
        FRAME_TYPE,
        "jdk.types.FrameType",
        "Frame type",
        &[field("description", STRING, "Description", Unit::Plain)],
    ),
    &simple(THREAD_STATE, "jdk.types.ThreadState", "Java Thread State", NAME),
    &value(
        STACK_TRACE,
        "jdk.types.StackTrace",
        "Stacktrace",
        &[
            field("truncated", BOOLEAN, "Truncated", Unit::Plain),
            field("frames", STACK_FRAME, "Stack Frames", Unit::List),
        ],
    ),
    &value(
        STACK_FRAME,
        "jdk.types.StackFrame",
        "",
        &[
            field("method", METHOD, "Java Method", Unit::Constant),
            field("lineNumber", INT, "Line Number", Unit::Plain),
            field("bytecodeIndex", INT, "Bytecode Index", Unit::Plain),
            field("type", FRAME_TYPE, "Frame Type", Unit::Constant),
        ],
    ),
    &value(
        METHOD,
        "jdk.types.Method",
        "Java Method",
        &[
            field("type", CLASS, "Type", Unit::Constant),
            field("name", SYMBOL, "Name", Unit::Constant),
            field("descriptor", SYMBOL, "Descriptor", Unit::Constant),
            field("modifiers", INT, "Access Modifiers", Unit::Plain),
            field("hidden", BOOLEAN, "Hidden", Unit::Plain),
        ],
    ),
    &value(
        PACKAGE,
        "jdk.types.Package",
        "Package",
        &[field("name", SYMBOL, "Name", Unit::Constant)],
    ),
    &simple(
        SYMBOL,
        "jdk.types.Symbol",
        "Symbol",
        &[field("string", STRING, "String", Unit::Plain)],
    ),
    &simple(GC_WHEN, "jdk.types.GCWhen", "GC When", &[field("when", STRING, "When", Unit::Plain)]),
    &simple(GC_NAME, "jdk.types.GCName", "GC Name", NAME),
    &simple(
        GC_CAUSE,
        "jdk.types.GCCause",
        "GC Cause",
        &[field("cause", STRING, "Cause", Unit::Plain)],
    ),
    &simple(
        VM_OPERATION,
        "jdk.types.VMOperationType",
        "VM Operation Type",
        &[field("type", STRING, "Type", Unit::Plain)],
    ),
    &simple(
        DEOPTIMIZATION_REASON,
        "jdk.types.DeoptimizationReason",
        "Deoptimization Reason",
        &[field("reason", STRING, "Reason", Unit::Plain)],
    ),
    &simple(
        DEOPTIMIZATION_ACTION,
        "jdk.types.DeoptimizationAction",
        "Deoptimization Action",
        &[field("action", STRING, "Action", Unit::Plain)],
    ),
    &simple(
        COMPILER,
        "jdk.types.CompilerType",
        "Compiler Type",
        &[field("compiler", STRING, "Compiler", Unit::Plain)],
    ),
    &annotation(LABEL, "jdk.jfr.Label", &[field("value", STRING, "", Unit::Plain)]),
    &annotation(CATEGORY, "jdk.jfr.Category", &[field("value", STRING, "", Unit::List)]),
    &annotation(CONTENT_TYPE, "jdk.jfr.ContentType", &[]),
    &content_type(TIMESTAMP, "jdk.jfr.Timestamp", &[field("value", STRING, "", Unit::Plain)]),
    &content_type(TIMESPAN, "jdk.jfr.Timespan", &[field("value", STRING, "", Unit::Plain)]),
    &content_type(DATA_AMOUNT, "jdk.jfr.DataAmount", &[field("value", STRING, "", Unit::Plain)]),
    &content_type(UNSIGNED, "jdk.jfr.Unsigned", &[]),
    &content_type(MEMORY_ADDRESS, "jdk.jfr.MemoryAddress", &[]),
    &content_type(PERCENTAGE, "jdk.jfr.Percentage", &[]),
];
