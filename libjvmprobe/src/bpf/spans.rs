//! Trace contexts that threads publish, as `bpf/spans.bpf.h` reads them: the conventions by which a process publishes
//! them, and the search for the thread-local variable.
//!
//! | convention | variable | source |
//! |---|---|---|
//! | OpenTelemetry's thread context | `otel_thread_ctx_v1` | OTEP 4947 (opentelemetry-specification, oteps/profiles/4947-thread-ctx.md) |
//! | Elastic's universal profiling integration | `elastic_apm_profiling_correlation_tls_v1` | github.com/elastic/apm, specs/agents/universal-profiling-integration.md |
//!
//! Both variables are pointers to a record of the thread. OTEP 4947 also lets a process describe further attributes in
//! its process context, which is not read here: the name of the variable contains the version of the record.

use crate::{
    Error, Pid, Result,
    bpf::{
        self,
        kernel_types::KernelTypes,
        records::{bytes, plain_structs},
    },
    elf::Machine,
    process::{
        code::CodeMaps,
        thread_variables::{Search, SearchBudget, ThreadVariable, ThreadVariables},
    },
    sys::warn_once,
};
use libbpf_rs::{MapCore, MapFlags, MapHandle, OpenMapMut};

/// The map with the entries of processes.
pub(crate) const MAP: &str = "span_sources";

/// Layout of the record of a convention.
struct Convention {
    ids_at: u32,
    valid_at: u32,
    /// The low byte is the validity byte, the high byte is the one after it.
    valid: u32,
    valid_mask: u32,
}

/// Variables in the order of preference, and the layouts of their records.
const VARIABLES: [&str; 2] = ["otel_thread_ctx_v1", "elastic_apm_profiling_correlation_tls_v1"];
const CONVENTIONS: [Convention; 2] = [
    // trace-id (16 bytes), span-id (8), valid (1: exactly 1), trace-flags, size of the attributes
    Convention { ids_at: 0, valid_at: 24, valid: 0x0001, valid_mask: 0x00ff },
    // layout-minor-version (2), valid (1: not 0), trace-present (1: exactly 1), trace-flags (1), trace-id, span-id
    Convention { ids_at: 5, valid_at: 2, valid: 0x0100, valid_mask: 0xff00 },
];

/// `struct span_source` of bpf/spans.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpanSource {
    offset: i64,
    module: u64,
    is_musl: u32,
    ids_at: u32,
    valid_at: u32,
    valid: u32,
    valid_mask: u32,
    unused: u32,
}

plain_structs!(SpanSource);

impl SpanSource {
    fn new(convention: usize, variable: ThreadVariable) -> Option<Self> {
        let &Convention { ids_at, valid_at, valid, valid_mask } = CONVENTIONS.get(convention)?;
        let record = Self { ids_at, valid_at, valid, valid_mask, ..Self::default() };
        Some(match variable {
            ThreadVariable::Static(offset) => Self { offset, ..record },
            ThreadVariable::Dynamic { module, offset, is_musl } => Self {
                offset: i64::try_from(offset).ok()?,
                module,
                is_musl: is_musl.into(),
                ..record
            },
        })
    }
}

/// Returns the offset of a thread's thread pointer in the kernel's `task_struct`.
///
/// # Errors
/// [`crate::Error::Kernel`] if the kernel has no BTF, or its BTF has no such field.
pub(crate) fn thread_pointer_offset() -> Result<u32> {
    // The first field of `uw` is `tp_value` (arch/arm64/include/asm/processor.h).
    let field = if Machine::NATIVE == Machine::X86_64 { "fsbase" } else { "uw" };
    let types = KernelTypes::load("task_struct")?;
    let [thread] = types.offsets("task_struct", ["thread"])?;
    let [base] = types.offsets("thread_struct", [field])?;
    Ok(thread.saturating_add(base))
}

/// Returns the offset for `task_thread_pointer` if contexts are wanted and can be read. If they are wanted and cannot be
/// read, prints a message.
pub(crate) fn offset_if(wanted: bool) -> Option<u32> {
    if !wanted {
        return None;
    }
    let warn = |error: &Error| warn_once("samples have no trace and span ids", &error.to_string());
    thread_pointer_offset().inspect_err(warn).ok()
}

/// Reduces the map to one entry if contexts are not read.
///
/// # Errors
/// [`crate::Error::Bpf`].
pub(crate) fn set_capacity(map: &mut OpenMapMut<'_>, reads_spans: bool) -> Result<()> {
    if reads_spans { Ok(()) } else { map.set_max_entries(1).map_err(bpf::load_error) }
}

/// Search for the processes that publish contexts.
#[derive(Debug)]
pub(crate) struct SpanSources {
    variables: ThreadVariables,
    map: MapHandle,
}

/// State of the search in one process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpanSearch {
    /// Version of the mappings that were searched completely.
    searched: Option<u64>,
    /// The entry in the map.
    entry: Option<SpanSource>,
    budget: SearchBudget,
}

impl SpanSources {
    /// Creates a search that fills the map of a loaded BPF object.
    pub(crate) fn new(map: MapHandle) -> Self {
        Self { variables: ThreadVariables::new(&VARIABLES), map }
    }

    /// Searches a process if its mappings have changed since the last search, and passes the result to the kernel side.
    pub(crate) fn update(&mut self, state: &mut SpanSearch, key: u64, pid: Pid, maps: &CodeMaps) {
        if state.searched == Some(maps.version()) {
            return;
        }
        let (which, variable) = match self.variables.find(pid, maps, &mut state.budget) {
            // The dynamic linker may resolve the variable without a change of the mappings.
            Search::Unresolved => return,
            Search::Nothing => {
                state.searched = Some(maps.version());
                return;
            }
            Search::Found(which, variable) => (which, variable),
        };
        state.searched = Some(maps.version());
        let Some(source) = SpanSource::new(which, variable) else { return };
        if state.entry == Some(source) {
            return;
        }
        log::debug!("process {pid}: reading trace contexts: {} {variable:?}", VARIABLES[which]);
        // If the map is full, the process's samples have no ids.
        let _ = self.map.update(&key.to_ne_bytes(), bytes(&source), MapFlags::ANY);
        state.entry = Some(source);
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::trace::samples::event::span_source;

    #[test]
    fn struct_layout_matches_the_c_header() {
        assert_eq!(size_of::<SpanSource>(), size_of::<span_source>());
        assert_eq!(offset_of!(SpanSource, valid), offset_of!(span_source, valid));
        assert_eq!(offset_of!(SpanSource, ids_at), offset_of!(span_source, ids_at));
    }

    #[test]
    fn sources_describe_the_layout_of_each_convention() {
        let near = SpanSource::new(0, ThreadVariable::Static(-16)).unwrap();
        assert_eq!((near.offset, near.module, near.ids_at, near.valid_at), (-16, 0, 0, 24));
        let variable = ThreadVariable::Dynamic { module: 3, offset: 8, is_musl: true };
        let dynamic = SpanSource::new(1, variable).unwrap();
        assert_eq!((dynamic.offset, dynamic.module, dynamic.is_musl), (8, 3, 1));
        assert_eq!((dynamic.ids_at, dynamic.valid_at), (5, 2));
        assert_eq!(SpanSource::new(2, variable), None);
    }
}
