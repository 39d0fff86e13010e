//! What Miri can run of the code where a wrong pointer would go unnoticed: the ring in shared
//! memory. The payload log has no unsafe code of its own, and takes Miri very long: only `--long`
//! runs it, and the ring's long properties. What maps files or asks the kernel is beyond Miri.

use std::path::Path;
use std::process::Command;

use super::source::{counted, patient};
use super::summary::Tier;
use crate::{paths, run};

/// What is run, and which of its tests in a normal run: those that take less than a minute.
const TESTS: [(&str, &[&str], &[&str]); 2] = [
    (
        "shared-memory ring",
        &["--package", "rustbtl-ring", "--lib"],
        &[
            "consume_without_peek_does_nothing",
            "frames_of_every_length_arrive",
            "two_threads_agree",
            "whatever_is_in_the_memory_nothing_outside_is_read",
        ],
    ),
    ("payload log", &["--package", "rustbtl-checkpoint", "--test", "log_invariants"], &[]),
];

/// Without weak memory: Miri itself breaks on the ring's (nightly of May 2026); loom has it.
const FLAGS: &str = "-Zmiri-disable-isolation -Zmiri-disable-weak-memory-emulation";

/// Runs the tier.
pub fn run(tier: &mut Tier, all: bool) {
    if !is_there() {
        tier.skip(
            "Miri: `rustup toolchain install nightly --component miri,rust-src` has not been done",
        );
        return;
    }
    for (name, words, quick) in TESTS {
        if !all && quick.is_empty() {
            tier.skip(&format!("Miri: {name}: takes too long for a normal run (--long has it)"));
            continue;
        }
        tier.count(&format!("Miri: {name}"), || {
            let mut miri = patient(&["+nightly", "miri", "test"]);
            miri.args(words).arg("--target-dir").arg(paths::target().join("miri"));
            miri.env("MIRIFLAGS", FLAGS);
            without_toolchain(&mut miri);
            if !all {
                miri.arg("--").args(quick);
            }
            counted(miri)
        });
    }
}

/// The cargo that runs xtask has chosen one for its children.
fn without_toolchain(command: &mut Command) -> &mut Command {
    command.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN")
}

/// Is there a nightly toolchain with Miri, and with the standard library's source for it?
fn is_there() -> bool {
    let mut version = Command::new("cargo");
    version.args(["+nightly", "miri", "--version"]);
    let mut sysroot = Command::new("rustc");
    sysroot.args(["+nightly", "--print", "sysroot"]);
    let has_source = |root: String| {
        Path::new(root.trim()).join("lib/rustlib/src/rust/library/Cargo.lock").is_file()
    };
    run::output(without_toolchain(&mut version)).is_ok()
        && run::output(without_toolchain(&mut sysroot)).is_ok_and(has_source)
}
