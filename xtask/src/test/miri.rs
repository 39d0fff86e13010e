//! The crates with unsafe code that Miri can run: the ring in shared memory and the payload log.
//! What maps files, asks the kernel or counts allocations is beyond it.

use std::process::Command;

use super::source::{counted, patient};
use super::summary::Tier;
use crate::{paths, run};

/// Package, and which of its unit tests.
const TESTS: [(&str, &[&str]); 2] = [("rustbtl-ring", &[]), ("rustbtl-fragments", &["log"])];

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
    for (package, names) in TESTS {
        tier.count(&format!("Miri: {package}"), || {
            let mut miri = patient(&["+nightly", "miri", "test", "--package", package, "--lib"]);
            // Properties are tried less often: Miri takes some hundred times as long.
            miri.env("PROPTEST_CASES", "4").env("MIRIFLAGS", FLAGS);
            miri.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
            miri.arg("--target-dir").arg(paths::target().join("miri"));
            counted({
                miri.arg("--").args(names);
                miri
            })
        });
    }
}

/// Is there a nightly toolchain with Miri?
fn is_there() -> bool {
    let mut version = Command::new("cargo");
    version.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    version.args(["+nightly", "miri", "--version"]);
    let mut source = Command::new("rustc");
    source.args(["+nightly", "--print", "sysroot"]);
    let has_source = run::output(&mut source).is_ok_and(|root| {
        std::path::Path::new(root.trim()).join("lib/rustlib/src/rust/library").is_dir()
    });
    has_source && run::output(&mut version).is_ok()
}
