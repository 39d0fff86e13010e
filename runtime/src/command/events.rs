//! Lists of events (`events.jsonl`) as the commands read them: version 2, and version 1, whose
//! names and fields become those of version 2. Text lines that cannot be parsed are left out.

use serde_json::Value;

/// Names of version 1 and what they are now; others are the same.
const RENAMED: [(&str, &str); 26] = [
    ("asked", "checkpoint_requested"),
    ("line", "checkpoint_started"),
    ("complete", "checkpoint_completed"),
    ("aborted", "checkpoint_aborted"),
    ("fallen", "rank_failed"),
    ("back_to", "set_rollback"),
    ("all_back_to", "global_rollback"),
    ("back", "set_restarted"),
    ("caught_up", "replay_completed"),
    ("behind", "replay_pending"),
    ("bringing", "image_transfer"),
    ("placed", "rank_placed"),
    ("covered", "replication_ok"),
    ("uncovered", "replication_degraded"),
    ("keepers", "determinant_replicas"),
    ("again", "failover_started"),
    ("known", "failover_state_loaded"),
    ("whole", "failover_completed"),
    ("not_whole", "failover_incomplete"),
    ("let_go", "protection_disabled"),
    ("gone", "guardian_disconnected"),
    ("unhosted", "proxy_failed"),
    ("not_recording", "not_replayable"),
    ("nonsense", "protocol_error"),
    ("not_remembered", "state_persist_failed"),
    ("finish", "job_finished"),
];

/// The same of their fields.
const RENAMED_FIELDS: [(&str, &str); 5] = [
    ("line", "checkpoint"),
    ("lines", "checkpoints"),
    ("life", "failover"),
    ("going_back", "rolled_back"),
    ("covered", "replicated"),
];

/// All events of a list, in version 2.
pub fn read(text: &str) -> impl Iterator<Item = Value> + '_ {
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).map(in_version_2)
}

fn in_version_2(mut event: Value) -> Value {
    let Some(fields) = event.as_object_mut().filter(|fields| !fields.contains_key("v")) else {
        return event;
    };
    for (old, new) in RENAMED_FIELDS {
        if let Some(value) = fields.remove(old) {
            fields.insert(new.into(), value);
        }
    }
    let name = fields.get("event").and_then(Value::as_str);
    let new = RENAMED.iter().find(|(old, _)| Some(*old) == name);
    if let Some((_, new)) = new {
        fields.insert("event".into(), (*new).into());
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read_as_version_2() {
        let text = r#"
{"event":"back_to","set":1,"line":4,"unix_ms":1003}
nonsense
{"event":"rank","rank":1,"unix_ms":1050}
{"v":2,"event":"set_rollback","set":1,"checkpoint":4,"unix_ms":1061}
{"v":2,"event":"line","line":3}"#;
        let read: Vec<String> = read(text).map(|event| event.to_string()).collect();
        let wanted = [
            r#"{"checkpoint":4,"event":"set_rollback","set":1,"unix_ms":1003}"#,
            r#"{"event":"rank","rank":1,"unix_ms":1050}"#,
            r#"{"checkpoint":4,"event":"set_rollback","set":1,"unix_ms":1061,"v":2}"#,
            r#"{"event":"line","line":3,"v":2}"#,
        ];
        assert_eq!(read, wanted);
    }
}
