//! The table of groups, and the longest waits below it.

use libjvmprobe::{
    render::{
        table::RuledTable,
        units::{count, span},
    },
    stack::{Frame, StackFrame},
    trace::waits::{Kind, Wait},
};

use crate::{
    groups::{Group, Key},
    wait_text::{awaited, holder, thread},
};

/// Number of groups whose longest wait is described.
const DESCRIBED: usize = 3;
/// Maximum number of places that are listed for a pool.
const HOLDERS: usize = 3;
/// Maximum number of frames of a described wait.
const FRAMES: usize = 12;

/// Returns the table of groups.
pub fn table(groups: &[(&Key, &Group)], by_thread: bool) -> String {
    let mut head = vec!["TOTAL", "COUNT", "MEAN", "P50", "P90", "P99", "MAX", "THREADS"];
    if by_thread {
        head.push("THREAD");
    }
    head.extend(["KIND", "FOR", "AT", "ENDED BY"]);
    let mut table = RuledTable::new(&head, 0..8);
    for (key, group) in groups {
        let mut row = vec![
            span(group.total_ns),
            group.count.to_string(),
            span(group.total_ns / group.count.max(1)),
            span(group.percentile(50.0)),
            span(group.percentile(90.0)),
            span(group.percentile(99.0)),
            span(group.max_ns),
            group.at_once().to_string(),
        ];
        row.extend(key.thread.clone());
        row.push(key.kind.name().into());
        row.push(key.on.clone().unwrap_or_else(|| "-".into()));
        row.push(key.at.clone().unwrap_or_else(|| "-".into()));
        row.push(ended_by(group));
        table.row(row);
    }
    table.text()
}

/// Returns lines about the resources of pools: who held their elements, and for how long.
pub fn pools(groups: &[(&Key, &Group)]) -> Vec<String> {
    let is_pool = |group: &Group| {
        group.longest.as_ref().is_some_and(|wait| wait.awaited.resource().is_some())
    };
    let pools = groups.iter().filter(|(_, group)| is_pool(group)).filter_map(|(key, group)| {
        let holders: Vec<_> =
            group.ended_by().into_iter().filter(|(_, ended)| ended.holds > 0).collect();
        let held = holders.iter().take(HOLDERS).map(|(at, ended)| match ended.holds {
            1 => format!("{at} once, for {}", span(ended.held_ns)),
            holds => format!(
                "{at} {holds} times, {} on average, longest {}",
                span(ended.held_ns / holds),
                span(ended.max_held_ns)
            ),
        });
        let held: Vec<_> = held.collect();
        (!held.is_empty()).then(|| {
            let on = key.on.as_deref().unwrap_or_default();
            let at = key.at.as_deref().unwrap_or_default();
            let waiting = count(group.at_once(), "thread");
            format!("{on}: at most {waiting} waited at {at}; held by {}", held.join("; "))
        })
    });
    pools.take(DESCRIBED).flat_map(|line| [String::new(), line]).collect()
}

/// Returns the place at which most of the waiting time was ended, with its share if there are others.
pub fn ended_by(group: &Group) -> String {
    let ended_by = group.ended_by();
    let Some((at, ended)) = ended_by.first() else { return "-".into() };
    if ended.count == group.count { (*at).to_owned() } else { format!("{at} ({})", ended.count) }
}

/// Returns the lines about the longest wait of each of the first groups; of all groups if `all`. Without `all`, groups
/// whose kind says everything are left out.
pub fn longest(groups: &[(&Key, &Group)], all: bool) -> Vec<String> {
    let needs_words = |key: &Key| {
        !matches!(key.kind, Kind::Sleep | Kind::RunQueue | Kind::Throttled | Kind::Stopped)
    };
    let shown = groups.iter().filter(|(key, _)| all || needs_words(key));
    let shown = shown.take(if all { usize::MAX } else { DESCRIBED });
    let described = shown.filter_map(|(_, group)| group.longest.as_ref());
    described.flat_map(|wait| describe(wait, all)).collect()
}

fn describe(wait: &Wait, all_frames: bool) -> Vec<String> {
    let on = awaited(&wait.awaited, true).map_or_else(String::new, |on| format!(" for {on}"));
    let of = thread(&wait.thread);
    let so_far = if wait.is_in_progress { " so far" } else { "" };
    let mut lines = vec![
        String::new(),
        format!("Longest: {}{so_far} {}{on}, {of}", span(wait.length_ns()), wait.kind.name()),
    ];
    lines.extend(frames(&wait.stack, all_frames));
    if let Some(by) = &wait.holder {
        lines.push(format!("  {}", holder(by, wait.thread.pid.0)));
        lines.extend(frames(&by.stack, all_frames));
    }
    lines
}

/// Returns all frames of a stack, innermost first. Without `all`, only the Java frames if there are any, at most
/// [`FRAMES`].
pub fn frames(stack: &[Frame], all: bool) -> Vec<String> {
    let has_java = stack.iter().any(Frame::is_java);
    let shown = stack.iter().rev().filter(|frame| all || !has_java || frame.is_java());
    let limit = if all { usize::MAX } else { FRAMES };
    let mut lines: Vec<_> = shown
        .clone()
        .take(limit)
        .map(|frame| format!("    at {}", StackFrame::from(frame)))
        .collect();
    let rest = shown.count().saturating_sub(lines.len());
    if rest > 0 {
        lines.push(format!("    ... {}; -s shows all", count(rest as u64, "more frame")));
    }
    lines
}
