//! The house style as functions that list what breaks it. The tests of this crate apply them to
//! the repository; each function is also tried on something planted that it has to find.
#![forbid(unsafe_code)]

pub mod layers;
pub mod ledger;
pub mod licence;
pub mod rooms;
pub mod sources;
pub mod walkthroughs;
pub mod words;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders whose crates are sans-IO cores.
pub const CORES: [&str; 6] =
    ["fragments", "fragments/collectives", "fragments/rma", "checkpoint", "coordination", "shadow"];

/// Folders of the product. One that holds no sources yet is passed over.
pub const PRODUCT: [&str; 12] = [
    "fragments",
    "fragments/collectives",
    "fragments/ring",
    "fragments/rma",
    "checkpoint",
    "coordination",
    "component",
    "runtime",
    "shadow",
    "shadow/library",
    "glue-c",
    "xtask",
];

/// Top of the repository.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// What `cargo metadata` says of the workspace and all that it builds from on Linux.
///
/// # Panics
/// If cargo cannot be run or fails; the message holds what it wrote.
pub fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments =
        ["metadata", "--format-version", "1", "--filter-platform", "x86_64-unknown-linux-gnu"];
    let output = Command::new(cargo).args(arguments).current_dir(root()).output();
    let output = output.expect("cargo metadata starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata failed: {errors}");
    serde_json::from_slice(&output.stdout).expect("cargo metadata writes JSON")
}

/// Stop a test with everything that was found, and what to do about it.
///
/// # Panics
/// If anything was found.
pub fn nothing_found(found: &[String], what_to_do: &str) {
    assert!(found.is_empty(), "{what_to_do}:\n  {}", found.join("\n  "));
}
