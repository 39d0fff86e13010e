//! UCX's own benchmark, without MPI, for comparison: `ucx_perftest` of Debian's ucx-utils.

use super::experiments::{Experiment, STOCK};
use super::launch::{self, Bench};
use super::measured::Value;
use crate::error::{Result, fail, failure};
use crate::paths;

/// The port of its own connection; nobody else is in an emulated node.
const PORT: &str = "13337";
/// It calls 2^20 bytes a megabyte.
const MEGABYTE: f64 = 1.048_576;

/// Measures what the p2p arguments (mode and sizes) ask for.
pub fn measure(bench: &Bench, experiment: &Experiment, arguments: &[&str]) -> Result<Vec<Value>> {
    if paths::find_program("ucx_perftest").is_none() {
        fail!("ucx_perftest is not installed (apt-get install ucx-utils)");
    }
    let [mode, sizes] = arguments else { fail!("mode and sizes are expected") };
    let latency = *mode == "latency";
    let test = if latency { "tag_lat" } else { "tag_bw" };
    let transports = match experiment.shape {
        (1, _) => ["UCX_TLS=posix,sysv,cma,self", "UCX_NET_DEVICES=all"],
        _ => ["UCX_TLS=tcp,self", "UCX_NET_DEVICES=eth0"],
    };
    let mut values = Vec::new();
    for size in sizes.split(',') {
        let rounds = if latency { "20000" } else { "2000" };
        let mut words = vec![launch::script("ucx.sh"), "n0".into(), PORT.into()];
        words.extend([test, size, rounds].map(String::from));
        let text = bench.job(experiment.shape, &STOCK, &words, &bench.scratch, &transports)?;
        let value = understand(&text, latency)
            .ok_or_else(|| failure!("ucx_perftest has printed no result:\n{text}"))?;
        let size = size.parse().map_err(|e| failure!("size {size}: {e}"))?;
        values.push(Value { metric: mode.to_string(), size, value });
    }
    Ok(values)
}

/// The overall latency (microseconds) or bandwidth (10^6 bytes a second) in its last line:
/// iterations, latency (median, average, overall), bandwidth (average, overall), rate (the same).
fn understand(text: &str, latency: bool) -> Option<f64> {
    let numbers = |line: &str| -> Option<Vec<f64>> {
        line.split(',').map(|word| word.trim().parse().ok()).collect()
    };
    let last = text.lines().rev().find_map(|line| numbers(line).filter(|n| n.len() == 8))?;
    Some(if latency { last[3] } else { last[5] * MEGABYTE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_numbers_is_the_result() {
        let text = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,\
                    avg_mr,overall_mr\n2000,0.486,40.819,40.5,100,200,24499,24499\n";
        assert_eq!(understand(text, true), Some(40.5));
        assert_eq!(understand(text, false), Some(200.0 * MEGABYTE));
        assert_eq!(understand("Waiting for connection...\n", true), None);
    }
}
