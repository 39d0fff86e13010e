//! The law of layers: which crate may build on which.
//!
//! ```text
//! ring     fragments <- checkpoint <- checkpoint/process, fragments <- coordination
//!    \     fragments <- fragments/rma, fragments/collectives (alone)  /
//!     \_______|______________/____________/________________________/
//!         component, runtime            tests/*            xtask (alone)
//!     shadow (alone) <- shadow/library, component
//! ```

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Crates of the workspace and all that they may depend on ("*": any crate that is not ours).
const ALLOWED: &[(&str, &[&str])] = &[
    ("rustbtl-ring", &["loom"]),
    ("rustbtl-fragments", &["slab", "static_assertions", "memoffset"]),
    ("rustbtl-rma", &["rustbtl-fragments"]),
    ("rustbtl-collectives", &[]),
    ("rustbtl-checkpoint", &["rustbtl-fragments", "crc32fast", "lz4_flex", "static_assertions"]),
    (
        "rustbtl-process",
        &["rustbtl-checkpoint", "cc", "libc", "rustix", "thiserror", "twox-hash", "zstd"],
    ),
    (
        "rustbtl-coordination",
        &["rustbtl-fragments", "hkdf", "hmac", "ring", "sha2", "static_assertions", "x25519-dalek"],
    ),
    (
        "rustbtl-component",
        &[
            "rustbtl-ring",
            "rustbtl-fragments",
            "rustbtl-rma",
            "rustbtl-collectives",
            "rustbtl-checkpoint",
            "rustbtl-process",
            "rustbtl-coordination",
            "rustbtl-shadow",
            "hmac",
            "libc",
            "memoffset",
            "rdma-sys",
            "sha2",
            "slab",
            "static_assertions",
            "subtle",
            "thiserror",
            "ucx-sys",
        ],
    ),
    (
        "rustbtl-runtime",
        &[
            "rustbtl-ring",
            "rustbtl-fragments",
            "rustbtl-checkpoint",
            "rustbtl-process",
            "rustbtl-coordination",
            "*",
        ],
    ),
    ("rustbtl-shadow", &[]),
    ("rustbtl-verbs", &["rustbtl-shadow", "libc"]),
    (
        "rustbtl-conformance",
        &[
            "rustbtl-component",
            "rustbtl-coordination",
            "rustbtl-fragments",
            "rustbtl-process",
            "rustbtl-ring",
            "rustbtl-verbs",
            "*",
        ],
    ),
    (
        "rustbtl-sim",
        &[
            "rustbtl-fragments",
            "rustbtl-checkpoint",
            "rustbtl-coordination",
            "rustbtl-rma",
            "rustbtl-seeds",
            "*",
        ],
    ),
    ("rustbtl-seeds", &[]),
    ("rustbtl-tidy", &["*"]),
    ("xtask", &["*"]),
];

/// Crates that no I/O, clock or thread may come into, however indirectly.
const CORES: [&str; 6] = [
    "rustbtl-fragments",
    "rustbtl-collectives",
    "rustbtl-rma",
    "rustbtl-checkpoint",
    "rustbtl-coordination",
    "rustbtl-shadow",
];

/// What the tests of any crate may use: random numbers and seeds of simulations. It builds on
/// nothing of ours.
const FOR_TESTS: &str = "rustbtl-seeds";

/// Crates that talk to the operating system.
const OS: &[&str] = &[
    "getrandom",
    "libc",
    "mio",
    "nix",
    "rdma-sys",
    "rustix",
    "socket2",
    "tokio",
    "ucx-sys",
    "windows-sys",
];

/// Edges to them that a core does not go over. ring encrypts without asking anybody; its source of
/// random numbers, for which it has getrandom, is not used: cores are given theirs.
const UNUSED: &[(&str, &str)] = &[("ring", "getrandom")];

/// Edges between crates that are not in the table. Tests and benchmarks of a crate may use what
/// they like except other crates of ours from outside its list and, in a core, crates of the OS.
pub fn wrong_edges(metadata: &Value) -> Vec<String> {
    let allowed: BTreeMap<_, _> = ALLOWED.iter().copied().collect();
    let mut found = Vec::new();
    for package in list(metadata, "packages").iter().filter(|package| is_ours(package)) {
        let name = text(package, "name");
        let Some(list_of) = allowed.get(name) else {
            found.push(format!("{name}: not in the table of tests/tidy/src/layers.rs; add it"));
            continue;
        };
        for dependency in list(package, "dependencies") {
            let on = text(dependency, "name");
            let ours = allowed.contains_key(on) || on.starts_with("rustbtl-");
            let for_tests = text(dependency, "kind") == "dev";
            let os_in_core = CORES.contains(&name) && OS.contains(&on);
            let free =
                for_tests && on == FOR_TESTS || !ours && (for_tests || list_of.contains(&"*"));
            if os_in_core || !(free || list_of.contains(&on)) {
                let of = if for_tests { " of its tests" } else { "" };
                found.push(format!("{name} -> {on}{of}"));
            }
        }
    }
    found
}

