//! `rustbtl status`: the coordinator's document, as it is or as a table.

use crate::command::{ask, bytes, time};
use crate::jobs;
use rustbtl_coordination::control::{Reply, Request};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Prints the state of a job.
pub fn status(job: Option<&str>, json: bool) -> Result<(), String> {
    let (_, mut stream) = jobs::find(job)?;
    let Reply::Status { json: text } = ask(&mut stream, &Request::Status {}, false)? else {
        return Err("an answer to another question".into());
    };
    if json {
        println!("{text}");
        return Ok(());
    }
    let document: Value =
        serde_json::from_str(&text).map_err(|error| format!("the answer is no JSON: {error}"))?;
    print!("{}", table(&document));
    Ok(())
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value) -> String {
    value.as_u64().map_or("-".into(), |number| number.to_string())
}

/// All fields of an entry, in a text line.
fn words(entry: &Value) -> String {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let Some(fields) = entry.as_object() else { return word(entry) };
    let fields = fields.iter().filter(|(_, value)| !value.is_null());
    fields.map(|(key, value)| format!("{key} {}", word(value))).collect::<Vec<_>>().join(", ")
}

/// Where checkpoints are stored.
fn place(document: &Value) -> String {
    match (document["directory"].as_str(), document["copies"].as_u64()) {
        (Some(directory), _) => directory.to_owned(),
        (None, Some(copies)) => format!("folders of the nodes, replicas on {copies} other(s)"),
        (None, None) => "-".into(),
    }
}

/// Which nodes have which images of a checkpoint, ranks with the same nodes together.
fn held(checkpoint: &Value) -> String {
    let mut at: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in list(checkpoint, "held") {
        let names = |key: &str| -> Vec<&str> {
            list(entry, key).iter().filter_map(Value::as_str).collect()
        };
        let mut place = names("nodes").join(" ");
        if !names("on_the_way").is_empty() {
            place += &format!(" (on the way to {})", names("on_the_way").join(" "));
        }
        at.entry(place).or_default().push(number(&entry["rank"]));
    }
    let text = |(place, ranks): (String, Vec<String>)| {
        format!("      images of ranks {}: {place}\n", ranks.join(","))
    };
    at.into_iter().map(text).collect()
}

/// Sets whose failure would be a global rollback, and sets of which that was true before.
fn suspended(document: &Value) -> String {
    let mut out = String::new();
    for set in list(document, "sets") {
        let Some(ms) = set["logging_suspended_ms"].as_u64().filter(|ms| *ms > 0) else { continue };
        let (set_number, for_ms) = (number(&set["set"]), time(ms.saturating_mul(1_000_000)));
        let now = if set["logging_suspended"].as_bool() == Some(true) {
            "logging is suspended until its next checkpoint: if it fails, all are rolled back"
        } else {
            "it can be rolled back alone"
        };
        let _ = writeln!(out, "set {set_number}: {now} (suspended for {for_ms} in all)");
    }
    out
}

