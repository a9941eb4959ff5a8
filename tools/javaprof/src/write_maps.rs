//! `--write-maps`: writes perf-PID.map files for `perf`.
//!
//! `perf` looks for `/tmp/perf-PID.map` in the process's own file system, with the PID that the
//! process has in its own PID namespace, and reads it only if it belongs to root or to the user who
//! runs `perf` (tools/perf/util/symbol.c, dsos of JIT code). A map that the JVM writes belongs to the
//! JVM's user, so root's `perf` would reject it. A map that javaprof writes belongs to root. If the
//! file system cannot represent root, the map belongs to the JVM's user. An example is a /tmp that was
//! mounted in a user namespace into which root is not mapped.

use std::io::{self, BufWriter};

use anyhow::{Context, Result, bail};
use libjvmprobe::{
    Addr, Error,
    attach::perf_map,
    hotspot::{HotSpot, code::Inlining},
    names::code::Code,
    process::{
        Process, Target,
        identity::Owner,
        root::{Folder, Root},
    },
    render::{output::Output, perfmap},
    trace::samples::symbols,
};

use crate::args::Args;

/// Writes a map for each JVM that the arguments name, and prints its path.
pub fn run(args: &Args) -> Result<()> {
    let targets: Vec<_> =
        args.common.pids()?.into_iter().map(Target::open).collect::<Result<_, _>>()?;
    let mut out = Output::open(None)?;
    let mut failed = 0;
    let inlining = Inlining::Everywhere;
    // The agent is loaded only into JVMs that the user names by PID.
    let named_by_user = !args.common.is_search();
    for target in &targets {
        let pid = target.pid();
        let written = HotSpot::read(target)
            .and_then(|hotspot| {
                symbols::get(&args.symbols, &target.process, Ok(&hotspot), inlining, named_by_user)
            })
            .map_err(Into::into)
            .and_then(|(seen, _)| {
                let entries = seen.into_entries();
                write(&target.process, &entries, args.map_options())
            });
        match written {
            Ok(what) => out.line(&what)?,
            Err(error) => {
                failed += 1;
                log::warn!("cannot write a map of process {pid}: {error:#}");
            }
        }
    }
    if failed == targets.len() {
        bail!("no map was written");
    }
    Ok(())
}

fn write(
    process: &Process,
    entries: &[(Addr, u64, Code)],
    options: perfmap::Options,
) -> Result<String> {
    let refuse = |why| Error::Attach { pid: process.pid, why };
    let root = Root::open(process).map_err(refuse)?;
    let tmp = root.folder("/tmp").map_err(refuse)?;
    let name = perf_map::name_of(process);
    let as_owner = |owner| write_as(owner, &tmp, &name, entries, options);
    let (result, owner) = match as_owner(Owner::Us) {
        Err(e) if e.raw_os_error() == Some(EOVERFLOW) => {
            (as_owner(Owner::Target(process)), Some(process.uid))
        }
        other => (other, None),
    };
    result.with_context(|| format!("cannot write {}", tmp.shown(&name).display()))?;
    let shown = match tmp.is_ours("/tmp") {
        true => format!("/tmp/{name}"),
        false => tmp.shown(&name).display().to_string(),
    };
    let owner = owner.map_or(String::new(), |uid| {
        format!(
            "; it belongs to user {uid}, because its file system cannot represent root: use `perf \
             report -f`"
        )
    });
    Ok(format!("{}: {} entries in {shown}{owner}", process.pid, entries.len()))
}

/// Error of the kernel if the owner of a new file has no ID in the file system.
const EOVERFLOW: i32 = 75;

/// Writes a temporary file and renames it to `name`, so that perf never reads an incomplete map,
/// and a symbolic link of that name is replaced, not followed.
fn write_as(
    owner: Owner<'_>,
    tmp: &Folder<'_>,
    name: &str,
    entries: &[(Addr, u64, Code)],
    options: perfmap::Options,
) -> io::Result<()> {
    let new = format!(".jvmprobe-{}-{name}", std::process::id());
    let file = tmp.create(owner, &new, 0o644)?;
    perfmap::write(entries, options, BufWriter::new(file.file()))?;
    file.rename(owner, name)
}
