//! HPCC: the time of HPL's largest problem, and the best rate of PTRANS.

use std::fs;
use std::time::Instant;

use super::experiments::{Experiment, Side};
use super::launch::Bench;
use super::measured::Value;
use crate::demo::hpcc::{self, Results};
use crate::error::{Context, Result, fail};

/// `hpccinf.txt`. PTRANS' own matrix (half the size of HPL's) is done within a millisecond, so it
/// gets a larger one beside it; HPCC reports the one that was transposed at the better rate.
fn input(quick: bool) -> String {
    let (hpl, ptrans) = if quick { (1000, 2000) } else { (2000, 4000) };
    hpcc::input(1, 2).replace("1000 Ns", &format!("{hpl} Ns")).replace(
        "0 additional problem sizes for PTRANS\n1200\n",
        &format!("1 additional\n{ptrans}\n"),
    )
}

/// Runs all of HPCC (it cannot run in part), verifies it, and takes its time and the
/// figures of two parts.
pub fn measure(bench: &Bench, experiment: &Experiment, side: &Side) -> Result<Vec<Value>> {
    let folder = bench.scratch.join("hpcc");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).context(|| folder.display().to_string())?;
    let file = folder.join("hpccinf.txt");
    fs::write(&file, input(bench.quick)).context(|| file.display().to_string())?;
    let start = Instant::now();
    bench.job(experiment.shape, side, &["hpcc".into()], &folder, &[])?;
    let all = start.elapsed().as_secs_f64();
    let results = Results::read(&folder.join("hpccoutf.txt"))?;
    let mut values = vec![Value { metric: "whole job".into(), size: 0, value: all }];
    // The time of PTRANS is that of the size with the best rate, whichever that was.
    for (metric, name, unit) in [("HPL", "HPL_time", 1.0), ("PTRANS", "PTRANS_GBs", 1000.0)] {
        let value = unit * results.number(name);
        if value <= 0.0 {
            fail!("hpccoutf.txt has no {name}");
        }
        values.push(Value { metric: metric.into(), size: 0, value });
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_problems_are_larger_than_those_of_the_demo() {
        let text = input(false);
        assert!(text.contains("\n2000 Ns\n"));
        assert!(text.contains("\n1 additional\n4000\n"));
        assert_eq!(text.lines().count(), hpcc::input(1, 2).lines().count());
    }
}
