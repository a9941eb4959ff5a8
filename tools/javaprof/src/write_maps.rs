//! `--write-maps`: perf-PID.map files, for those who use `perf`.
//!
//! `perf` looks for `/tmp/perf-PID.map` in the process's own file system, under the number
//! that the process has there, and reads it only if it belongs to root or to who runs
//! `perf` (tools/perf/util/symbol.c, dsos of JIT code). A JVM's own map belongs to the
//! JVM's user, so root's `perf` would not take it.

use std::{
    fs::{self, OpenOptions},
    io::BufWriter,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

use anyhow::{Context, Result, bail};
use libjvmprobe::{
    Addr,
    cli::note,
    hotspot::{HotSpot, code_cache::Inlining},
    jvm::{Process, Target, scan::Scanner},
    render::perfmap,
    stack::{builtin_map, code::Code},
};

use crate::{args::Args, traced};

/// Writes a map for each JVM that the arguments name, and says where.
pub fn run(args: &Args) -> Result<()> {
    let targets: Vec<_> = match args.all {
        true => Scanner::new().scan(),
        false => args.pids.iter().map(|&pid| Target::open(pid)).collect::<Result<_, _>>()?,
    };
    if targets.is_empty() {
        bail!("no JVM is running");
    }
    let mut failed = 0;
    let inlining = Inlining::Everywhere;
    for target in &targets {
        let pid = target.pid();
        let written = HotSpot::read(target)
            .and_then(|hotspot| {
                traced::ask(&args.symbols, &target.process, Some(&hotspot), inlining)
            })
            .map_err(Into::into)
            .and_then(|seen| {
                let entries = seen.into_entries();
                write(&target.process, &entries, args.map_options())
            });
        match written {
            Ok(what) => println!("{what}"),
            Err(error) => {
                failed += 1;
                note(&format!("no map of process {pid}: {error:#}"));
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
    let path = builtin_map::path_of(process);
    let folder = path.parent().unwrap_or(Path::new("/"));
    // Renamed into place: perf never sees half a map, and a symbolic link of that name is
    // replaced, not followed.
    let new = folder.join(format!(".jvmprobe-{}-{}.map", process.ns_pid, std::process::id()));
    let result = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&new)
        .and_then(|file| perfmap::write(entries, options, BufWriter::new(file)))
        .and_then(|()| fs::rename(&new, &path));
    if result.is_err() {
        // Not there where it could not be created.
        let _ = fs::remove_file(&new);
    }
    result.with_context(|| format!("cannot write {}", path.display()))?;
    let shown = match is_our_tmp(folder) {
        true => format!("/tmp/perf-{}.map", process.ns_pid),
        false => path.display().to_string(),
    };
    Ok(format!("{}: {} entries in {shown}", process.pid, entries.len()))
}

/// Whether a folder is the one that we call /tmp.
fn is_our_tmp(folder: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    id(folder).is_some() && id(folder) == id(Path::new("/tmp"))
}