/// For people.
fn table(document: &Value) -> String {
    let mut out = String::new();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let _ = writeln!(
        out,
        "job {}: {} ranks on {} nodes, checkpoints in {}",
        text(&document["job"]),
        number(&document["size"]),
        list(document, "nodes").len(),
        place(document),
    );
    let secret = match document["secret"].as_str() {
        Some("munge") => "encrypted by munge",
        Some("file") => "under the key in your file",
        _ => "in clear, in Open MPI's launch message (vprotocol_correlated_secret)",
    };
    let _ = writeln!(out, "connections of protection are encrypted; their secret went {secret}");
    let protection = &document["protection"];
    if protection["disabled"].as_bool() == Some(true) {
        let _ = writeln!(out, "NOT PROTECTED: the coordinator could not reach some ranks for long");
    } else if let Some(missing) = protection["waits_for"].as_array() {
        let missing: Vec<String> = missing.iter().map(number).collect();
        let _ = writeln!(
            out,
            "NOT PROTECTED: the coordinator was started again and waits for rank {}",
            missing.join(", ")
        );
    }
    let _ = writeln!(
        out,
        "\n{:>5} {:<16} {:>7} {:>5} {:<12} {:>10} {:>10} {:>10}",
        "rank", "node", "pid", "set", "state", "log", "log, most", "budget"
    );
    for rank in list(document, "ranks") {
        let log = |key: &str| rank["log"][key].as_u64().map_or("-".into(), bytes);
        let _ = writeln!(
            out,
            "{:>5} {:<16} {:>7} {:>5} {:<12} {:>10} {:>10} {:>10}",
            number(&rank["rank"]),
            text(&rank["node"]),
            number(&rank["pid"]),
            number(&rank["set"]),
            text(&rank["state"]),
            log("bytes"),
            log("bytes_peak"),
            log("budget"),
        );
    }
    out += &suspended(document);
    for key in ["failures", "recoveries"] {
        if !list(document, key).is_empty() {
            let _ = writeln!(out, "\n{key}");
        }
        for entry in list(document, key) {
            let _ = writeln!(out, "  {}", words(entry));
        }
    }
    if list(document, "checkpoints").is_empty() {
        let _ = writeln!(out, "\nno checkpoints yet");
        return out;
    }
    let _ = writeln!(
        out,
        "\n{:>10} {:<7} {:<10} {:>12} {:>12} {:>12} {:>12} {:>12}",
        "checkpoint", "kind", "state", "on disk", "quiescence", "pause", "storing", "lost by it"
    );
    for checkpoint in list(document, "checkpoints") {
        let ns = |key: &str| checkpoint[key].as_u64().map_or("-".into(), time);
        let _ = writeln!(
            out,
            "{:>10} {:<7} {:<10} {:>12} {:>12} {:>12} {:>12} {:>12}",
            number(&checkpoint["checkpoint"]),
            text(&checkpoint["kind"]),
            text(&checkpoint["state"]),
            bytes(checkpoint["bytes"].as_u64().unwrap_or(0)),
            ns("coordination_ns"),
            ns("pause_ns"),
            ns("store_ns"),
            ns("lost_ns"),
        );
        out += &held(checkpoint);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_document_with_holes_is_shown_as_far_as_it_goes() {
        let document = json!({
            "job": "n0-1", "size": 2, "nodes": [{}], "directory": null,
            "ranks": [
                {"rank": 0, "node": "n0", "set": null, "state": "starting", "log": null},
                {"rank": 1, "log": {"bytes": 0, "bytes_peak": 0, "budget": 3 << 29}},
            ],
            "checkpoints": [
                {"checkpoint": 1, "kind": "global", "bytes": 2048, "pause_ns": 2_000_000},
            ],
        });
        let text = table(&document);
        assert!(text.contains("job n0-1: 2 ranks on 1 nodes"), "{text}");
        assert!(text.contains("2.0 KiB") && text.contains("2.0 ms"), "{text}");
        assert!(text.contains("budget") && text.contains("1.5 GiB"), "{text}");
        assert!(table(&json!({})).contains("no checkpoints yet"));
        assert!(!text.contains("failures"), "{text}");
        assert!(!text.contains("NOT PROTECTED"), "{text}");
        let text = table(&json!({"protection": {"waits_for": [1, 4]}}));
        assert!(text.contains("waits for rank 1, 4\n"), "{text}");
        let text = table(&json!({"protection": {"disabled": true, "waits_for": [1]}}));
        assert!(text.contains("could not reach some ranks"), "{text}");
        assert!(!text.contains("waits for"), "{text}");
    }

    #[test]
    fn it_is_shown_which_sets_would_take_all_others_with_them() {
        let text = table(&json!({"sets": [
            {"set": 0, "logging_suspended": false, "logging_suspended_ms": 0},
            {"set": 1, "logging_suspended": true, "logging_suspended_ms": 2000},
            {"set": 2, "logging_suspended": false, "logging_suspended_ms": 1000},
        ]}));
        assert!(!text.contains("set 0:"), "{text}");
        assert!(text.contains("set 1: logging is suspended until its next checkpoint"), "{text}");
        assert!(
            text.contains("set 2: it can be rolled back alone (suspended for 1.00 s"),
            "{text}"
        );
    }

    #[test]
    fn it_is_shown_which_nodes_have_images() {
        let held = |rank: u32, nodes: &[&str], on_the_way: &[&str]| {
            let rank = json!(rank);
            json!({"rank": rank, "nodes": nodes, "on_the_way": on_the_way})
        };
        let text = table(&json!({
            "directory": null, "copies": 1,
            "checkpoints": [{"checkpoint": 1, "held": [
                held(0, &["n0", "n1"], &[]),
                held(1, &["n0", "n1"], &[]),
                held(2, &["n1"], &["n2"]),
            ]}],
        }));
        assert!(text.contains("folders of the nodes, replicas on 1 other"), "{text}");
        assert!(text.contains("images of ranks 0,1: n0 n1\n"), "{text}");
        assert!(text.contains("images of ranks 2: n1 (on the way to n2)\n"), "{text}");
    }

    #[test]
    fn failures_and_recoveries_are_shown_if_there_were_any() {
        let text = table(&json!({
            "failures": [{"node": "n1", "ranks": [2, 3], "set": null}],
            "recoveries": ["set 1 on n2"],
        }));
        assert!(text.contains("failures\n  node n1, ranks [2,3]\n"), "{text}");
        assert!(text.contains("recoveries\n  set 1 on n2\n"), "{text}");
    }
}
