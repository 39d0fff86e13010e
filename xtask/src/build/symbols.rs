//! Checks of a linked component: what it needs is there, what it shows is one symbol.
//!
//! Open MPI binds lazily: without this check a missing symbol ends a job at its first call.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use super::{Component, openmpi};
use crate::error::{Result, fail};
use crate::run;

/// Libraries that a component may ask for itself.
const NEEDED: [&str; 4] = ["libc.so", "libm.so", "libpthread.so", "ld-linux"];

/// Fails if Open MPI could not load the file or would fail later because of it.
pub fn check(file: &Path, component: &Component, offered: &HashSet<String>) -> Result<()> {
    let name = component.name;
    let undefined = symbols(file, "--undefined-only")?;
    let missing: Vec<&str> = undefined
        .lines()
        .filter(|line| !is_weak(line))
        .filter_map(openmpi::symbol_name)
        .filter(|symbol| !offered.contains(*symbol))
        .collect();
    if !missing.is_empty() {
        fail!(
            "{name}.so needs what no library of an MPI process exports: {}.\nA function of ours \
             without a body, or a macro of Open MPI whose header is not included?",
            missing.join(", ")
        );
    }
    let defined = symbols(file, "--defined-only")?;
    let mut shown: Vec<&str> = defined.lines().filter_map(openmpi::symbol_name).collect();
    shown.sort_unstable();
    let mut wanted = component.shown();
    wanted.sort_unstable();
    if shown != wanted {
        let wanted = wanted.join(", ");
        fail!("{name}.so should export {wanted} alone, but exports: {}", shown.join(", "));
    }
    check_needed(file, component)
}

fn symbols(file: &Path, which: &str) -> Result<String> {
    run::output(Command::new("nm").args(["-D", which]).arg(file))
}

/// A weak symbol may be missing: the code asks whether it is there.
fn is_weak(line: &str) -> bool {
    line.split_whitespace().rev().nth(1).is_some_and(|kind| kind == "w" || kind == "v")
}

fn check_needed(file: &Path, component: &Component) -> Result<()> {
    let (name, own) = (component.name, component.library);
    let text = run::output(Command::new("readelf").args(["-d", "-W"]).arg(file))?;
    for line in text.lines().filter(|line| line.contains("(NEEDED)")) {
        let library = line.split(['[', ']']).nth(1).unwrap_or_default();
        if !NEEDED.iter().chain([&own]).any(|allowed| library.starts_with(allowed)) {
            fail!("{name}.so is linked with {library}; only libc's parts and {own} are allowed");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weak_symbols_are_distinguished() {
        assert!(is_weak("                 w __gmon_start__"));
        assert!(!is_weak("                 U opal_progress"));
    }
}
