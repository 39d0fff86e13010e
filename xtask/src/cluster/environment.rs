//! The user's environment without what `cargo run` puts into it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

type Variable = (OsString, OsString);

/// Drops cargo's own variables and the library folders that cargo puts in front.
pub fn of_user(all: impl Iterator<Item = Variable>) -> Vec<Variable> {
    let all: Vec<Variable> = all.collect();
    let value = |name: &str| all.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    if value("CARGO_MANIFEST_DIR").is_none() {
        return all; // not started by cargo
    }
    let mut cargos = Vec::new();
    if let Some(cargo) = value("CARGO") {
        cargos.extend(Path::new(&cargo).ancestors().nth(2).map(PathBuf::from));
    }
    if let Ok(exe) = env::current_exe() {
        cargos.extend(exe.parent().map(PathBuf::from));
    }
    all.into_iter()
        .filter(|(name, _)| !is_cargos(name))
        .filter_map(|(name, value)| {
            if name != "LD_LIBRARY_PATH" {
                return Some((name, value));
            }
            let users = without(&value, &cargos);
            (!users.is_empty()).then_some((name, users))
        })
        .collect()
}

fn is_cargos(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("CARGO_PKG_")
        || matches!(
            &*name,
            "CARGO" | "CARGO_MANIFEST_DIR" | "CARGO_MANIFEST_PATH" | "RUST_RECURSION_COUNT"
        )
}

fn without(list: &OsStr, folders: &[PathBuf]) -> OsString {
    let kept = env::split_paths(list).filter(|p| !folders.iter().any(|f| p.starts_with(f)));
    env::join_paths(kept).expect("parts of a list that was split")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let all = pairs.iter().map(|(n, v)| (OsString::from(n), OsString::from(v)));
        let text = |s: OsString| s.into_string().unwrap();
        of_user(all).into_iter().map(|(n, v)| (text(n), text(v))).collect()
    }

    #[test]
    fn what_cargo_adds_goes_and_the_rest_stays() {
        let kept = run(&[
            ("CARGO", "/r/toolchains/x/bin/cargo"),
            ("CARGO_MANIFEST_DIR", "/w/xtask"),
            ("CARGO_HOME", "/root/.cargo"),
            ("LD_LIBRARY_PATH", "/r/toolchains/x/lib:/opt/mine"),
        ]);
        let text = |n: &str, v: &str| (n.to_string(), v.to_string());
        assert_eq!(
            kept,
            [text("CARGO_HOME", "/root/.cargo"), text("LD_LIBRARY_PATH", "/opt/mine")]
        );
    }

    #[test]
    fn without_cargo_nothing_is_touched() {
        assert_eq!(run(&[("CARGO", "x")]), [("CARGO".to_string(), "x".to_string())]);
    }
}
