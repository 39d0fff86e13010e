//! From rows and measurements to lines with a verdict.

use serde::Serialize;

use super::measured::Measured;
use super::rows::{Goal, Row, Unit};
use super::stats::{self, Spread};

/// Whether a goal is reached.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum Verdict {
    /// Median on the good side.
    Met,
    /// Median on the bad side.
    Missed,
    /// There is no goal.
    Shown,
    /// There is no number.
    Missing,
}

/// A line of the table with its numbers.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it is.
    pub row: Row,
    /// Median of the series that it is compared with.
    pub base: Option<f64>,
    /// Median of ours.
    pub ours: Option<f64>,
    /// Of the ratio ours / base over the pairs.
    pub ratio: Option<Spread>,
    /// The same ratio of the fastest stretches (a few messages each), which other programs on the
    /// machine disturb least; the median over the pairs.
    pub best: Option<f64>,
    /// The machine's best / the base, both of the fastest stretches.
    pub floor: Option<f64>,
    /// Number of pairs.
    pub pairs: usize,
    /// Reached or not.
    pub verdict: Verdict,
}

impl Line {
    /// The goal lies between the quartiles: another run may say otherwise.
    pub fn is_close(&self) -> bool {
        let (Goal::AtMost(goal) | Goal::AtLeast(goal)) = self.row.goal else { return false };
        self.ratio.is_some_and(|r| r.low < goal && goal < r.high)
    }
}

/// Every row with its numbers.
pub fn all(rows: Vec<Row>, measured: &Measured) -> Vec<Line> {
    rows.into_iter().map(|row| line(row, measured)).collect()
}

fn line(row: Row, measured: &Measured) -> Line {
    let series =
        |(side, metric): (&str, &str), size| measured.series(row.experiment, side, metric, size);
    let middle = |series: &[(usize, f64)]| {
        stats::median(&series.iter().map(|(_, value)| *value).collect::<Vec<_>>())
    };
    let (ours, base) = (series(row.ours, row.size), series(row.base, row.size));
    let ratios = stats::ratios(&ours, &base);
    let ratio = Spread::of(&ratios);
    // Where two processors lie to each other may change from pair to pair on a virtual machine:
    // the fastest stretches are compared within pairs, too.
    let fastest = |(side, metric): (&str, &str), size| {
        measured.series(row.experiment, side, &format!("{metric}-best"), size)
    };
    let best_base = fastest(row.base, row.size);
    let against_base = |series: &[(usize, f64)]| stats::median(&stats::ratios(series, &best_base));
    let best = against_base(&fastest(row.ours, row.size));
    let floor = row.floor.and_then(|(of, size)| against_base(&fastest(of, size)));
    let verdict = verdict(row.goal, ratio);
    let (base, ours) = (middle(&base), middle(&ours));
    Line { row, base, ours, ratio, best, floor, pairs: ratios.len(), verdict }
}

fn verdict(goal: Goal, ratio: Option<Spread>) -> Verdict {
    // What is shown with two digits is also judged with two.
    let round = |value: f64| (value * 100.0).round() / 100.0;
    match (goal, ratio.map(|r| round(r.median))) {
        (_, None) => Verdict::Missing,
        (Goal::Shown, _) => Verdict::Shown,
        (Goal::AtMost(goal), Some(ratio)) if ratio <= goal => Verdict::Met,
        (Goal::AtLeast(goal), Some(ratio)) if ratio >= goal => Verdict::Met,
        _ => Verdict::Missed,
    }
}

/// A value in its unit, with three digits.
pub fn show(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Us => format!("{} µs", digits(value)),
        Unit::Ns => format!("{} ns", digits(value)),
        Unit::Seconds => format!("{} s", digits(value)),
        Unit::MBs if value >= 1000.0 => format!("{} GB/s", digits(value / 1e3)),
        Unit::MBs => format!("{} MB/s", digits(value)),
        Unit::PerSecond if value >= 1e6 => format!("{} M/s", digits(value / 1e6)),
        Unit::PerSecond if value >= 1e3 => format!("{} k/s", digits(value / 1e3)),
        Unit::PerSecond => format!("{} /s", digits(value)),
        Unit::Percent => format!("{} %", digits(value)),
        Unit::Instructions => format!("{value:.0}"),
    }
}

fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Bytes as powers of 1024 where they are, other numbers as they are.
pub fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::measured::tests::run;
    use super::super::rows;
    use super::*;

    fn row(goal: Goal) -> Row {
        let mut row = rows::all().remove(0);
        row.experiment = "e";
        row.size = 8;
        row.goal = goal;
        row
    }

    fn measured() -> Measured {
        let values = [(4.0, 2.0), (8.0, 4.0), (4.0, 3.0)];
        let mut runs = Vec::new();
        for (pair, (stock, ours)) in values.into_iter().enumerate() {
            runs.push(run("stock", pair, &format!("latency 8 {stock}")));
            runs.push(run("ours", pair, &format!("latency 8 {ours}")));
            let best = format!("latency-best 8 {}", stock / 2.0);
            runs.push(run("stock", pair, &best));
            runs.push(run("bare", pair, &format!("line-best 64 {}", stock / 8.0)));
        }
        Measured { runs }
    }

    #[test]
    fn the_ratio_is_the_median_of_the_pairs_ratios() {
        let line = line(row(Goal::AtMost(0.6)), &measured());
        assert_eq!((line.base, line.ours), (Some(4.0), Some(3.0)));
        assert_eq!(line.ratio.unwrap().median, 0.5);
        assert_eq!((line.floor, line.pairs), (Some(0.25), 3));
        assert_eq!(line.verdict, Verdict::Met);
    }

    #[test]
    fn the_fastest_stretches_are_compared_within_pairs() {
        let mut measured = measured();
        assert_eq!(line(row(Goal::Shown), &measured).best, None);
        measured.runs.push(run("ours", 1, "latency-best 8 3"));
        assert_eq!(line(row(Goal::Shown), &measured).best, Some(0.75));
    }

    #[test]
    fn goals_are_upper_or_lower_limits_and_what_is_missing_is_not_met() {
        let verdict_of = |goal| line(row(goal), &measured()).verdict;
        assert_eq!(verdict_of(Goal::AtMost(0.49)), Verdict::Missed);
        assert_eq!(verdict_of(Goal::AtLeast(0.5)), Verdict::Met);
        assert_eq!(verdict_of(Goal::AtLeast(0.51)), Verdict::Missed);
        assert_eq!(verdict_of(Goal::Shown), Verdict::Shown);
        let nothing = Measured::default();
        assert_eq!(line(row(Goal::AtMost(9.0)), &nothing).verdict, Verdict::Missing);
    }

    #[test]
    fn a_goal_between_the_quartiles_is_close() {
        assert!(line(row(Goal::AtMost(0.6)), &measured()).is_close());
        assert!(!line(row(Goal::AtMost(0.9)), &measured()).is_close());
        assert!(!line(row(Goal::Shown), &measured()).is_close());
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(show(0.1234, Unit::Us), "0.123 µs");
        assert_eq!(show(12345.0, Unit::MBs), "12.3 GB/s");
        assert_eq!(show(2.5e6, Unit::PerSecond), "2.50 M/s");
        assert_eq!(
            (size(0), size(4096), size(4 << 20)),
            ("0 B".into(), "4 KiB".into(), "4 MiB".into())
        );
    }
}
