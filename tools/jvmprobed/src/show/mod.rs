//! `jvmprobed show` and `list`: print stored data in the formats of the other tools.
//!
//! | module | content |
//! |---|---|
//! | [`time_arg`] | times on the command line |
//! | [`selection`] | data that the command line selects from the store |
//! | [`alloc`] | allocation by class, as a table with the columns of javaobjnew |
//! | [`waits`] | waits by kind and code, as a table with columns of javawait |
//! | [`wall`] | wall-clock time of threads: CPU samples and waits in one profile |
//! | [`gc`] | pauses, in the format of javagc |
//! | [`thread_dumps`] | thread dumps, in the format of javastack |
//! | [`recording`] | all stored data, as a recording of JDK Flight Recorder |
//! | [`difference`] | change since an earlier period |
//! | [`jvm_filter`] | selection of JVMs on the command line |
//! | [`list`] | list of JVMs in the store |

pub mod alloc;
pub mod difference;
pub mod gc;
pub mod jvm_filter;
pub mod list;
pub mod recording;
pub mod selection;
pub mod thread_dumps;
pub mod time_arg;
pub mod waits;
pub mod wall;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use jiff::Zoned;
use libjvmprobe::{
    render::{
        columns::wrap,
        files::Files,
        formats::{self, FormatOptions, TitledProfile, flamegraph::Title, folded, jfr},
        output::Output,
        summary::{self, SummaryOptions},
        units::span,
    },
    stack::{
        profile::{Measure, Profile},
        timeline::{Band, BandKind},
    },
    trace::pauses::record::Record,
};

use crate::{
    args::{DIR, Show},
    collect::waits::WAIT,
    config::Config,
    show::{
        selection::{Selection, time_of},
        time_arg::TimeArg,
        wall::WALL,
    },
    store::reader::StoreReader,
};

/// Runs `jvmprobed show`.
///
/// # Errors
/// A line for the user.
pub fn run(args: &Show) -> Result<()> {
    let used = args.output.iter().map(|path| formats::of(path)).collect::<Result<Vec<_>, _>>()?;
    if args.diff.is_some() && used.iter().any(|format| !format.draws_differences) {
        bail!("--diff is only supported for {}", formats::drawing_differences());
    }
    let store_reader = store_reader(args.dir.as_deref())?;
    let now = Zoned::now();
    let from = args.since.resolve(&now);
    let until = args.until.unwrap_or(TimeArg::Ago(Duration::ZERO)).resolve(&now);
    // Recordings contain all measures, so they are written independently of the other outputs, with less memory.
    let (recordings, others): (Vec<_>, Vec<_>) =
        args.output.iter().partition(|path| jfr::is_named(path));
    if !recordings.is_empty() {
        let period = (from, until);
        recording::write(&store_reader, period, args.jvm.as_ref(), &recordings)?;
        if args.quiet && others.is_empty() {
            return Ok(());
        }
    }
    let mut selection = Selection::read(&store_reader, from, until, args.jvm.as_ref())?;
    let mut out = Output::open(None)?;
    if args.gc {
        let output_options =
            gc::GcOptions { json: args.json, safepoints: args.safepoints, dates: args.timestamps };
        return Ok(gc::show(&selection, output_options, &mut out)?);
    }
    if args.thread_dumps {
        return thread_dumps::show(args, &selection, &mut out);
    }
    let measures = measures(args, &selection)?;
    let title = selection.title(widest(&selection, &measures));
    let cpu_ns = selection.cpu_ns().filter(|_| measures == [Measure::Time]);
    let profile = collect(&mut selection, &measures);
    let base = match args.diff {
        None => None,
        Some(ago) => {
            let earlier =
                |ns: u64| ns.saturating_sub(u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX));
            let mut then = Selection::read(
                &store_reader,
                earlier(selection.from_ns),
                earlier(selection.until_ns),
                args.jvm.as_ref(),
            )?;
            if args.wall {
                wall::measures(&then).context("the earlier period")?;
            }
            let title = then.title(widest(&then, &measures));
            Some((title, collect(&mut then, &measures)))
        }
    };
    if !args.quiet {
        let shown = Shown { title: &title, measures: &measures, profile: &profile, cpu_ns };
        show(args, &selection, &shown, base.as_ref(), &mut out)?;
    }
    write(args, &title, &profile, base.as_ref().map(|base| &base.1), &selection)
}

/// Opens the store in the given directory, or in the configured one.
fn store_reader(dir: Option<&Path>) -> Result<StoreReader> {
    // Errors are ignored: a user who may not read the configuration file can specify the directory with
    // --dir.
    let configured = || Config::read(None).ok()?.store.dir;
    let dir = dir.map(Path::to_owned).or_else(configured);
    StoreReader::open(&dir.unwrap_or_else(|| DIR.into()))
}

/// Returns the measures that the command line selects; two for wall-clock time.
fn measures(args: &Show, selection: &Selection) -> Result<Vec<Measure>> {
    if args.wall {
        return wall::measures(selection);
    }
    let Some(name) = &args.event else {
        return Ok(vec![if args.alloc { Measure::Allocation } else { Measure::Time }]);
    };
    let measures = selection.measures();
    let found = measures.iter().find(|measure| measure.name() == name);
    match found {
        Some(measure) => Ok(vec![measure.clone()]),
        None => {
            let names: Vec<_> = measures.iter().map(Measure::name).collect();
            bail!("`{name}` was not collected in this time; collected: {}", names.join(", "))
        }
    }
}

