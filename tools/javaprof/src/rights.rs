//! Which rights a profile still needs.

use libjvmprobe::{
    own::privileges::{
        ASK, ATTACH, HURRY, KERNEL_SYMBOLS, MAPS, OUTPUT, PROBE, READ, Rights, keep,
    },
    take::samples::SymbolSource,
};

use crate::args::Args;

/// Gives up what is not needed to get ready. Whoever starts a command calls this when it was
/// forked: the command keeps what it would have without us.
pub fn get_ready(args: &Args) {
    keep(MAPS | READ | ATTACH | HURRY | KERNEL_SYMBOLS | OUTPUT | asks(args));
}

/// Gives up what is not needed to sample and to name.
pub fn sample(args: &Args) {
    let joins_later = args.common.all
        || args.common.name.is_some()
        || args.system_wide
        || !args.started.command.is_empty()
        // Events are looked for in files that are mapped later.
        || args.skip_missing;
    // A process that was named may run another JVM by exec.
    let attach = if joins_later { ATTACH } else { PROBE };
    let output = if args.output.is_empty() { MAPS } else { OUTPUT };
    keep(MAPS | READ | attach | KERNEL_SYMBOLS | output | asks(args));
}

/// Where names may come from the JVM itself.
fn asks(args: &Args) -> Rights {
    if !args.is_named() {
        return MAPS;
    }
    match args.symbols {
        SymbolSource::HotSpot | SymbolSource::None | SymbolSource::File(_) => MAPS,
        _ => ASK | MAPS,
    }
}
