//! Shows a profile, of an interval or of all of the trace: as a summary, as folded stacks, or as
//! JSON lines.

use libjvmprobe::{
    Result,
    ask::agent,
    bpf::clock,
    own::note,
    render::{formats::folded, output::Output, table::Times},
    stack::profile::Profile,
};

use crate::{args::Args, record, summary};

/// Where it is shown.
pub struct Report<'a> {
    args: &'a Args,
    out: Output,
    times: Times,
}

impl<'a> Report<'a> {
    /// On standard output.
    pub fn open(args: &'a Args) -> Result<Self> {
        let times = Times { dates: args.common.timestamps };
        Ok(Self { args, out: Output::open(None)?, times })
    }

    /// Whether nobody reads it any more.
    pub fn is_closed(&self) -> bool {
        self.out.is_closed()
    }

    /// Shows profiles, one of each event, under this title.
    pub fn show(&mut self, profiles: &mut [Profile], title: &str) -> Result<()> {
        let common = &self.args.common;
        if common.quiet {
            return Ok(());
        }
        let now = clock::monotonic_ns();
        let is_interval = self.args.times().interval.is_some();
        let are_several = profiles.len() > 1;
        for (number, profile) in profiles.iter_mut().enumerate() {
            choose(profile, self.args);
            if common.json {
                let scope = if is_interval { "interval" } else { "trace" };
                for record in record::records(profile, self.args, scope, now) {
                    self.out.json(&record)?;
                }
            } else if self.args.folded {
                let options = folded::Options {
                    threads: self.args.threads,
                    by_second: self.args.timeline,
                    ..Default::default()
                };
                for line in folded::lines(profile, options) {
                    // Where several stand in one stream, each has a root of its own.
                    match are_several {
                        true => self.out.line(&format!("{};{line}", profile.measure.name()))?,
                        false => self.out.line(&line)?,
                    }
                }
            } else {
                if number == 0 {
                    let at = self.times.before_title(now, is_interval);
                    self.out.lines(&format!("\n{at}{title}"))?;
                }
                self.out.lines(summary::text(profile, are_several, self.args.stacks).trim_end())?;
            }
        }
        Ok(())
    }
}

/// Keeps what `--include` and `--exclude` leave. A JVM that was found later is asked while it is
/// sampled: what our agent does there is not what the JVM is busy with.
pub fn choose(profile: &mut Profile, args: &Args) {
    let before = profile.sampled();
    profile.retain(|frame| frame.module.as_deref().is_some_and(agent::is_agent), false);
    let left_out = before - profile.sampled();
    if left_out > 0 {
        note(&format!("samples of our own agent at work, left out: {left_out}"));
    }
    if !args.include.is_empty() {
        profile.retain(|frame| args.include.iter().any(|r| r.is_match(&frame.name)), true);
    }
    profile.retain(|frame| args.exclude.iter().any(|r| r.is_match(&frame.name)), false);
}