/// Returns the measure for which the longest period is shown.
fn widest<'a>(selection: &Selection, measures: &'a [Measure]) -> Option<&'a Measure> {
    measures.iter().max_by_key(|measure| {
        let (from, until) = selection.span(measure);
        until.saturating_sub(from)
    })
}

/// Takes the profile that the measures make up out of a selection.
fn collect(selection: &mut Selection, measures: &[Measure]) -> Profile {
    let mut profiles = measures.iter().map(|measure| selection.profile(measure));
    match (profiles.next(), profiles.next()) {
        (Some(cpu), Some(waits)) => wall::combine(cpu, waits),
        (Some(profile), None) => profile,
        _ => Profile::default(),
    }
}

/// Returns a note if the daemon collected less than configured while the data was recorded.
fn saving_note(selection: &Selection, measure: &Measure) -> Option<String> {
    let left_out = selection.left_out_ns(measure);
    if left_out > 0 {
        let [left_out, all] = [left_out, selection.covered_ns(Some(measure))].map(span);
        let name = measure.name();
        return Some(format!(
            "{name} was not collected for {left_out} of {all}, to save resources"
        ));
    }
    let (low, high) =
        selection.rates.filter(|(low, high)| *measure == Measure::Time && low < high)?;
    Some(format!(
        "To save resources, the rate was reduced to {low} samples per second; samples are weighted \
         as if it was {high}"
    ))
}

/// A profile to be shown.
struct Shown<'a> {
    title: &'a str,
    /// Measures that make up the profile.
    measures: &'a [Measure],
    profile: &'a Profile,
    /// CPU time as counted by the kernel.
    cpu_ns: Option<u64>,
}

fn show(
    args: &Show,
    selection: &Selection,
    &Shown { title, measures, profile, cpu_ns }: &Shown<'_>,
    base: Option<&(String, Profile)>,
    out: &mut Output,
) -> Result<()> {
    out.lines(&format!("\n{title}"))?;
    for measure in measures {
        if selection.span(measure) != (selection.from_ns, selection.until_ns) {
            out.lines(&format!(
                "Showing more than {}, because the times of {} are stored in coarser time slots",
                time_arg::span(selection.from_ns, selection.until_ns),
                measure.name(),
            ))?;
        }
        if let Some(saving_note) = saving_note(selection, measure) {
            out.lines(&saving_note)?;
        }
    }
    if let Some(cpu_ns) = cpu_ns {
        let covered_ns = selection.covered_ns(Some(&profile.measure));
        out.lines(&format!(
            "{:.2} s of CPU time as counted by the kernel ({:.2} cores); estimated from samples:",
            Duration::from_nanos(cpu_ns).as_secs_f64(),
            cpu_ns as f64 / covered_ns.max(1) as f64,
        ))?;
    }
    let text = |profile: &Profile| match profile.measure {
        Measure::Allocation => alloc::text(profile),
        Measure::Elapsed(ref name) if &**name == WAIT => waits::text(profile, args.stacks),
        Measure::Elapsed(ref name) if &**name == WALL => {
            wall::text(profile, args.threads, args.stacks)
        }
        _ => summary::text(
            profile,
            SummaryOptions { stacks: args.stacks, ..SummaryOptions::default() },
        ),
    };
    out.lines(text(profile).trim_end())?;
    if let Some((title, base)) = base {
        out.lines(&format!("\nCompared with {title}"))?;
        out.lines(&wrap(&total_line(base)))?;
        out.lines(difference::text(profile, base).trim_end())?;
    }
    Ok(())
}

/// Returns a line with the total of a profile.
fn total_line(profile: &Profile) -> String {
    match &profile.measure {
        Measure::Elapsed(name) if &**name == WALL => wall::total_line(profile),
        _ => summary::total_line(profile),
    }
}

fn write(
    args: &Show,
    title: &str,
    profile: &Profile,
    base: Option<&Profile>,
    selection: &Selection,
) -> Result<()> {
    let is_other = |path: &&PathBuf| !jfr::is_named(path);
    let paths: Vec<_> = args.output.iter().filter(is_other).cloned().collect();
    let files = Files::create(&paths, &[profile.measure.name()])?;
    let options = folded::Options { threads: args.threads, ..Default::default() };
    let base = base.map(|base| folded::lines(base, options).join("\n"));
    let output_options =
        FormatOptions { threads: args.threads, base: base.as_deref(), ..Default::default() };
    let pauses = selection.pauses().into_iter();
    let bands = pauses.filter_map(|(_, record)| band(record, profile.begin_unix_ns)).collect();
    let title = Title { title: title.to_owned(), subtitle: Some(total_line(profile)) };
    let titled = TitledProfile { profile, title, bands };
    Ok(files.write(&[titled], &output_options)?)
}

/// Returns a stop as a band on a time axis that begins at `begin`, in nanoseconds since 1970.
fn band(record: &Record, begin: u64) -> Option<Band> {
    let (kind, stop) = match record {
        Record::Pause(stop) => (BandKind::Collection, stop),
        Record::Safepoint(stop) => (BandKind::Safepoint, stop),
        _ => return None,
    };
    let begin_ns = time_of(record)?.checked_sub(begin)?;
    let label = stop.cause.as_deref().or(stop.op.as_deref()).unwrap_or_default().into();
    Some(Band { begin_ns, end_ns: begin_ns.saturating_add(stop.stopped_ns), kind, label })
}
