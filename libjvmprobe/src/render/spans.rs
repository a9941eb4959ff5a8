//! Profiles by span: a table, and profiles in which the span is the outermost frame.

use std::collections::HashMap;

use crate::{
    render::{columns::fit, summary::waiting_method, table::RuledTable, units::percent},
    stack::{
        Frame, Kind,
        profile::{Measure, Profile, Sample},
        span::SpanContext,
    },
};

/// Maximum number of rows of a table.
const ROWS: usize = 20;
/// Maximum number of rows with `--stacks`.
const MORE_ROWS: usize = 1000;
/// Maximum number of methods of a row.
const METHODS: usize = 3;
/// Maximum width of the methods of a row, in columns.
const METHODS_WIDTH: usize = 72;

/// Part of a profile that belongs to one span.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpanShare<'a> {
    /// The span; `None` for all samples whose thread had published none.
    pub span: Option<SpanContext>,
    /// Sum of the samples' counts.
    pub count: u64,
    /// Sum of the samples' occurrences.
    pub occurrences: u64,
    /// Methods with their self counts, largest first.
    pub methods: Vec<(&'a str, u64)>,
}

/// Returns the part of each span, largest first.
pub fn shares(profile: &Profile) -> Vec<SpanShare<'_>> {
    let mut spans: HashMap<Option<SpanContext>, (SpanShare<'_>, HashMap<&str, u64>)> =
        HashMap::new();
    for sample in &profile.samples {
        let (share, methods) = spans.entry(sample.span).or_default();
        share.count = share.count.saturating_add(sample.count);
        share.occurrences = share.occurrences.saturating_add(sample.occurrences);
        let innermost = || sample.stack.last().map(|&id| &*profile.frame(id).name);
        if let Some(method) = waiting_method(profile, sample).or_else(innermost) {
            let count = methods.entry(method).or_default();
            *count = count.saturating_add(sample.count);
        }
    }
    let mut shares: Vec<_> = spans
        .into_iter()
        .map(|(span, (share, methods))| {
            let mut methods: Vec<_> = methods.into_iter().collect();
            methods.sort_unstable_by(|a, b| (b.1, a.0).cmp(&(a.1, b.0)));
            methods.truncate(METHODS);
            SpanShare { span, methods, ..share }
        })
        .collect();
    shares.sort_unstable_by(|a, b| (b.count, a.span).cmp(&(a.count, b.span)));
    shares
}

/// Returns the table of spans; with `more`, with more rows.
pub fn table(profile: &Profile, more: bool) -> String {
    let total = profile.total() as f64;
    let counted = match profile.measure {
        Measure::Time => "CPU MS",
        Measure::Allocation => "BYTES",
        Measure::Events(_) => "COUNT",
        Measure::Elapsed(_) => "MS",
    };
    let amount = |count: u64| match profile.measure {
        Measure::Time => format!("{:.0}", count as f64 * 1e3 / profile.hertz.max(1) as f64),
        Measure::Elapsed(_) => format!("{:.3}", count as f64 / 1e6),
        _ => count.to_string(),
    };
    let mut rows = RuledTable::new(&["TRACE", "SPAN", counted, "SHARE", "TOP FRAMES"], 2..4);
    let shares = shares(profile);
    let max = if more { MORE_ROWS } else { ROWS };
    for share in shares.iter().take(max) {
        let (trace, span) = share.span.map_or_else(
            || ("(no span)".into(), String::new()),
            |span| (span.trace(), span.span()),
        );
        let of_span = |&(name, count): &(&str, u64)| {
            format!("{} {name}", percent(count as f64, share.count as f64))
        };
        let methods: Vec<_> = share.methods.iter().map(of_span).collect();
        let part = percent(share.count as f64, total);
        rows.row(vec![
            trace,
            span,
            amount(share.count),
            part,
            fit(&methods.join(", "), METHODS_WIDTH),
        ]);
    }
    let hidden = shares.get(max..).unwrap_or_default();
    if !hidden.is_empty() {
        let count = hidden.iter().map(|share| share.count).fold(0, u64::saturating_add);
        let part = percent(count as f64, total);
        rows.row(vec![
            format!("({} more)", hidden.len()),
            String::new(),
            amount(count),
            part,
            String::new(),
        ]);
    }
    rows.text() + "\n"
}

