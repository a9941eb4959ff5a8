//! `jvmprobed list`: JVMs with data in the store, with times and sizes.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Result, bail};
use jiff::Timestamp;
use libjvmprobe::render::{
    output::Output,
    table::RuledTable,
    units::{bytes, count},
};
use serde::Serialize;

use crate::{
    args::List,
    show::time_arg::{format_time, span},
    store::reader::{Span, join_spans},
    window::Identity,
};

/// A JVM as a line of JSON.
#[derive(Serialize)]
struct Record<'a> {
    /// PID of the process.
    pid: u32,
    /// `service.name`.
    name: &'a str,
    /// Attributes, by OpenTelemetry's names.
    attributes: &'a BTreeMap<String, String>,
    /// Begin of the first window and end of the last one, in RFC 3339 format and UTC.
    first: String,
    last: String,
    /// Number of windows, some of which were merged from shorter ones.
    windows: u64,
}

/// Runs `jvmprobed list`.
///
/// # Errors
/// A line for the user: the store is empty, or has no data of a JVM that matches `--jvm`.
pub fn run(args: &List) -> Result<()> {
    let store_reader = super::store_reader(args.dir.as_deref())?;
    let mut out = Output::open(None)?;
    let mut known: BTreeMap<(u32, u64), Arc<Identity>> = BTreeMap::new();
    let windows = store_reader.list(|identity| {
        Arc::clone(
            known.entry((identity.pid, identity.started_ns)).or_insert_with(|| identity.into()),
        )
    })?;
    if windows.is_empty() {
        bail!("nothing is stored yet in {}", store_reader.path().display());
    }
    // Begin, end and number of the windows of each JVM.
    let mut coverage: BTreeMap<(u32, u64), (Span, u64)> = BTreeMap::new();
    for window in &windows {
        for identity in &window.jvms {
            let new = ((u64::MAX, 0), 0);
            let ((first, last), windows) =
                coverage.entry((identity.pid, identity.started_ns)).or_insert(new);
            (*first, *last) = ((*first).min(window.span.0), (*last).max(window.span.1));
            *windows += 1;
        }
    }
    let is_wanted =
        |identity: &Identity| args.jvm.as_ref().is_none_or(|jvm| jvm.includes(identity));
    let jvms = coverage.iter().map(|(key, coverage)| (&known[key], coverage));
    let mut jvms: Vec<_> = jvms.filter(|(identity, _)| is_wanted(identity)).collect();
    if let (Some(jvm), true) = (&args.jvm, jvms.is_empty()) {
        bail!("no recorded JVM matches `{jvm}`");
    }
    jvms.sort_by_key(|(identity, (span, _))| (&identity.name, *span, identity.pid));
    if args.json {
        let rfc3339 = |ns: u64| Timestamp::from_nanosecond(ns.into()).map(|at| format!("{at:.3}"));
        for (identity, &((first, last), windows)) in jvms {
            let (first, last) = (rfc3339(first)?, rfc3339(last)?);
            let Identity { pid, name, attributes, .. } = &**identity;
            out.json(&Record { pid: *pid, name, attributes, first, last, windows })?;
        }
        return Ok(());
    }
    let spans = join_spans(windows.iter().map(|window| window.span));
    let spans: Vec<_> = spans.into_iter().map(|(from, until)| span(from, until)).collect();
    let size = windows.iter().map(|window| window.bytes).sum();
    let window_count = count(windows.len() as u64, "window");
    out.line(&format!("{window_count}, {}: {}", bytes(size), spans.join(", ")))?;
    let mut table = RuledTable::new(&["PID", "FIRST", "LAST", "WINDOWS", "JVM"], 0..4);
    for (identity, &((first, last), windows)) in jvms {
        let [first, last] = [first, last].map(|ns| format_time(ns, "%Y-%m-%d %H:%M:%S"));
        table.row(vec![
            identity.pid.to_string(),
            first,
            last,
            windows.to_string(),
            identity.name.clone(),
        ]);
    }
    Ok(out.lines(&format!("\n{}", table.text()))?)
}
