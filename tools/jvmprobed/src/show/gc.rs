//! Stops of JVMs: rows as javagc(8) prints them, and totals by operation.

use libjvmprobe::{
    Result,
    hotspot::Collector,
    render::{
        columns::wrap,
        output::Output,
        stops::{Row, head, operations, suffix, totals as text_of_totals},
        units::{count, span},
    },
    trace::pauses::{
        record::{Cycle, Limited, Record, Stop},
        summary::{JvmName, Totals},
    },
};

use crate::{
    show::{
        selection::{Selection, time_of},
        time_arg::format_time,
    },
    window::{Identity, JvmData},
};

/// Output options.
#[derive(Clone, Copy, Debug)]
pub struct GcOptions {
    /// Print JSON lines.
    pub json: bool,
    /// Include stops without a collection.
    pub safepoints: bool,
    /// Print dates.
    pub dates: bool,
}

/// Prints the stops.
///
/// # Errors
/// Errors of writing.
pub fn show(selection: &Selection, output_options: GcOptions, out: &mut Output) -> Result<()> {
    let pauses = selection.pauses();
    let is_wanted =
        |record: &Record| output_options.safepoints || !matches!(record, Record::Safepoint(_));
    if output_options.json {
        for (_, record) in pauses.iter().filter(|(_, record)| is_wanted(record)) {
            out.json(record)?;
        }
        return Ok(());
    }
    out.lines(&format!("\n{}", selection.title(None)))?;
    let format = if output_options.dates { "%Y-%m-%dT%H:%M:%S%.3f%:z" } else { "%H:%M:%S%.3f" };
    let mut has_head = false;
    for (_, record) in &pauses {
        let time = || time_of(record).map_or_else(String::new, |ns| format_time(ns, format));
        let (row, more) = match record {
            Record::Pause(stop) | Record::Safepoint(stop) if is_wanted(record) => {
                (Row::of_stop(stop, time()), suffix(stop))
            }
            Record::Cycle(cycle) => {
                let more = format!("  concurrent, {}", span(cycle.duration_ns));
                (Row::of_cycle(cycle, time()), more)
            }
            _ => continue,
        };
        if !std::mem::replace(&mut has_head, true) {
            out.line("")?;
            out.line(&head(row.time.len()))?;
        }
        out.line(&(row.line() + &more))?;
    }
    for jvm_data in selection.jvms.iter().filter(|jvm_data| !jvm_data.pauses.is_empty()) {
        // A JVM may have started within the period.
        let begin_ns = selection.from_ns.max(jvm_data.identity.started_ns);
        let covered_ns =
            selection.covered_ns(None).min(selection.until_ns.saturating_sub(begin_ns));
        show_totals(jvm_data, covered_ns, output_options, out)?;
    }
    if pauses.is_empty() {
        out.line("There were no stops.")?;
    }
    Ok(())
}

/// Prints the totals of one JVM.
fn show_totals(
    jvm_data: &JvmData,
    covered_ns: u64,
    output_options: GcOptions,
    out: &mut Output,
) -> Result<()> {
    let (mut totals, mut limited) = (Totals::new(0, false), Limited::default());
    let mut collector = "";
    for record in &jvm_data.pauses {
        totals.add(record);
        match record {
            Record::Limited(sums) => limited.add(sums),
            Record::Pause(Stop { collector: name, .. })
            | Record::Safepoint(Stop { collector: name, .. })
            | Record::Cycle(Cycle { collector: name, .. }) => collector = name,
            Record::Summary(_) | Record::Lost(_) => {}
        }
    }
    let Identity { pid, name, attributes, .. } = &*jvm_data.identity;
    let version = attributes.get("process.runtime.description").cloned();
    let jvm = JvmName { pid: *pid, collector: collector.to_owned(), version };
    let frees_in_pauses = !Collector::named(collector).is_concurrent();
    let mut summary = totals.summary(covered_ns, &jvm, frees_in_pauses);
    // Stops that were not recorded one by one have no heap sizes, and neither have stops while the daemon did not run. So
    // the heap sizes of two recorded stops in succession do not show what was allocated and freed.
    summary.freed_bytes = None;
    for (times, ns, sum) in [
        (&mut summary.pauses, &mut summary.stopped_ns, limited.pauses),
        (&mut summary.safepoints, &mut summary.safepoint_ns, limited.safepoints),
    ] {
        *times = times.saturating_add(sum.count);
        *ns = ns.saturating_add(sum.stopped_ns);
    }
    if limited.pauses.count > 0 {
        // At least one collection per pause. Waits for a CPU are known only of the stops that were recorded one by one.
        if !summary.concurrent {
            summary.collections = summary.collections.saturating_add(limited.pauses.count);
            let minutes = (covered_ns as f64 / 60e9).max(1e-9);
            summary.collections_per_minute = summary.collections as f64 / minutes;
        }
        summary.cpu_wait_ns = None;
    }
    let version = jvm.version.as_deref().unwrap_or_default();
    out.line("")?;
    out.line(&format!("PID {pid}  {name}  {version}  recorded for {}", span(covered_ns)))?;
    if let Some(table) = operations(&summary, &limited, output_options.safepoints) {
        out.lines(&table)?;
    }
    let limited = (!limited.is_empty()).then(|| {
        format!(
            "Too many stops to record each one: {} are only included in the sums of the rows \
             (others)",
            count(limited.count(), "stop")
        )
    });
    for line in text_of_totals(&summary).into_iter().chain(limited) {
        out.lines(&wrap(&line))?;
    }
    Ok(())
}
