//! List of JVMs of which something is kept, with times and sizes.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use jiff::Timestamp;
use libjvmprobe::render::{
    output::Output,
    table::Ruled,
    units::{bytes, count},
};
use serde::Serialize;

use crate::{
    args::{DIR, List},
    config::Config,
    show::when::{shown, span},
    store::shelf::Shelf,
    window::Identity,
};

/// A JVM of which something is kept.
#[derive(Debug, Serialize)]
struct Jvm {
    /// Number of the process.
    pid: u32,
    /// `service.name`.
    name: String,
    /// Attributes by OpenTelemetry's names.
    attributes: BTreeMap<String, String>,
    /// Begin of the first window and end of the last one, RFC 3339, UTC.
    first: String,
    last: String,
    /// Number of windows, some of which were put together from shorter ones.
    windows: u64,
    #[serde(skip)]
    times_ns: (u64, u64),
}

/// Lists what is kept.
///
/// # Errors
/// A line for the user: nothing is kept, or not of such a JVM.
pub fn run(args: &List) -> Result<()> {
    let configured = || Config::read(None).ok()?.store.dir;
    let dir = args.dir.clone().or_else(configured).unwrap_or_else(|| DIR.into());
    let shelf = Shelf::open(&dir)?;
    let mut out = Output::open(None)?;
    let mut jvms: BTreeMap<(u32, u64), Jvm> = BTreeMap::new();
    let (mut windows, mut size) = (0, 0);
    shelf.each_window(|begin_ns, end_ns, on_disk, all| {
        windows += 1;
        size += on_disk;
        for who in all {
            if args.jvm.as_ref().is_none_or(|jvm| jvm.includes(&who)) {
                let jvm = jvms.entry((who.pid, who.started_ns)).or_insert_with(|| Jvm::new(who));
                jvm.add(begin_ns, end_ns);
            }
        }
    })?;
    let spans = shelf.kept()?;
    if windows == 0 {
        bail!("nothing is kept yet in {}", dir.display());
    }
    if let (Some(jvm), true) = (&args.jvm, jvms.is_empty()) {
        bail!("no JVM of which something is kept matches `{jvm}`");
    }
    let mut jvms: Vec<_> = jvms.into_values().collect();
    jvms.sort_by(|a, b| (&a.name, a.times_ns, a.pid).cmp(&(&b.name, b.times_ns, b.pid)));
    if args.json {
        for jvm in &mut jvms {
            let (first, last) = jvm.times_ns;
            let rfc3339 =
                |ns: u64| Timestamp::from_nanosecond(ns.into()).map(|at| format!("{at:.3}"));
            (jvm.first, jvm.last) = (rfc3339(first)?, rfc3339(last)?);
            out.json(&*jvm)?;
        }
        return Ok(());
    }
    let spans: Vec<_> = spans.iter().map(|&(from, until)| span(from, until)).collect();
    out.line(&format!("{}, {}: {}", count(windows, "window"), bytes(size), spans.join(", ")))?;
    let mut table = Ruled::new(&["PID", "FIRST", "LAST", "WINDOWS", "JVM"], 0..4);
    for Jvm { pid, name, times_ns: (first, last), windows, .. } in jvms {
        let [first, last] = [first, last].map(|ns| shown(ns, "%Y-%m-%d %H:%M:%S"));
        table.row(vec![pid.to_string(), first, last, windows.to_string(), name]);
    }
    Ok(out.lines(&format!("\n{}", table.text()))?)
}

impl Jvm {
    fn new(who: Identity) -> Self {
        let Identity { pid, name, attributes, .. } = who;
        let (first, last) = (String::new(), String::new());
        Self { pid, name, attributes, first, last, windows: 0, times_ns: (u64::MAX, 0) }
    }

    fn add(&mut self, begin_ns: u64, end_ns: u64) {
        self.windows += 1;
        let (first, last) = self.times_ns;
        self.times_ns = (first.min(begin_ns), last.max(end_ns));
    }
}
