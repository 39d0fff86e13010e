//! How long recoveries took, and with what: from a job's list of events.
//!
//! | column | from | to |
//! |---|---|---|
//! | decide | the loss is reported to the coordinator | the set is ordered to roll back |
//! | restore | – | the last of its ranks has connected to the coordinator |
//! | connect | – | what others have received of it is known, and all channels to it are repaired |
//! | replay | – | it has replayed what others have received of its lost execution |
//!
//! Events do not show the time between a failure and its report to the coordinator: `cargo xtask
//! cluster` prints when it has killed a process.

use super::events;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// One rollback of a set.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Recovery {
    set: u64,
    incarnation: u64,
    checkpoint: u64,
    ranks: BTreeSet<u64>,
    detected: u64,
    ordered: u64,
    restored: Option<u64>,
    connected: Option<u64>,
    replayed: Option<u64>,
}

/// In the order in which they began. Text lines that cannot be parsed are left out.
fn read(events: &str) -> Vec<Recovery> {
    let mut all: Vec<Recovery> = Vec::new();
    // The last loss of each rank that no rollback has followed yet.
    let mut detected: BTreeMap<u64, u64> = BTreeMap::new();
    for event in events::read(events) {
        let Some(now) = event["unix_ms"].as_u64() else { continue };
        let number = |key: &str| event[key].as_u64();
        let ranks = || -> BTreeSet<u64> {
            event["ranks"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
        };
        let open = number("set").and_then(|set| all.iter().rposition(|of| of.set == set));
        match event["event"].as_str() {
            Some("rank_failed") => detected.extend(number("rank").map(|rank| (rank, now))),
            Some("node_lost" | "guardian_lost") => {
                detected.extend(ranks().into_iter().map(|rank| (rank, now)));
            }
            Some("set_rollback") => {
                let ranks = ranks();
                let first = ranks.iter().filter_map(|rank| detected.remove(rank)).min();
                all.push(Recovery {
                    set: number("set").unwrap_or_default(),
                    incarnation: number("incarnation").unwrap_or_default(),
                    checkpoint: number("checkpoint").unwrap_or_default(),
                    ranks,
                    detected: first.unwrap_or(now),
                    ordered: now,
                    ..Recovery::default()
                });
            }
            Some("rank") => {
                let Some(rank) = number("rank") else { continue };
                let of = all.iter_mut().rfind(|of| of.ranks.contains(&rank));
                if let Some(of) = of.filter(|of| of.connected.is_none()) {
                    of.restored = Some(now);
                }
            }
            Some("set_restarted") => {
                if let Some(at) = open {
                    all[at].connected = Some(now);
                }
            }
            Some("replay_completed") => {
                if let Some(at) = open {
                    all[at].replayed = Some(now);
                }
            }
            _ => {}
        }
    }
    all
}

/// A table in milliseconds; empty if no set was rolled back.
pub fn table(events: &str) -> String {
    let all = read(events);
    let mut text = String::new();
    if all.is_empty() {
        return text;
    }
    text.push_str(
        "    set incarnation checkpoint   ranks  decide restore connect  replay   all (ms)\n",
    );
    for of in all {
        let step = |from: Option<u64>, to: Option<u64>| match (from, to) {
            (Some(from), Some(to)) => to.saturating_sub(from).to_string(),
            _ => "-".to_owned(),
        };
        let ordered = Some(of.ordered);
        let _ = writeln!(
            text,
            "{:>7} {:>11} {:>10} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7}",
            of.set,
            of.incarnation,
            of.checkpoint,
            of.ranks.len(),
            step(Some(of.detected), ordered),
            step(ordered, of.restored),
            step(of.restored, of.connected),
            step(of.connected, of.replayed),
            step(Some(of.detected), of.replayed),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_of_a_recovery_has_its_time_and_a_second_rollback_has_a_row_of_its_own() {
        let events = r#"
{"event":"rank","rank":1,"unix_ms":900}
{"event":"node_lost","node":"n1","ranks":[1,2],"unix_ms":1000}
{"event":"back_to","set":1,"line":4,"incarnation":1,"ranks":[1,2],"unix_ms":1003}
nonsense
{"event":"rank","rank":1,"unix_ms":1050}
{"event":"fallen","rank":1,"unix_ms":1060}
{"event":"back_to","set":1,"line":4,"incarnation":2,"ranks":[1,2],"unix_ms":1061}
{"event":"rank","rank":2,"unix_ms":1070}
{"event":"rank","rank":1,"unix_ms":1081}
{"event":"back","set":1,"unix_ms":1100}
{"event":"rank","rank":1,"unix_ms":1105}
{"event":"caught_up","set":1,"unix_ms":1300}
{"event":"caught_up","set":9,"unix_ms":1301}"#;
        let rows: Vec<String> = table(events)
            .lines()
            .skip(1)
            .map(|row| row.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(rows, ["1 1 4 2 3 47 - - -", "1 2 4 2 1 20 19 200 240"]);
        assert_eq!(table("{\"event\":\"ready\",\"unix_ms\":1}"), "");
    }
}
