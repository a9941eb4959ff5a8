//! Max-min fairness: divides a limited resource among parties with different needs.

/// Returns the maximum that each party may have, so that all together have no more than `all`. A party that
/// needs less than an equal share leaves the rest to the others. Returns infinity if all needs can be met.
pub fn fair_share(needs: impl IntoIterator<Item = f64>, all: f64) -> f64 {
    let mut needs: Vec<_> = needs.into_iter().collect();
    needs.sort_unstable_by(f64::total_cmp);
    let (mut left, mut parties) = (all, needs.len());
    for need in needs {
        let share = left / parties as f64;
        if need > share {
            return share;
        }
        left -= need;
        parties -= 1;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_share_is_divided_among_the_others() {
        assert_eq!(fair_share([5.0, 5.0], 10.0), f64::INFINITY);
        assert_eq!(fair_share([100.0, 2.0], 10.0), 8.0);
        assert_eq!(fair_share([100.0, 100.0, 1.0], 10.0), 4.5);
        assert_eq!(fair_share([], 10.0), f64::INFINITY);
    }
}
