//! The payload log's own benchmark (criterion), beside a memcpy of the same bytes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value as Json;

use super::measured::Value;
use crate::error::{Context, Result, failure};
use crate::{paths, run};

/// Criterion's names of the groups, the bytes of one iteration (messages of 1 MiB or so), and what
/// is measured.
const GROUPS: [(&str, f64, &[&str]); 2] = [
    ("1MiB", 64.0 * MIB, &["memcpy_fresh", "log_fresh", "memcpy_touched", "log_recycled"]),
    ("rounds", 384.0 * MIB, &["log_first_round", "log_later_round", "log_at_budget"]),
];
const MIB: f64 = 1_048_576.0;

fn cargo() -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(paths::root()).args(["bench", "--quiet", "--package"]);
    cargo.args(["rustbtl-checkpoint", "--bench", "log_append", "--target-dir"]);
    cargo.arg(paths::target()).env("CRITERION_HOME", results());
    // Memory that was freed is not kept by malloc, so that fresh pages are fresh.
    cargo.env("MALLOC_MMAP_THRESHOLD_", "65536");
    cargo
}

fn results() -> PathBuf {
    paths::target().join("bench/criterion")
}

/// Compiles it, so that the first run takes no longer than the others.
pub fn build() -> Result<()> {
    run::output(cargo().arg("--no-run")).map(drop)
}

/// Bandwidths in 10^6 bytes a second, by criterion's names.
pub fn measure(quick: bool) -> Result<Vec<Value>> {
    let seconds = if quick { "0.5" } else { "1" };
    let mut bench = cargo();
    bench.args(["--", "--noplot", "--warm-up-time", "0.2", "--measurement-time", seconds]);
    let groups = GROUPS.map(|(group, ..)| group).join("|");
    run::output(bench.arg(format!("^({groups})/")))?;
    let names = GROUPS
        .iter()
        .flat_map(|(group, bytes, names)| names.iter().map(move |name| read(group, *bytes, name)));
    names.collect()
}

fn read(group: &str, bytes: f64, name: &str) -> Result<Value> {
    let file = results().join(group).join(name).join("new/estimates.json");
    let text = fs::read_to_string(&file).context(|| file.display().to_string())?;
    let nanoseconds = median(&text).ok_or_else(|| failure!("no median in {}", file.display()))?;
    Ok(Value { metric: name.into(), size: 1 << 20, value: bytes / nanoseconds * 1e3 })
}

fn median(text: &str) -> Option<f64> {
    let json: Json = serde_json::from_str(text).ok()?;
    json["median"]["point_estimate"].as_f64().filter(|n| *n > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_found_in_what_criterion_writes() {
        let text = r#"{"mean":{"point_estimate":3.0},"median":{"point_estimate":2.5}}"#;
        assert_eq!(median(text), Some(2.5));
        assert_eq!(median("{}"), None);
    }
}
