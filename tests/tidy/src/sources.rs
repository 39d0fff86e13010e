//! Rules for source files: length of lines and files, heads, what cores may not name.

use std::fs;
use std::path::{Path, PathBuf};

/// Characters in a line.
pub const LINE_CHARS_MAX: usize = 100;
/// Lines in a file (the goal is 400).
pub const FILE_LINES_MAX: usize = 600;

/// What a core may not name, each with the reason.
const NOT_IN_CORES: &[(&str, &str)] = &[
    ("Instant", "time is an argument"),
    ("SystemTime", "time is an argument"),
    ("HashMap", "its order differs from run to run"),
    ("HashSet", "its order differs from run to run"),
    ("RandomState", "randomness is an argument"),
    ("std::thread", "threads belong to the driver"),
    ("thread::", "threads belong to the driver"),
    ("thread_local!", "threads belong to the driver"),
    ("std::fs", "I/O belongs to the driver"),
    ("std::net", "I/O belongs to the driver"),
    ("std::env", "parameters are arguments"),
    ("std::process", "processes belong to the driver"),
    ("println!", "I/O belongs to the driver"),
    ("libc::", "the operating system belongs to the driver"),
];

/// All files below a folder with one of these endings, in order of their paths. Build outputs,
/// hidden folders and links are left out.
pub fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![folder.to_owned()];
    while let Some(folder) = todo.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
                todo.push(path);
            } else if kind.is_file() {
                let ending = path.extension().unwrap_or_default().to_string_lossy();
                if endings.contains(&ending.as_ref()) {
                    found.push(path);
                }
            }
        }
    }
    found.sort();
    found
}

/// Lines that are longer.
pub fn long_lines(text: &str, chars_max: usize) -> Vec<usize> {
    let long = |line: &&str| line.chars().count() > chars_max;
    text.lines().zip(1..).filter(|(line, _)| long(line)).map(|(_, number)| number).collect()
}

/// Does a Rust file begin with what it is for?
pub fn has_head(text: &str) -> bool {
    text.lines().next().is_some_and(|line| line.starts_with("//! ") && line.len() > 12)
}

/// What a core's source names though it may not: line, name, reason. Comments may.
pub fn not_in_cores(text: &str) -> Vec<(usize, &'static str, &'static str)> {
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let code = line.split("//").next().unwrap_or_default();
        let named = NOT_IN_CORES.iter().filter(|(name, _)| names(code, name));
        found.extend(named.map(|&(name, reason)| (number, name, reason)));
    }
    found
}

/// Does the code hold the name, not as a part of a longer word?
fn names(code: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(name).any(|(at, _)| {
        let before = code[..at].chars().next_back().is_some_and(is_word);
        let after = code[at + name.len()..].chars().next().is_some_and(is_word);
        let ends_in_word = name.chars().next_back().is_some_and(is_word);
        !(before || after && ends_in_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cores_may_not_name_is_found() {
        let planted = [
            "let now = Instant::now();",
            "use std::collections::{BTreeMap, HashMap};",
            "std::thread::spawn(f);",
            "    thread::yield_now();",
            "fn at(t: SystemTime) {}",
            "let n = unsafe { libc::getpid() };",
        ];
        for line in planted {
            assert!(!not_in_cores(line).is_empty(), "{line}");
        }
        let fine =
            ["// HashMap", "let InstantNoodles = 1;", "fn my_thread::x() {}", "MyHashMapper"];
        for line in fine {
            assert_eq!(not_in_cores(line), [], "{line}");
        }
    }

    #[test]
    fn lines_and_heads_are_measured_in_characters() {
        let hundred = "é".repeat(100);
        assert_eq!(long_lines(&format!("{hundred}\n{hundred}x\n"), 100), [2]);
        assert!(has_head("//! What it is for.\n"));
        assert!(!has_head("// No.\n") && !has_head("") && !has_head("//!\n"));
    }
}