/// Returns the profile with the span as the outermost frame of each stack, for formats in which samples have no
/// labels.
pub fn grouped(profile: &Profile) -> Profile {
    let mut grouped = Profile::of(profile.measure.clone());
    (grouped.hertz, grouped.duration_ns) = (profile.hertz, profile.duration_ns);
    (grouped.begin_unix_ns, grouped.slot_ns) = (profile.begin_unix_ns, profile.slot_ns);
    (grouped.lost, grouped.folded) = (profile.lost, profile.folded);
    let ids: Vec<_> = profile.frames().iter().map(|frame| grouped.intern(frame.clone())).collect();
    for sample in &profile.samples {
        let name = match sample.span {
            Some(span) => format!("[span {span}]"),
            None => "[no span]".to_owned(),
        };
        let mut stack = vec![grouped.intern(Frame::new(Kind::Unknown, name))];
        stack.extend(sample.stack.iter().map(|&id| ids[id as usize]));
        grouped.samples.push(Sample { stack, ..sample.clone() });
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let mut profile = Profile::default();
        profile.hertz = 100;
        let [work, wait] =
            ["a.A.work", "a.A.wait"].map(|name| profile.intern(Frame::new(Kind::Java, name)));
        let span = |n: u8| SpanContext::new([n; 16], [n; 8]);
        for (span, leaf, count) in
            [(span(1), work, 3), (span(2), wait, 5), (None, work, 2), (span(1), wait, 4)]
        {
            let stack = vec![leaf];
            profile.samples.push(Sample { count, span, ..Sample::of(7, "t".into(), 8, stack) });
        }
        profile
    }

    #[test]
    fn spans_are_sorted_by_count_with_their_top_methods() {
        let profile = profile();
        let shares = shares(&profile);
        let counts: Vec<_> =
            shares.iter().map(|s| (s.span.map(|span| span.span_id()[0]), s.count)).collect();
        assert_eq!(counts, [(Some(1), 7), (Some(2), 5), (None, 2)]);
        assert_eq!(shares[0].methods, [("a.A.wait", 4), ("a.A.work", 3)]);
        let table = table(&profile, false);
        let rows: Vec<Vec<_>> =
            table.lines().map(|line| line.split_whitespace().collect()).collect();
        let trace = "01".repeat(16);
        let of_first = rows.iter().find(|row| row.first() == Some(&&*trace)).unwrap();
        assert_eq!(of_first[1..4], ["0101010101010101", "70", "50.00"]);
        assert!(table.contains("(no span)"), "{table}");
    }

    #[test]
    fn rows_beyond_the_limit_are_summed() {
        let mut profile = profile();
        for n in 10..60 {
            profile.samples.push(Sample {
                count: 1,
                span: SpanContext::new([n; 16], [n; 8]),
                ..profile.samples[0].clone()
            });
        }
        let text = table(&profile, false);
        assert!(text.contains("(33 more)"), "{text}");
        assert!(!table(&profile, true).contains("more)"));
    }

    #[test]
    fn grouped_profile_has_the_span_outermost() {
        let grouped = grouped(&profile());
        let name = |at: usize| &*grouped.frame(grouped.samples[at].stack[0]).name;
        let span = format!("[span {}-{}]", "01".repeat(16), "01".repeat(8));
        assert_eq!((name(0), name(2)), (&*span, "[no span]"));
        assert_eq!((grouped.total(), grouped.hertz), (14, 100));
    }
}