/// Crates of the operating system that a core builds on through others.
pub fn os_below_cores(metadata: &Value) -> Vec<String> {
    let nodes = list(&metadata["resolve"], "nodes");
    let by_id: BTreeMap<_, _> = nodes.iter().map(|node| (text(node, "id"), node)).collect();
    let names: BTreeMap<_, _> = list(metadata, "packages")
        .iter()
        .map(|package| (text(package, "id"), text(package, "name")))
        .collect();
    let mut found = Vec::new();
    for (start, core) in names.iter().filter(|(_, name)| CORES.contains(name)) {
        let mut seen = BTreeSet::new();
        let mut todo = vec![(*start, (*core).to_owned())];
        while let Some((id, path)) = todo.pop() {
            let Some(node) = by_id.get(id).filter(|_| seen.insert(id)) else { continue };
            for edge in list(node, "deps").iter().filter(|edge| is_normal(edge)) {
                let id = text(edge, "pkg");
                let name = names.get(id).copied().unwrap_or(id);
                let path = format!("{path} -> {name}");
                let from = names.get(node["id"].as_str().unwrap_or_default()).copied();
                if UNUSED.contains(&(from.unwrap_or_default(), name)) {
                    continue;
                }
                if OS.contains(&name) {
                    found.push(path.clone());
                }
                todo.push((id, path));
            }
        }
    }
    found
}

/// Is the package of this workspace?
pub fn is_ours(package: &Value) -> bool {
    package["source"].is_null()
}

fn is_normal(edge: &Value) -> bool {
    let kinds = list(edge, "dep_kinds");
    kinds.iter().any(|kind| kind["kind"].is_null() && kind["target"].is_null())
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn planted(name: &str, on: &str, kind: Option<&str>) -> Vec<String> {
        wrong_edges(&json!({ "packages": [
            { "name": name, "source": null, "dependencies": [{ "name": on, "kind": kind }] },
        ] }))
    }

    #[test]
    fn wrong_edges_are_found() {
        let table: &[(&str, &str, Option<&str>)] = &[
            ("rustbtl-fragments", "rustbtl-checkpoint", None),
            ("rustbtl-fragments", "libc", None),
            ("rustbtl-fragments", "rustbtl-rma", None),
            ("rustbtl-rma", "libc", None),
            ("rustbtl-rma", "rustbtl-coordination", Some("dev")),
            ("rustbtl-fragments", "libc", Some("dev")),
            ("rustbtl-checkpoint", "rustbtl-component", Some("dev")),
            ("rustbtl-coordination", "bytes", None),
            ("rustbtl-ring", "libc", Some("build")),
            ("rustbtl-component", "tokio", None),
            ("xtask", "rustbtl-component", None),
            ("rustbtl-tidy", "rustbtl-fragments", None),
            ("rustbtl-component", "rustbtl-sim", Some("dev")),
            ("rustbtl-rma", "rustbtl-seeds", None),
            ("rustbtl-seeds", "rustbtl-rma", Some("dev")),
            ("rustbtl-news", "libc", None),
        ];
        for &(name, on, kind) in table {
            assert_eq!(planted(name, on, kind).len(), 1, "{name} -> {on} {kind:?}");
        }
    }

    #[test]
    fn right_edges_are_not() {
        let table: &[(&str, &str, Option<&str>)] = &[
            ("rustbtl-fragments", "slab", None),
            ("rustbtl-component", "rustbtl-rma", None),
            ("rustbtl-fragments", "proptest", Some("dev")),
            ("rustbtl-rma", "rustbtl-seeds", Some("dev")),
            ("rustbtl-ring", "libc", Some("dev")),
            ("rustbtl-component", "libc", None),
            ("xtask", "clap", None),
        ];
        for &(name, on, kind) in table {
            assert_eq!(planted(name, on, kind), Vec::<String>::new(), "{name} -> {on} {kind:?}");
        }
    }

    #[test]
    fn an_os_crate_is_found_through_others() {
        let edge = |to: &str, kind: Option<&str>| {
            let kinds = json!([{ "kind": kind, "target": null }]);
            json!({ "pkg": to, "dep_kinds": kinds })
        };
        let metadata = json!({
            "packages": [
                { "id": "f", "name": "rustbtl-fragments" },
                { "id": "s", "name": "slab" },
                { "id": "l", "name": "libc" },
                { "id": "p", "name": "proptest" },
            ],
            "resolve": { "nodes": [
                { "id": "f", "deps": [edge("s", None), edge("p", Some("dev"))] },
                { "id": "p", "deps": [edge("l", None)] },
                { "id": "s", "deps": [edge("l", None)] },
            ] },
        });
        assert_eq!(os_below_cores(&metadata), ["rustbtl-fragments -> slab -> libc"]);
    }
}
