//! The field's words (docs/glossary.md): home-made ones that must not come back, in what users
//! read, in comments, in events, and in identifiers.

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

/// More that comments may not use. Documents have some of them in tables of old words or in plain
/// English.
const IN_COMMENTS: &[(&str, &str)] = &[
    ("fallen", "failed"),
    ("made anew", "restarted"),
    ("started again", "restarted"),
    ("goes on alone", "continues unprotected"),
    ("stand still", "are suspended"),
    ("is parked", "is suspended"),
    ("are parked", "are suspended"),
    ("falls silent", "becomes quiescent"),
    ("fall silent", "become quiescent"),
    ("of the silence", "of quiescence"),
    ("catch up", "complete the replay"),
    ("catching up", "replaying"),
    ("runs its past", "replays"),
    ("run its past", "replay"),
    ("repeats its past", "replays"),
    ("repeat its past", "replay"),
    ("a picture", "a snapshot, or an image"),
    ("the picture", "the snapshot, or the image"),
    ("pictures", "snapshots, or images"),
    ("keepers", "replicas"),
    ("shelves", "replica servers"),
    ("shippers", "determinant logs"),
    ("shipped", "sent"),
    ("parcels", "batches"),
    ("strangers", "unauthenticated peers"),
    ("stand-ins", "proxies"),
    ("taken along", "piggybacked"),
    ("take it along", "piggyback it"),
    ("global lines", "global checkpoints"),
    ("set lines", "set checkpoints"),
    ("a line is taken", "a checkpoint is taken"),
    ("a line is complete", "a checkpoint is complete"),
    ("line 1 is complete", "checkpoint 1 is complete"),
    ("first line is complete", "first checkpoint is complete"),
    ("takes a line", "takes a checkpoint"),
    ("take a line", "take a checkpoint"),
    ("last complete line", "last complete checkpoint"),
    ("oldest line", "oldest checkpoint"),
    ("youngest line", "youngest checkpoint"),
    ("earlier life", "earlier incarnation"),
    ("first life", "first incarnation"),
    ("second life", "second incarnation"),
    ("new life", "new incarnation"),
    ("next life", "next incarnation"),
    ("this life", "this incarnation"),
    ("another life", "another incarnation"),
    ("all lives", "all incarnations"),
    ("earlier lives", "earlier incarnations"),
    ("left to chance", "nondeterministic"),
    ("under method", "under way"),
];

/// Places where one of them is right: path, phrase, reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("xtask/src/test/workloads.rs", "left to chance", "HPCC's updates, not an outcome of MPI"),
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
    let excepted = |phrase: &str| is_excepted(path, phrase);
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let line = line.to_lowercase();
        let here = IN_DOCUMENTS.iter().filter(|(word, _)| holds(&line, word) && !excepted(word));
        found.extend(here.map(|&(word, instead)| (number, word, instead)));
    }
    found
}

/// Home-made words in the comments of a source: line, word, what to write. A phrase may go over the
/// end of a line.
pub fn in_comments(path: &str, text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    let mut before = String::new();
    for (line, number) in comments(text).iter().zip(1..) {
        let both = format!("{before} {line}");
        for &(phrase, instead) in IN_DOCUMENTS.iter().chain(IN_COMMENTS) {
            let here = holds(line, phrase) || !holds(&before, phrase) && holds(&both, phrase);
            if here && !is_excepted(path, phrase) {
                found.push((number, phrase, instead));
            }
        }
        before.clone_from(line);
    }
    found
}

/// The comment of each line of Rust or C, without its marks and in small letters; empty where there
/// is none. A mark inside a string counts as one, but for that of an address (`://`).
fn comments(text: &str) -> Vec<String> {
    let mut is_open = false;
    let of_line = |line: &str| {
        let begin = match is_open {
            true => Some(0),
            false => line
                .match_indices("//")
                .chain(line.match_indices("/*"))
                .map(|(at, _)| at)
                .filter(|&at| !line[..at].ends_with(':'))
                .min(),
        };
        let Some(begin) = begin else { return String::new() };
        let comment = &line[begin..];
        is_open = (is_open || comment.starts_with("/*")) && !comment.contains("*/");
        let text = comment.split("*/").next().unwrap_or_default();
        let text = text.trim().trim_start_matches(['/', '*', '!']).trim_end();
        text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
    };
    text.lines().map(of_line).collect()
}

fn is_excepted(path: &str, phrase: &str) -> bool {
    EXCEPTIONS.iter().any(|(file, of, _)| *file == path && (of.is_empty() || *of == phrase))
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
    fn planted_words_in_comments_are_found() {
        let rust = "//! A set goes\n//! back alone.\nlet keeper = 1; // a Reborn process\n\
                    let url = \"http://keeper\";\n/// A set that waits\n/// stands still.\n";
        let found: Vec<_> =
            in_comments("a.rs", rust).iter().map(|&(line, word, _)| (line, word)).collect();
        assert_eq!(found, [(2, "goes back"), (3, "reborn"), (6, "stands still")]);
        let c = "/* The picture\n * of a process. */\nint keeper; /* a parcel */ int parcel;\n";
        let found: Vec<_> =
            in_comments("a.c", c).iter().map(|&(line, word, _)| (line, word)).collect();
        assert_eq!(found, [(1, "the picture"), (2, "picture of"), (3, "parcel")]);
        assert_eq!(in_comments("a.c", "int keeper; char *line = \"set line\";\n"), []);
    }

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
