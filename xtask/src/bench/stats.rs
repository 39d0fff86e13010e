//! Medians, quartiles and paired ratios.

/// The value below which `part` (0 to 1) of the values lie, between neighbours in proportion.
/// `None` if there are no values.
pub fn quantile(values: &[f64], part: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let at = part.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (at.floor() as usize, at.ceil() as usize);
    Some(sorted[below] + (sorted[above] - sorted[below]) * (at - below as f64))
}

/// The value in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// A median with its quartiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// A quarter of the values are below.
    pub low: f64,
    /// Half of them.
    pub median: f64,
    /// Three quarters.
    pub high: f64,
}

impl Spread {
    /// Of these values; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let at = |part| quantile(values, part);
        Some(Spread { low: at(0.25)?, median: at(0.5)?, high: at(0.75)? })
    }
}

/// For each pair that both sides have a value of: `ours` divided by `base`.
pub fn ratios(ours: &[(usize, f64)], base: &[(usize, f64)]) -> Vec<f64> {
    let of_pair = |wanted: usize| base.iter().find(|(pair, _)| *pair == wanted);
    ours.iter()
        .filter_map(|(pair, value)| Some((value, of_pair(*pair)?.1)))
        .filter(|(_, base)| *base != 0.0)
        .map(|(value, base)| value / base)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_in_the_middle_or_between_the_two_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn quartiles_lie_between_neighbours() {
        let spread = Spread::of(&[1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(spread, Spread { low: 1.75, median: 2.5, high: 3.25 });
        let same = Spread::of(&[5.0, 5.0, 5.0]).unwrap();
        assert_eq!(same, Spread { low: 5.0, median: 5.0, high: 5.0 });
    }

    #[test]
    fn one_wild_value_moves_neither_median_nor_quartiles_far() {
        let calm = Spread::of(&[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]).unwrap();
        let wild = Spread::of(&[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1e9]).unwrap();
        assert_eq!(calm, wild);
    }

    #[test]
    fn ratios_are_taken_within_pairs_only() {
        let ours = [(0, 2.0), (1, 9.0), (2, 8.0)];
        // The second run of the other side has failed; its pair does not count.
        let base = [(0, 4.0), (2, 2.0)];
        assert_eq!(ratios(&ours, &base), [0.5, 4.0]);
        assert_eq!(ratios(&ours, &[(0, 0.0)]), Vec::<f64>::new());
    }

    #[test]
    fn a_drift_that_both_sides_share_goes_out_of_the_ratio() {
        let base: Vec<_> = (0..7).map(|pair| (pair, 1.0 + pair as f64)).collect();
        let ours: Vec<_> = base.iter().map(|&(pair, value)| (pair, value / 2.0)).collect();
        let spread = Spread::of(&ratios(&ours, &base)).unwrap();
        assert_eq!((spread.low, spread.high), (0.5, 0.5));
    }
}
