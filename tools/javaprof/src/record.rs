//! The JSON lines that javaprof prints.
//!
//! Names and meanings are documented in javaprof(8) and stable: fields may be added, but are never
//! renamed. Times are in nanoseconds; shares are fractions of all samples, from 0 to 1.

use std::collections::{BTreeMap, HashMap};

use libjvmprobe::{
    bpf::clock,
    render::{
        spans::{self, SpanShare},
        summary::{self, Quality},
    },
    stack::{
        StackFrame,
        profile::{FrameId, Measure, Profile, Sample},
        span::SpanContext,
    },
};
use serde::Serialize;

use crate::args::Args;

/// Maximum number of methods in a report.
const METHODS: usize = 100;

/// One line of output.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Record {
    /// A method, in an interval or in the complete trace.
    Method(Method),
    /// A stack, with `--stacks`.
    Stack(Stack),
    /// A span, with `--span`.
    Span(Span),
    /// The totals of an interval or of the complete trace.
    Summary(Summary),
}

/// A method.
#[derive(Clone, Debug, Serialize)]
pub struct Method {
    /// Wall-clock time at which the interval or the trace ended, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// The sampled event.
    pub event: String,
    /// The method's name.
    pub method: String,
    /// Samples with the method innermost; for events other than `cpu`, the occurrences or
    /// nanoseconds that these samples represent.
    pub self_samples: u64,
    /// `self_samples` as a share of all samples.
    pub self_share: f64,
    /// Samples with the method anywhere in the stack, in the unit of `self_samples`.
    pub total_samples: u64,
    /// `total_samples` as a share of all samples.
    pub total_share: f64,
}

/// A stack.
#[derive(Clone, Debug, Serialize)]
pub struct Stack {
    /// Wall-clock time at which the interval or the trace ended, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// The sampled event.
    pub event: String,
    /// The process.
    pub pid: u32,
    /// The process's command name.
    pub command: String,
    /// The thread, with `--threads`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// The thread's name, with `--threads`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// The trace, with `--span`, if the thread has published one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// The span, with `--span`, if the thread has published one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span_id: Option<String>,
    /// Number of samples; for events other than `cpu`, the occurrences or nanoseconds that these
    /// samples represent.
    pub samples: u64,
    /// `samples` of this stack as a share of all samples.
    pub share: f64,
    /// For events other than `cpu`: number of samples or waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// The frames, innermost first.
    pub stack: Vec<StackFrame>,
}

/// A span.
#[derive(Clone, Debug, Serialize)]
pub struct Span {
    /// Wall-clock time at which the interval or the trace ended, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// The sampled event.
    pub event: String,
    /// The trace; null for all samples whose thread had published none.
    pub trace_id: Option<String>,
    /// The span, null if `trace_id` is.
    pub span_id: Option<String>,
    /// Number of samples; for events other than `cpu`, the occurrences or nanoseconds that these
    /// samples represent.
    pub samples: u64,
    /// `samples` of this span as a share of all samples.
    pub share: f64,
    /// CPU time that these samples represent, for the event `cpu` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor_ns: Option<u64>,
    /// The methods with the most samples that have them innermost, at most three.
    pub methods: Vec<SpanMethod>,
}

/// A method of a span.
#[derive(Clone, Debug, Serialize)]
pub struct SpanMethod {
    /// The method's name.
    pub method: String,
    /// Samples of the span with the method innermost.
    pub self_samples: u64,
}

/// The totals of an interval or of the complete trace.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Wall-clock time at which the interval or the trace ended, RFC 3339 with nanoseconds, UTC.
    pub time: String,
    /// `time` on `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// `interval`, or `trace` for the complete trace.
    pub scope: &'static str,
    /// The sampled event.
    pub event: String,
    /// Length of the interval or of the trace.
    pub duration_ns: u64,
    /// Samples per second and processor, for the event `cpu` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hertz: Option<u64>,
    /// Number of samples.
    pub samples: u64,
    /// Amount that these samples represent, in `unit`.
    pub value: u64,
    /// Unit of `value`: `samples`, `count` or `ns`.
    pub unit: &'static str,
    /// CPU time that these samples represent, for the event `cpu` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processor_ns: Option<u64>,
    /// Shares of Java, JVM, GC, JIT, native and kernel code.
    pub shares: BTreeMap<&'static str, f64>,
    /// Share of samples whose stacks are complete up to the thread's entry function.
    pub complete: f64,
    /// Share of samples whose stacks contain a guessed step, and are therefore not counted as
    /// complete.
    pub guessed: f64,
    /// Share of samples whose innermost inlined methods may be missing.
    pub unsure: f64,
    /// Share of frames without a name.
    pub unnamed_frames: f64,
    /// Samples whose stacks were dropped to stay within `--max-memory`.
    pub folded: u64,
    /// Samples that were lost and are not counted.
    pub lost: u64,
}

