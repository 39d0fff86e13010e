//! Which crates may be used: sources and bans of deny.toml, here from Cargo.lock without a tool;
//! licences in tests/tidy. cargo-deny checks all of it once more, and advisories, where it is
//! installed; `--long` installs it.

use std::fs;
use std::process::Command;

use super::source::{patient, quiet};
use super::summary::Tier;
use crate::error::{Context, Failure, Result, fail};
use crate::{paths, run};

/// Where all crates come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Runs the tier.
pub fn run(tier: &mut Tier, installs: bool) {
    tier.check("crates: sources and bans of deny.toml", own_check);
    let mut is_there = run::output(Command::new("cargo").args(["deny", "--version"])).is_ok();
    if !is_there && installs {
        is_there = tier.check("cargo-deny: installed", || {
            quiet(patient(&["install", "--locked", "--quiet", "cargo-deny"]))
        });
    }
    if !is_there {
        tier.skip(
            "cargo-deny: `cargo install --locked cargo-deny` has not been done (--long does)",
        );
        return;
    }
    tier.check("cargo-deny: licences, bans, sources", || {
        quiet(patient(&["deny", "check", "licenses", "bans", "sources"]))
    });
    let mut advisories = Command::new("cargo");
    advisories.current_dir(paths::root()).args(["deny", "check", "advisories"]);
    let checked = run::output(&mut advisories);
    match checked {
        Err(Failure(reason)) if reason.contains("failed to fetch advisory database") => {
            tier.skip("cargo-deny: advisories: their database cannot be had here");
        }
        checked => {
            tier.check("cargo-deny: advisories", || checked.map(drop));
        }
    }
}

fn own_check() -> Result<()> {
    let read = |name: &str| {
        let file = paths::root().join(name);
        fs::read_to_string(&file).context(|| file.display().to_string())
    };
    let (lock, rules) = (read("Cargo.lock")?, read("deny.toml")?);
    let banned = banned(&rules);
    if banned.is_empty() {
        fail!("deny.toml bans nothing: has its form changed?");
    }
    let wrong = wrong(&lock, &banned);
    if wrong.is_empty() { Ok(()) } else { fail!("{}", wrong.join("\n")) }
}

/// Crates of lines such as `{ crate = "tokio", reason = "…" }`.
fn banned(rules: &str) -> Vec<&str> {
    let starts = rules.lines().filter_map(|line| line.trim().split_once("crate = \""));
    starts.filter_map(|(_, rest)| rest.split('"').next()).collect()
}

/// Crates that are banned or come from elsewhere.
fn wrong(lock: &str, banned: &[&str]) -> Vec<String> {
    let mut wrong = Vec::new();
    for package in lock.split("[[package]]").skip(1) {
        let field = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key))?;
            line.strip_prefix(" = ").map(|value| value.trim_matches('"'))
        };
        let name = field("name").unwrap_or_default();
        if banned.contains(&name) {
            wrong.push(format!("{name} is banned by deny.toml"));
        }
        if let Some(source) = field("source").filter(|source| *source != REGISTRY) {
            wrong.push(format!("{name} comes from {source}"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bans_are_read_and_found() {
        let rules = "deny = [\n    { crate = \"tokio\", reason = \"none\" },\n]\n";
        assert_eq!(banned(rules), ["tokio"]);
        let lock = format!(
            "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1\"\n\n\
             [[package]]\nname = \"tokio\"\nversion = \"1\"\nsource = \"{REGISTRY}\"\n\n\
             [[package]]\nname = \"b\"\nsource = \"git+https://example.org/b\"\n"
        );
        let found = wrong(&lock, &["tokio"]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("tokio is banned"), "{found:?}");
        assert!(found[1].starts_with("b comes from git"), "{found:?}");
    }
}
