//! What Miri can run of the code where a wrong pointer would go unnoticed: the ring in shared
//! memory and the payload log. What maps files, asks the kernel or counts allocations is beyond it.

use std::path::Path;
use std::process::Command;

use super::source::{counted, patient};
use super::summary::Tier;
use crate::{paths, run};

/// What is run, and which tests of it.
const TESTS: [(&str, &[&str]); 2] = [
    ("shared-memory ring", &["--package", "rustbtl-ring", "--lib"]),
    ("payload log", &["--package", "rustbtl-checkpoint", "--test", "log_invariants"]),
];

/// Without weak memory: Miri itself breaks on the ring's (nightly of May 2026); loom has it.
const FLAGS: &str = "-Zmiri-disable-isolation -Zmiri-disable-weak-memory-emulation";

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    if !is_there() {
        tier.skip(
            "Miri: `rustup toolchain install nightly --component miri,rust-src` has not been done",
        );
        return;
    }
    for (name, words) in TESTS {
        tier.count(&format!("Miri: {name}"), || {
            let mut miri = patient(&["+nightly", "miri", "test"]);
            miri.args(words).arg("--target-dir").arg(paths::target().join("miri"));
            miri.env("MIRIFLAGS", FLAGS);
            without_toolchain(&mut miri);
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
