//! Waits by kind and code, as a table with columns of javawait(8).

use std::collections::HashMap;

use libjvmprobe::{
    render::{
        columns::wrap,
        summary::{hottest_stacks, total_line},
        table::{RuledTable, more},
        units::{percent, span},
    },
    stack::{Frame, profile::Profile},
    trace::waits::application_frame,
};

/// Maximum number of rows, the same as in javawait.
const MAX_ROWS: usize = 20;

/// Returns the table of a profile of waits, and the call tree; with `stacks`, more of the tree.
pub fn text(profile: &Profile, stacks: bool) -> String {
    let mut rows: HashMap<(&str, String), (u64, u64)> = HashMap::new();
    for sample in &profile.samples {
        let frames: Vec<Frame> = sample.stack.iter().map(|&id| profile.frame(id).clone()).collect();
        // The innermost frame is a label with the kind, or it replaces stacks that were dropped to save memory.
        let kind = sample.stack.last().map_or("[unknown]", |&id| &*profile.frame(id).name);
        let code = frames.split_last().and_then(|(_, code)| application_frame(code));
        let at = code.map_or_else(|| "-".into(), |frame| frame.name.to_string());
        let (ns, times) = rows.entry((kind.trim_matches(['[', ']']), at)).or_default();
        *ns = ns.saturating_add(sample.count);
        *times = times.saturating_add(sample.occurrences);
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by(|(a, (a_ns, _)), (b, (b_ns, _))| (b_ns, a).cmp(&(a_ns, b)));
    let total = profile.total();
    let mut text = wrap(&total_line(profile)) + "\n";
    if rows.is_empty() {
        return text;
    }
    let mut table = RuledTable::new(&["TOTAL", "SHARE", "COUNT", "MEAN", "KIND", "AT"], 0..4);
    for ((kind, at), (ns, times)) in rows.iter().take(MAX_ROWS) {
        table.row(vec![
            span(*ns),
            percent(*ns as f64, total as f64),
            times.to_string(),
            span(ns / times.max(&1)),
            (*kind).to_owned(),
            at.clone(),
        ]);
    }
    text += &format!("\n{}\n", table.text());
    let hidden = rows.iter().skip(MAX_ROWS).map(|(_, (ns, _))| *ns);
    text += &more("row", hidden, span).map(|line| line + "\n").unwrap_or_default();
    text + "\n" + &hottest_stacks(profile, stacks)
}

#[cfg(test)]
mod tests {
    use libjvmprobe::stack::{
        Kind,
        profile::{Measure, Sample},
    };

    use super::*;

    #[test]
    fn rows_are_kinds_and_application_code_with_the_longest_total_first() {
        let mut profile = Profile::of(Measure::Elapsed("wait".into()));
        profile.duration_ns = 2_000_000_000;
        for (method, jdk, kind, count, occurrences) in [
            ("shop.Orders.find", "jdk.internal.misc.Unsafe.park", "[park]", 3_000_000_000, 2),
            ("shop.Orders.find", "java.lang.Object.wait", "[park]", 1_000_000_000, 2),
            ("shop.Orders.find", "java.lang.Thread.sleep", "[sleep]", 5_000_000_000, 1),
        ] {
            let frames = [(Kind::Java, method), (Kind::Java, jdk), (Kind::Class, kind)];
            let stack = frames.map(|(kind, name)| profile.intern(Frame::new(kind, name))).into();
            profile.samples.push(Sample {
                count,
                occurrences,
                ..Sample::of(7, "main".into(), 7, stack)
            });
        }
        let text = text(&profile, false);
        assert!(text.starts_with("9.00 s of wait in 2.00 s, 5 times\n"), "{text}");
        let rows: Vec<Vec<_>> = text
            .lines()
            .filter(|line| line.contains("shop.Orders.find") && line.contains(" s "))
            .map(|line| line.split_whitespace().collect())
            .collect();
        let columns: Vec<_> = rows.iter().map(|row| row[row.len() - 2..].to_vec()).collect();
        let at = "shop.Orders.find";
        assert_eq!(columns, [["sleep", at], ["park", at]], "{text}");
        assert!(text.contains("44.44 %") && text.contains("Hottest stacks\n"), "{text}");
    }
}