/// Returns the records of a profile: stacks, if `--stacks` is given, methods, and the summary last.
pub fn records(profile: &Profile, args: &Args, scope: &'static str, end_ns: u64) -> Vec<Record> {
    let time = clock::rfc3339(end_ns);
    let total = profile.total();
    let share = |count: u64| count as f64 / total.max(1) as f64;
    let mut records = Vec::new();
    if args.stacks {
        records.extend(stacks(profile, args.threads, args.span, &time));
    }
    if args.span {
        records.extend(spans(profile, &time));
    }
    let methods = summary::methods(profile).into_iter().take(METHODS);
    records.extend(methods.map(|(name, own, all)| {
        Record::Method(Method {
            time: time.clone(),
            event: profile.measure.name().into(),
            method: name.into(),
            self_samples: own,
            self_share: share(own),
            total_samples: all,
            total_share: share(all),
        })
    }));
    let is_time = profile.measure == Measure::Time;
    let Quality { complete, guessed, unsure, unnamed_frames } = Quality::of(profile);
    records.push(Record::Summary(Summary {
        time,
        ts_ns: end_ns,
        scope,
        event: profile.measure.name().into(),
        duration_ns: profile.duration_ns,
        hertz: is_time.then_some(profile.hertz),
        samples: profile.sampled(),
        value: total,
        unit: match profile.measure {
            Measure::Time => "samples",
            Measure::Allocation => "bytes",
            Measure::Events(_) => "count",
            Measure::Elapsed(_) => "ns",
        },
        processor_ns: is_time.then(|| total.saturating_mul(1_000_000_000) / profile.hertz.max(1)),
        shares: summary::shares(profile).into_iter().collect(),
        complete,
        guessed,
        unsure,
        unnamed_frames,
        folded: profile.folded,
        lost: profile.lost,
    }));
    records
}

/// Returns one record for each span, those with the most samples first.
fn spans(profile: &Profile, time: &str) -> Vec<Record> {
    let total = profile.total().max(1) as f64;
    let period = (profile.measure == Measure::Time).then(|| 1e9 / profile.hertz.max(1) as f64);
    let record = |share: SpanShare<'_>| {
        let methods = share.methods.into_iter();
        Record::Span(Span {
            time: time.into(),
            event: profile.measure.name().into(),
            trace_id: share.span.map(|span| span.trace()),
            span_id: share.span.map(|span| span.span()),
            samples: share.count,
            share: share.count as f64 / total,
            processor_ns: period.map(|period| (share.count as f64 * period) as u64),
            methods: methods
                .map(|(method, self_samples)| SpanMethod { method: method.into(), self_samples })
                .collect(),
        })
    };
    spans::shares(profile).into_iter().map(record).collect()
}

/// Returns one record for each stack of a process or, if `threads`, of a thread or, if `by_span`, of a
/// span, those with the most samples first.
fn stacks(profile: &Profile, threads: bool, by_span: bool, time: &str) -> Vec<Record> {
    type Key<'a> = (u32, Option<(u32, &'a str)>, Option<SpanContext>, &'a [FrameId]);
    let mut counts: HashMap<Key<'_>, (&Sample, u64, u64)> = HashMap::new();
    for sample in &profile.samples {
        let thread = threads.then_some((sample.tid, &*sample.thread));
        let span = sample.span.filter(|_| by_span);
        let key = (sample.pid, thread, span, &sample.stack[..]);
        let (_, count, times) = counts.entry(key).or_insert((sample, 0, 0));
        *count += sample.count;
        *times += sample.occurrences;
    }
    let mut all: Vec<_> = counts.into_iter().collect();
    all.sort_by(|a, b| b.1.1.cmp(&a.1.1).then_with(|| a.0.cmp(&b.0)));
    let total = profile.total().max(1) as f64;
    let is_time = profile.measure == Measure::Time;
    let record =
        |((pid, thread, span, stack), (sample, count, times)): (Key<'_>, (&Sample, u64, u64))| {
            Record::Stack(Stack {
                time: time.into(),
                event: profile.measure.name().into(),
                pid,
                command: sample.command.to_string(),
                tid: thread.map(|thread| thread.0),
                thread: thread.map(|thread| thread.1.to_owned()),
                trace_id: span.map(|span| span.trace()),
                span_id: span.map(|span| span.span()),
                samples: count,
                share: count as f64 / total,
                times: (!is_time).then_some(times),
                stack: stack.iter().rev().map(|&id| profile.frame(id).into()).collect(),
            })
        };
    all.into_iter().map(record).collect()
}
