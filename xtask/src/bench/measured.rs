//! Everything that was measured, value by value.

use serde::Serialize;

/// One number that a program has printed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Value {
    /// What it is: `latency`, `rate`, …
    pub metric: String,
    /// Bytes of a message, number of messages, size of a matrix, …
    pub size: u64,
    /// In the unit of the metric.
    pub value: f64,
}

/// One run of one program on one side.
#[derive(Clone, Debug, Serialize)]
pub struct MeasuredRun {
    /// Name of the experiment.
    pub experiment: &'static str,
    /// Name of the side.
    pub side: &'static str,
    /// Number of the pair, from 0.
    pub pair: usize,
    /// From start to end.
    pub seconds: f64,
    /// Part of the machine's processors that went to other programs meanwhile, 0 to 1.
    pub others: f64,
    /// What it has printed.
    pub values: Vec<Value>,
    /// Why there is nothing.
    pub failure: Option<String>,
}

/// All runs.
#[derive(Default)]
pub struct Measured {
    /// In the order in which they ran.
    pub runs: Vec<MeasuredRun>,
}

impl Measured {
    /// The values of a metric and size on a side, with the number of their pair.
    pub fn series(
        &self,
        experiment: &str,
        side: &str,
        metric: &str,
        size: u64,
    ) -> Vec<(usize, f64)> {
        let runs = self.runs.iter().filter(|r| r.experiment == experiment && r.side == side);
        let find = |run: &MeasuredRun| {
            let found = run.values.iter().find(|v| v.metric == metric && v.size == size)?;
            Some((run.pair, found.value))
        };
        runs.filter_map(find).collect()
    }

    /// Sizes of a metric for which a side has values, in order.
    pub fn sizes(&self, experiment: &str, side: &str, metric: &str) -> Vec<u64> {
        let runs = self.runs.iter().filter(|r| r.experiment == experiment && r.side == side);
        let values = runs.flat_map(|run| &run.values).filter(|v| v.metric == metric);
        let mut sizes: Vec<u64> = values.map(|v| v.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Runs that have failed.
    pub fn failures(&self) -> impl Iterator<Item = (&MeasuredRun, &str)> {
        self.runs.iter().filter_map(|run| Some((run, run.failure.as_deref()?)))
    }

    /// How many runs had to share the processors: more than a twentieth went to others.
    pub fn disturbed(&self) -> usize {
        self.runs.iter().filter(|run| run.others > 0.05).count()
    }
}

/// Lines of three words: metric, size, value. Other lines are not ours (mpirun's, warnings).
pub fn understand(text: &str) -> Vec<Value> {
    let understand = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [metric, size, value] = words[..] else { return None };
        let value = value.parse::<f64>().ok().filter(|v| v.is_finite())?;
        Some(Value { metric: metric.to_string(), size: size.parse().ok()?, value })
    };
    text.lines().filter_map(understand).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A run without trouble.
    pub fn run(side: &'static str, pair: usize, text: &str) -> MeasuredRun {
        let values = understand(text);
        MeasuredRun {
            experiment: "e",
            side,
            pair,
            seconds: 1.0,
            others: 0.0,
            values,
            failure: None,
        }
    }

    #[test]
    fn lines_of_programs_are_understood_and_others_are_not() {
        let values = understand("latency 8 0.25\nmpirun: 3 x\nrate 8 nan\nnot a number\n");
        assert_eq!(values, [Value { metric: "latency".into(), size: 8, value: 0.25 }]);
    }

    #[test]
    fn a_series_keeps_the_number_of_the_pair() {
        let runs = vec![
            run("ours", 0, "latency 8 2\nlatency 0 1"),
            run("stock", 0, "latency 8 4"),
            run("ours", 2, "latency 8 3"),
        ];
        let measured = Measured { runs };
        assert_eq!(measured.series("e", "ours", "latency", 8), [(0, 2.0), (2, 3.0)]);
        assert_eq!(measured.sizes("e", "ours", "latency"), [0, 8]);
    }
}
