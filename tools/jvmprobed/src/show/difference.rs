//! Change between two profiles, by innermost method or allocated class.

use std::collections::HashMap;

use libjvmprobe::{
    render::{summary, table::RuledTable, units::percent},
    stack::profile::{Measure, Profile},
};

/// Maximum number of rows, and minimum change of the share for a row.
const MAX_ROWS: usize = 20;
const MIN_CHANGE: f64 = 0.001;

/// Returns the table of shares in both profiles, sorted by the size of the change.
pub fn text(now: &Profile, then: &Profile) -> String {
    let mut shares: HashMap<&str, [f64; 2]> = HashMap::new();
    for (at, profile) in [now, then].into_iter().enumerate() {
        let total = profile.total().max(1) as f64;
        for (name, own, _) in summary::methods(profile) {
            shares.entry(name).or_default()[at] += own as f64 / total;
        }
    }
    let change = |[now, then]: &[f64; 2]| now - then;
    let mut rows: Vec<_> =
        shares.into_iter().filter(|(_, both)| change(both).abs() >= MIN_CHANGE).collect();
    rows.sort_by(|a, b| {
        change(&b.1).abs().total_cmp(&change(&a.1).abs()).then_with(|| a.0.cmp(b.0))
    });
    if rows.is_empty() {
        return "Nothing has changed by 0.1 % of the total or more.\n".into();
    }
    let what = if now.measure == Measure::Allocation { "CLASS" } else { "METHOD" };
    let mut table = RuledTable::new(&["NOW", "BEFORE", "CHANGE", what], 0..3);
    for (name, both) in rows.into_iter().take(MAX_ROWS) {
        let change = 100.0 * change(&both);
        let [now, then] = both.map(|share| percent(share, 1.0));
        table.row(vec![now, then, format!("{change:+.2}"), name.to_owned()]);
    }
    table.text() + "\n"
}
