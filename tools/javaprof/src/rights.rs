//! Capabilities that javaprof keeps in each phase.

use libjvmprobe::{
    sys::privileges::{
        ATTACH, ATTACH_PROTOCOL, KERNEL_SYMBOLS, MAPS, OUTPUT, PROBE, RAISE_PRIORITY, READ, Rights,
        keep_only,
    },
    trace::samples::SymbolSource,
};

use crate::args::Args;

/// Drops the capabilities that starting up does not need. If a command is started, this is called
/// after the fork, so that the command keeps the capabilities it would have without javaprof.
pub fn keep_startup_rights(args: &Args) {
    keep_only(
        MAPS | READ | ATTACH | RAISE_PRIORITY | KERNEL_SYMBOLS | OUTPUT | attach_rights(args),
    );
}

/// Drops the capabilities that sampling and naming do not need.
pub fn keep_sampling_rights(args: &Args) {
    let joins_later = args.common.all
        || args.common.is_search()
        || args.system_wide
        || !args.started.command.is_empty()
        // An event that is missing now may have its probe in a file that is mapped later.
        || args.skip_missing;
    // `PROBE` is kept even for named processes, because a named process may run another JVM through exec.
    let attach = if joins_later { ATTACH } else { PROBE };
    let output = if args.output.is_empty() { MAPS } else { OUTPUT };
    keep_only(MAPS | READ | attach | KERNEL_SYMBOLS | output | attach_rights(args));
}

/// Returns the capabilities needed to ask a JVM for symbols; only `MAPS`, which is kept anyway, if the
/// options exclude such requests.
fn attach_rights(args: &Args) -> Rights {
    if !args.is_named() {
        return MAPS;
    }
    match args.symbols {
        SymbolSource::HotSpot | SymbolSource::None | SymbolSource::File(_) => MAPS,
        _ => ATTACH_PROTOCOL | MAPS,
    }
}
