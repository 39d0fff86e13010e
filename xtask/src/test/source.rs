//! The tiers that need no MPI: style, lints, unit tests, models, documentation.

use std::path::Path;
use std::process::Command;

use super::summary::Tier;
use crate::error::{Context, Failure, Result, fail};
use crate::{paths, run};

/// Style, lints, documentation. Jobs do not wait for it: it takes what they leave of the
/// processors.
pub fn run(tier: &mut Tier) {
    tier.check("format", || quiet(cargo(&["fmt", "--all", "--check"])));
    tier.check("lints", || {
        quiet(patient(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
    });
    tier.check("documentation", || {
        let mut doc = patient(&["doc", "--workspace", "--no-deps"]);
        doc.env("RUSTDOCFLAGS", "-D warnings");
        quiet(doc)
    });
    if !has_aarch64() {
        tier.skip(&format!("cores for aarch64: `rustup target add {AARCH64}` has not been done"));
        return;
    }
    tier.check("cores for aarch64", || {
        let packages = CORES.iter().flat_map(|core| ["--package", core]);
        let mut check = patient(&["check", "--target", AARCH64]);
        check.args(packages);
        quiet(check)
    });
}

/// Unit tests, models, simulation.
pub fn tests(tier: &mut Tier) {
    // Behind the jobs, but not far: some of these tests run coordinators and agents that have
    // limits of time of their own.
    let words = ["test", "--workspace", "--no-fail-fast"];
    tier.count("workspace", || counted(nice_cargo(5, &words)));
    tier.count("shared-memory ring, all interleavings (loom)", || {
        let mut loom = patient(&["test", "--package", "rustbtl-ring", "--release", "--lib"]);
        loom.env("RUSTFLAGS", "--cfg loom");
        loom.args(["--config", "profile.release.lto=\"off\""]); // compiles faster, runs as fast
        // A folder of its own: other flags would throw away what the workspace has built.
        loom.arg("--target-dir").arg(paths::target().join("loom"));
        counted(loom)
    });
}

/// The other machine that Open MPI runs on.
const AARCH64: &str = "aarch64-unknown-linux-gnu";
/// What is not of one machine. Images of processes are: checkpoint/process and what needs it.
const CORES: [&str; 5] = [
    "rustbtl-fragments",
    "rustbtl-ring",
    "rustbtl-rma",
    "rustbtl-coordination",
    "rustbtl-checkpoint",
];

/// Is the standard library for it there?
fn has_aarch64() -> bool {
    let mut rustc = Command::new("rustc");
    rustc.current_dir(paths::root()).args(["--print", "target-libdir", "--target", AARCH64]);
    run::output(&mut rustc).is_ok_and(|folder| Path::new(folder.trim()).is_dir())
}

fn cargo(words: &[&str]) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(paths::root()).args(words);
    cargo
}

/// A cargo that takes only what is left of the processors: nobody waits for it.
pub fn patient(words: &[&str]) -> Command {
    nice_cargo(10, words)
}

fn nice_cargo(by: u8, words: &[&str]) -> Command {
    let mut nice = Command::new("nice");
    nice.current_dir(paths::root()).args(["-n", &by.to_string(), "cargo"]).args(words);
    nice
}

/// Runs the command; what it has written is the reason if it fails.
pub fn quiet(mut command: Command) -> Result<()> {
    everything(&mut command).map(drop)
}

/// Stdout and stderr of the command; both are the reason if it fails.
pub fn everything(command: &mut Command) -> Result<String> {
    let line = run::line(command);
    let output = command.output().context(|| format!("starting `{line}`"))?;
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    text += &String::from_utf8_lossy(&output.stdout);
    if output.status.success() { Ok(text) } else { Err(Failure(format!("{line}\n{text}"))) }
}

/// Runs `cargo test` and counts; a failure begins with the tests that failed and why.
pub fn counted(mut command: Command) -> Result<(usize, String)> {
    let text = everything(&mut command)
        .map_err(|Failure(text)| Failure(failed_tests(&text).unwrap_or(text)))?;
    let passed = text.lines().filter_map(passed_in).sum();
    if passed == 0 {
        fail!("cargo ran no test at all");
    }
    Ok((passed, format!(": {passed} tests")))
}

/// Their names, then what each of them and each broken run wrote; nothing of what passed, of
/// which there is so much that a reader who is shown a part would see only that. `None` if no
/// test failed: then something did not compile.
fn failed_tests(text: &str) -> Option<String> {
    let failed = |line: &&str| line.starts_with("test ") && line.ends_with("FAILED");
    let broken = |line: &&str| line.starts_with("error: ");
    let mut shown: Vec<&str> = text.lines().filter(failed).collect();
    shown.extend(text.lines().filter(broken));
    if shown.is_empty() || text.lines().any(|line| line.starts_with("error: could not compile")) {
        return None;
    }
    let mut said = false;
    for line in text.lines() {
        said = match line {
            "failures:" => false, // the names again
            _ if line.starts_with("---- ") && line.ends_with(" stdout ----") => true,
            _ => said,
        };
        if said && !line.is_empty() {
            shown.push(line);
        }
    }
    Some(shown.join("\n"))
}

/// The number in a line such as `test result: ok. 25 passed; 0 failed; …`.
fn passed_in(line: &str) -> Option<usize> {
    let rest = line.strip_prefix("test result: ok. ")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_cargo_test_are_counted() {
        assert_eq!(passed_in("test result: ok. 25 passed; 0 failed; 0 ignored"), Some(25));
        assert_eq!(passed_in("test result: FAILED. 25 passed; 1 failed"), None);
    }

    #[test]
    fn a_failed_test_is_shown_first_and_what_passed_is_left_out() {
        let text = "   Compiling a v1.0.0\nerror: 1 target failed:\ntest good ... ok\n\
                    test bad ... FAILED\n\nfailures:\n\n---- bad stdout ----\n\nit broke\n\
                    \n\nfailures:\n    bad\n\ntest result: FAILED. 1 passed; 1 failed";
        let said = "test bad ... FAILED\nerror: 1 target failed:\n---- bad stdout ----\nit broke";
        assert_eq!(failed_tests(text).as_deref(), Some(said));
        assert_eq!(failed_tests("   Compiling a v1.0.0\nerror: could not compile `a`"), None);
    }
}
