//! Allocation by class, as a table with the columns of javaobjnew(8).

use std::collections::HashMap;

use libjvmprobe::{
    render::{
        table::{RuledTable, more},
        units::{bytes, count, percent},
    },
    stack::{Kind, profile::Profile},
};

/// Maximum number of classes in the table, the same as in javaobjnew.
const MAX_ROWS: usize = 20;

/// Returns the table of a profile of allocation.
pub fn text(profile: &Profile) -> String {
    let mut classes: HashMap<&str, (u64, u64)> = HashMap::new();
    for sample in &profile.samples {
        let innermost = sample.stack.last().map(|&id| profile.frame(id));
        let class = innermost.filter(|frame| frame.kind == Kind::Class);
        // If stacks were dropped to save memory, a placeholder frame replaces them. It is not a class, but
        // its name is shown in the column of classes.
        let name = class.or(innermost).map_or("[unknown]", |frame| &*frame.name);
        let (sum, objects) = classes.entry(name).or_default();
        *sum = sum.saturating_add(sample.count);
        *objects = objects.saturating_add(sample.occurrences);
    }
    let mut rows: Vec<_> = classes.into_iter().collect();
    rows.sort_by(|a, b| (b.1, a.0).cmp(&(a.1, b.0)));
    let total = profile.total();
    let seconds = (profile.duration_ns as f64 / 1e9).max(1e-9);
    let per_second = |amount: u64| bytes((amount as f64 / seconds) as u64);
    let mut table =
        RuledTable::new(&["BYTES/s", "SHARE", "OBJECTS", "BYTES", "AVERAGE", "CLASS"], 0..5);
    for (name, (sum, objects)) in rows.iter().take(MAX_ROWS) {
        table.row(vec![
            per_second(*sum),
            percent(*sum as f64, total as f64),
            if *objects > 0 { objects.to_string() } else { "-".into() },
            bytes(*sum),
            sum.checked_div(*objects).map_or("-".into(), bytes),
            (*name).to_owned(),
        ]);
    }
    let objects = rows.iter().map(|(_, (_, objects))| objects).sum();
    let mut text = format!(
        "{} allocated in {seconds:.2} s, {}/s; {}\n{}\n",
        bytes(total),
        per_second(total),
        count(objects, "object"),
        table.text()
    );
    let hidden = rows.iter().skip(MAX_ROWS).map(|(_, (sum, _))| *sum);
    text += &more("class", hidden, bytes).map(|line| line + "\n").unwrap_or_default();
    text
}
