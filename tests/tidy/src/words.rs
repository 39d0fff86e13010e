//! The field's words (docs/glossary.md): home-made ones that must not come back, in what users
//! read, in events, and in identifiers.

/// Words and phrases that documents and help texts may not use, and what to write.
const IN_DOCUMENTS: &[(&str, &str)] = &[
    ("go back", "roll back"),
    ("goes back", "is rolled back"),
    ("going back", "rollback"),
    ("went back", "was rolled back"),
    ("gone back", "rolled back"),
    ("picture of", "snapshot, or image"),
    ("reborn", "restarted"),
    ("stands still", "is suspended, or frozen"),
    ("stood still", "was suspended"),
    ("caught up", "replay complete"),
    ("catches up", "replays"),
    ("past us", "bypasses rustbtl"),
    ("keeper", "replica"),
    ("parcel", "batch"),
    ("shelf", "replica server"),
    ("shipper", "determinant log"),
    ("stand-in", "proxy"),
    ("out of reach", "unreachable"),
    ("take along", "piggyback"),
    ("takes along", "piggybacks"),
    ("global line", "global checkpoint"),
    ("set line", "set checkpoint"),
    ("a stranger", "unauthenticated peer"),
];

/// Places where one of them is right: path, phrase, reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("docs/glossary.md", "", "the table of old words"),
    ("CHANGELOG.md", "", "names what was renamed"),
];

/// Names that types had. They may not come back.
const IDENTIFIERS: &[(&str, &str)] = &[
    ("LineId", "CheckpointId"),
    ("LineKind", "CheckpointKind"),
    ("LineFrame", "CheckpointFrame"),
    ("LineState", "CheckpointState"),
    ("Surroundings", "EngineHost"),
    ("CaughtUp", "ReplayComplete"),
    ("Reborn", "Restarted"),
    ("ShipAgain", "ResendDeterminants"),
    ("StandIn", "Proxy"),
    ("Storer", "ManifestWriter"),
    ("Shipper", "DeterminantLog"),
    ("Hinders", "ReplayBlocker"),
    ("NotRecording", "NotReplayable"),
    ("TellStatus", "ReportStatus"),
    ("RUSTBTL_HOLD", "RUSTBTL_FAILPOINTS"),
];

/// Names of events before version 2.
const EVENTS: &[&str] = &[
    "asked",
    "line",
    "complete",
    "aborted",
    "fallen",
    "back_to",
    "all_back_to",
    "back",
    "caught_up",
    "behind",
    "bringing",
    "placed",
    "covered",
    "uncovered",
    "keepers",
    "again",
    "known",
    "whole",
    "not_whole",
    "let_go",
    "gone",
    "unhosted",
    "not_recording",
    "nonsense",
    "not_remembered",
    "finish",
];

/// Home-made words in a text that users read: line, word, what to write.
pub fn in_document(path: &str, text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let excepted = |phrase: &str| {
        EXCEPTIONS.iter().any(|(file, of, _)| *file == path && (of.is_empty() || *of == phrase))
    };
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let line = line.to_lowercase();
        let here = IN_DOCUMENTS.iter().filter(|(word, _)| holds(&line, word) && !excepted(word));
        found.extend(here.map(|&(word, instead)| (number, word, instead)));
    }
    found
}

/// Identifiers of old in a source: line, name, what it is now.
pub fn in_source(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let here = IDENTIFIERS.iter().filter(|(name, _)| holds(line, name));
        found.extend(here.map(|&(name, now)| (number, name, now)));
    }
    found
}

/// Events of old that a source of the coordinator writes: line, name.
pub fn old_events(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        for part in line.split("\"event\":").skip(1) {
            let name = part.trim_start().trim_start_matches('"').split('"').next();
            if let Some(name) = name.filter(|name| EVENTS.contains(name)) {
                found.push((number, name.to_owned()));
            }
        }
    }
    found
}

/// Does the text hold the phrase, not as a part of a longer word?
fn holds(text: &str, phrase: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(phrase).any(|(at, _)| {
        !text[..at].ends_with(is_word) && !text[at + phrase.len()..].starts_with(is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_words_are_found() {
        let text = "A set that Goes back\nis fine, but a keeper is not.\nBookkeeper\n";
        let found: Vec<_> =
            in_document("docs/x.md", text).iter().map(|&(line, word, _)| (line, word)).collect();
        assert_eq!(found, [(1, "goes back"), (2, "keeper")]);
        assert_eq!(in_document("docs/glossary.md", text), []);
        assert_eq!(in_source("let id: LineId = x;\nstruct MyLineId;\n").len(), 1);
        let events = "json!({\"event\": \"back_to\"})\njson!({\"event\":\"set_rollback\"})\n";
        assert_eq!(old_events(events), [(1, "back_to".to_owned())]);
    }
}
