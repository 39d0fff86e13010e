//! The fuzz targets, each for some time. libFuzzer finds its way by coverage; what rustc has to add
//! to the code for that is had with stable flags, so neither nightly nor cargo-fuzz is needed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::source::{everything, patient, quiet};
use super::summary::Tier;
use crate::error::{Context, Result, failure};
use crate::paths;

/// How long each target runs, in a normal run and before a release.
pub const SECONDS: u32 = 30;
pub const SECONDS_LONG: u32 = 300;

/// What `cargo fuzz` gives to rustc, but for sanitizers, which are unstable.
const FLAGS: &str = "--cfg fuzzing -Cdebug-assertions -Ccodegen-units=1 -Cpanic=abort \
     -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";
/// Named, so that build scripts are compiled without the flags.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Runs the tier.
pub fn run(tier: &mut Tier, seconds: u32) {
    if !tier.check("build of the fuzz targets", build) {
        return;
    }
    match targets() {
        Ok(targets) => {
            for target in targets {
                tier.count(&format!("fuzz: {target}, {seconds} s"), || fuzz(&target, seconds));
            }
        }
        Err(failure) => {
            tier.check("list of fuzz targets", || Err(failure));
        }
    }
}

fn folder() -> PathBuf {
    paths::target().join("fuzz")
}

fn build() -> Result<()> {
    let mut cargo = patient(&["build", "--release", "--target", TARGET]);
    cargo.arg("--manifest-path").arg(paths::root().join("tests/fuzz/Cargo.toml"));
    // A folder of its own: other flags would throw away what the workspace has built.
    cargo.arg("--target-dir").arg(folder()).env("RUSTFLAGS", FLAGS);
    quiet(cargo)
}

fn targets() -> Result<Vec<String>> {
    let sources = paths::root().join("tests/fuzz/fuzz_targets");
    let entries = fs::read_dir(&sources).context(|| sources.display().to_string())?;
    let names = entries.flatten().map(|entry| entry.path());
    let mut names: Vec<String> =
        names.filter_map(|file| Some(file.file_stem()?.to_string_lossy().into_owned())).collect();
    names.sort();
    Ok(names)
}

/// From what earlier runs have found on; inputs that break it stay in `target/fuzz`.
fn fuzz(target: &str, seconds: u32) -> Result<(usize, String)> {
    let corpus = folder().join("corpus").join(target);
    fs::create_dir_all(&corpus).context(|| corpus.display().to_string())?;
    let mut fuzz = Command::new("nice");
    fuzz.args(["-n", "10"]).arg(folder().join(TARGET).join("release").join(target));
    fuzz.arg(format!("-max_total_time={seconds}")).arg("-print_final_stats=1");
    fuzz.arg(format!("-artifact_prefix={}/{target}-", folder().display())).arg(&corpus);
    let text = everything(&mut fuzz)?;
    let runs = number(&text, "stat::number_of_executed_units:");
    let runs = runs.filter(|runs| *runs > 0);
    let runs = runs.ok_or_else(|| failure!("it has tried nothing:\n{text}"))?;
    Ok((1, format!(": {runs} inputs")))
}

/// The number behind a word.
fn number(text: &str, word: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_counted() {
        let text = "Done 9 runs\nstat::number_of_executed_units: 1234\nstat::peak_rss_mb: 30\n";
        assert_eq!(number(text, "stat::number_of_executed_units:"), Some(1234));
        assert_eq!(number("", "stat::number_of_executed_units:"), None);
    }
}
