//! Prints a profile of an interval or of the complete trace as a summary, as folded stacks, or as
//! JSON lines.

use std::time::Duration;

use libjvmprobe::{
    Result,
    attach::agent,
    render::{
        formats::folded,
        output::Output,
        spans,
        summary::{self, SummaryOptions},
        table::Times,
    },
    stack::profile::Profile,
    trace::{
        self,
        samples::{About, Sink},
    },
};

use crate::{args::Args, progress::Progress, record};

/// Prints profiles on standard output.
pub struct Report<'a> {
    args: &'a Args,
    out: Output,
    times: Times,
    progress: Progress,
    /// Title of the summary; set when sampling begins.
    pub title: String,
    /// Number of samples in the printed profiles whose stacks were dropped.
    pub dropped_stacks: u64,
}

impl<'a> Report<'a> {
    /// Opens standard output.
    pub fn open(args: &'a Args) -> Result<Self> {
        let times = Times { dates: args.common.timestamps };
        let (progress, title) = (Progress::new(args.common.quiet), String::new());
        Ok(Self { args, out: Output::open(None)?, times, progress, title, dropped_stacks: 0 })
    }

    /// Removes the progress line when sampling has ended.
    pub fn end_progress(&self) {
        self.progress.clear();
    }

    /// Prints the profiles, one for each event, under the title. `end_ns` is the time at which they
    /// end, on `CLOCK_MONOTONIC`.
    fn show(&mut self, profiles: &mut [Profile], end_ns: u64) -> Result<()> {
        let common = &self.args.common;
        if common.quiet {
            return Ok(());
        }
        let is_interval = self.args.times().interval.is_some();
        let are_several = profiles.len() > 1;
        for (number, profile) in profiles.iter_mut().enumerate() {
            apply_filters(profile, self.args);
            if common.json {
                let scope = if is_interval { "interval" } else { "trace" };
                for record in record::records(profile, self.args, scope, end_ns) {
                    self.out.json(&record)?;
                }
            } else if self.args.folded {
                let options =
                    folded::Options { threads: self.args.threads, by_second: self.args.timeline };
                let grouped = self.args.span.then(|| spans::grouped(profile));
                for line in folded::lines(grouped.as_ref().unwrap_or(profile), options) {
                    // If several profiles share the output, the event is the root of its stacks.
                    match are_several {
                        true => self.out.line(&format!("{};{line}", profile.measure.name()))?,
                        false => self.out.line(&line)?,
                    }
                }
            } else {
                if number == 0 {
                    let at = self.times.before_title(end_ns, is_interval);
                    self.out.lines(&format!("\n{at}{}", self.title))?;
                }
                let options = SummaryOptions {
                    is_named: are_several,
                    stacks: self.args.stacks,
                    spans: self.args.span,
                };
                self.out.lines(summary::text(profile, options).trim_end())?;
            }
        }
        Ok(())
    }
}

impl trace::Sink for Report<'_> {
    /// Whether the reader has closed the output.
    fn is_closed(&self) -> bool {
        self.out.is_closed()
    }
}

impl Sink for Report<'_> {
    fn profiles(&mut self, profiles: &mut [Profile], about: &About) -> Result<()> {
        self.progress.clear();
        self.show(profiles, about.end_ns)?;
        let dropped_stacks: u64 = profiles.iter().map(|profile| profile.folded).sum();
        if dropped_stacks > 0 {
            log::warn!(
                "dropped the stacks of {dropped_stacks} samples to limit memory use: see \
                 --max-memory"
            );
        }
        self.dropped_stacks += dropped_stacks;
        Ok(())
    }

    fn progress(&mut self, elapsed: Duration, samples: u64) {
        self.progress.show(elapsed, samples);
    }
}

/// Applies `--include` and `--exclude`, and removes the samples of the agent. If a JVM is discovered
/// during the trace, it may already be sampled while the agent starts in it, and the agent's work is
/// not part of the JVM's own workload.
pub fn apply_filters(profile: &mut Profile, args: &Args) {
    let before = profile.sampled();
    profile.retain(|frame| frame.module.as_deref().is_some_and(agent::is_agent), false);
    let left_out = before - profile.sampled();
    if left_out > 0 {
        log::warn!("samples of the jvmprobe agent itself, omitted: {left_out}");
    }
    if !args.include.is_empty() {
        profile.retain(|frame| args.include.iter().any(|r| r.is_match(&frame.name)), true);
    }
    profile.retain(|frame| args.exclude.iter().any(|r| r.is_match(&frame.name)), false);
}
