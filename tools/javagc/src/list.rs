//! `--list-probes`: lists the USDT probes of the target's libjvm.so.

use anyhow::Result;
use libjvmprobe::{process::Target, render::output::Output};

use crate::args::Args;

/// Prints provider, name, number of locations and arguments of each probe.
pub fn run(args: &Args) -> Result<()> {
    let mut out = Output::open(args.output.first().map(AsRef::as_ref))?;
    for pid in args.common.pids()? {
        let target = Target::open(pid)?;
        let probes = target.libjvm.elf()?.stapsdt()?;
        out.line(&format!("# {} {}", pid, target.libjvm.target_path.display()))?;
        if probes.is_empty() {
            out.line("# no USDT probes: javagc uses uprobes on functions instead")?;
        }
        for (provider, name, locations) in probes.names() {
            let arguments = probes.find(provider, name).next().map_or("", |probe| &probe.raw_args);
            let probe = format!("{provider}:{name}");
            out.line(&format!("{probe:<46} {locations:>3} {arguments}"))?;
        }
    }
    Ok(())
}
