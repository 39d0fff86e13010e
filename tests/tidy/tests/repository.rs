//! The repository keeps to the house style.

use rustbtl_tidy::{
    CORES, PRODUCT, layers, ledger, licence, metadata, nothing_found, rooms, root, sources,
    walkthroughs, words,
};
use std::fs;
use std::path::{Path, PathBuf};

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

fn all_files(endings: &[&str]) -> Vec<PathBuf> {
    let folders = PRODUCT.iter().filter(|folder| !folder.contains('/')).chain(&["tests"]);
    folders.flat_map(|folder| sources::files(&root().join(folder), endings)).collect()
}

#[test]
fn crates_depend_only_on_the_layers_below_them() {
    let metadata = metadata();
    nothing_found(&layers::wrong_edges(&metadata), "these edges break the law of layers");
    nothing_found(&layers::os_below_cores(&metadata), "cores may not reach the OS");
}

#[test]
fn rooms_import_only_from_rooms_below_them() {
    let found: Vec<_> =
        rooms::HOUSES.iter().flat_map(|house| house.wrong_imports(&root())).collect();
    nothing_found(&found, "move the code to the room where it belongs (docs/architecture.md)");
}

#[test]
fn walkthroughs_name_functions_and_files_that_exist() {
    let text = read(&root().join("docs/walkthroughs.md"));
    assert!(walkthroughs::steps(&text) > 30, "the steps are read");
    let found = walkthroughs::dead_steps(&text, &root());
    nothing_found(&found, "bring docs/walkthroughs.md up to date");
}

/// What users and other developers read, and the help texts of the components.
fn documents() -> Vec<PathBuf> {
    let top = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|file| root().join(file));
    let folders = ["docs", "examples"].map(|folder| sources::files(&root().join(folder), &["md"]));
    let help = sources::files(&root().join("glue-c"), &["txt"]);
    top.into_iter().chain(folders.into_iter().flatten()).chain(help).collect()
}

#[test]
fn documents_speak_the_fields_words() {
    let mut found = Vec::new();
    for path in documents() {
        for (line, word, instead) in words::in_document(&shown(&path), &read(&path)) {
            found.push(format!("{}:{line}: {word}: write {instead}", shown(&path)));
        }
    }
    nothing_found(&found, "use the words of docs/glossary.md");
}

/// Folders whose comments speak the field's words already.
const COMMENTS_CHECKED: &[&str] = &[
    "checkpoint",
    "component",
    "coordination",
    "examples",
    "fragments",
    "glue-c",
    "runtime",
    "tests",
    "xtask",
];

#[test]
fn comments_speak_the_fields_words() {
    let mut found = Vec::new();
    for folder in COMMENTS_CHECKED {
        for path in sources::files(&root().join(folder), &["rs", "c", "h"]) {
            let name = shown(&path);
            if name.starts_with("tests/tidy/src/words") {
                continue; // the lists themselves
            }
            for (line, word, instead) in words::in_comments(&name, &read(&path)) {
                found.push(format!("{name}:{line}: {word}: write {instead}"));
            }
        }
    }
    nothing_found(&found, "use the words of docs/glossary.md");
}

#[test]
fn retired_names_do_not_come_back() {
    let mut found = Vec::new();
    for path in all_files(&["rs", "c", "h"]) {
        let (name, text) = (shown(&path), read(&path));
        if name.starts_with("tests/tidy/src/words") || name == "runtime/src/command/events.rs" {
            continue; // the lists themselves
        }
        for (line, old, now) in words::in_source(&text) {
            found.push(format!("{name}:{line}: {old} is {now} now"));
        }
        if name.starts_with("runtime/src/coordinator") {
            for (line, event) in words::old_events(&text) {
                found.push(format!("{name}:{line}: event {event} of version 1"));
            }
        }
    }
    nothing_found(&found, "use the names of docs/glossary.md");
}

#[test]
fn documents_have_short_lines() {
    let mut found = Vec::new();
    for path in documents().iter().filter(|path| path.extension().is_some_and(|e| e == "md")) {
        let text = read(path);
        let long = |line: &&str| line.chars().count() > 120 && !line.starts_with('|');
        let lines = text.lines().zip(1..).filter(|(line, _)| long(line) && !line.contains("]("));
        found.extend(lines.map(|(_, number)| format!("{}:{number}", shown(path))));
    }
    nothing_found(&found, "break these lines; tables and links may be longer");
}

#[test]
fn licences_of_all_crates_go_with_bsd_3_clause() {
    let found = licence::wrong_licences(&metadata());
    nothing_found(&found, "use another crate, or add the licence (here and in deny.toml)");
}

#[test]
fn lines_have_at_most_100_characters() {
    let mut found = Vec::new();
    for path in all_files(&["rs", "c", "h"]) {
        let lines = sources::long_lines(&read(&path), line_chars_max(&path));
        found.extend(lines.iter().map(|line| format!("{}:{line}", shown(&path))));
    }
    nothing_found(&found, "break these lines");
}

/// MPI programs of the tests may be wider: they are tables of calls with many arguments.
fn line_chars_max(path: &Path) -> usize {
    let is_mpi_program = path.starts_with(root().join("tests/mpi"));
    if is_mpi_program { sources::LINE_CHARS_MAX + 20 } else { sources::LINE_CHARS_MAX }
}

#[test]
fn the_user_guide_links_the_batch_script_that_is_tested() {
    let [guide, script] =
        ["docs/user-guide.md", "docs/slurm.sh"].map(|file| read(&root().join(file)));
    assert!(!script.is_empty() && guide.contains("](slurm.sh)"), "link docs/slurm.sh in the guide");
}

#[test]
fn files_have_at_most_600_lines() {
    let mut found = Vec::new();
    for path in all_files(&["rs", "c", "h"]) {
        let lines = read(&path).lines().count();
        if lines > sources::FILE_LINES_MAX {
            found.push(format!("{}: {lines} lines", shown(&path)));
        }
    }
    nothing_found(&found, "split these files, one idea each");
}

#[test]
fn rust_files_begin_with_what_they_are_for() {
    let files = all_files(&["rs"]);
    assert!(files.len() > 20, "the walk finds the sources");
    let headless = files.iter().filter(|path| !sources::has_head(&read(path)));
    let found: Vec<_> = headless.map(|path| shown(path)).collect();
    nothing_found(&found, "begin these files with a line //! that says what they are for");
}

#[test]
fn cores_forbid_unsafe_code() {
    let forbids = |core: &&str| {
        read(&root().join(core).join("src/lib.rs")).lines().any(|l| l == "#![forbid(unsafe_code)]")
    };
    let found: Vec<_> =
        CORES.iter().filter(|core| !forbids(core)).map(ToString::to_string).collect();
    nothing_found(&found, "put #![forbid(unsafe_code)] into src/lib.rs of these cores");
}

#[test]
fn cores_name_no_clock_no_thread_no_hash_map() {
    let mut found = Vec::new();
    for core in CORES {
        for path in sources::files(&root().join(core).join("src"), &["rs"]) {
            for (line, name, reason) in sources::not_in_cores(&read(&path)) {
                found.push(format!("{}:{line}: {name}: {reason}", shown(&path)));
            }
        }
    }
    nothing_found(&found, "cores are deterministic and do no I/O");
}

#[test]
fn cores_tell_clippy_what_is_not_allowed() {
    let tells = |core: &&str| {
        let text = read(&root().join(core).join("clippy.toml"));
        ["disallowed-types", "disallowed-methods", "HashMap", "Instant::now", "thread::spawn"]
            .iter()
            .all(|word| text.contains(word))
    };
    let found: Vec<_> = CORES.iter().filter(|core| !tells(core)).map(ToString::to_string).collect();
    nothing_found(&found, "copy checkpoint/clippy.toml into these folders");
}

#[test]
fn every_folder_of_the_product_has_a_design() {
    let lacks = |folder: &&&str| {
        let folder = root().join(folder);
        let has_sources = !sources::files(&folder, &["rs", "c"]).is_empty();
        has_sources && !folder.join("DESIGN.md").is_file()
    };
    let folders = PRODUCT.iter().filter(|folder| !folder.contains('/'));
    let found: Vec<_> = folders.filter(lacks).map(ToString::to_string).collect();
    nothing_found(&found, "write a short DESIGN.md in these folders");
}

#[test]
fn the_ledger_names_only_tests_that_exist() {
    let text = read(&root().join("tests/LEDGER.md"));
    assert!(!ledger::references(&text).is_empty(), "tests/LEDGER.md names no test at all");
    nothing_found(&ledger::dead_references(&text, &root()), "tests/LEDGER.md is wrong");
}

#[test]
fn the_papers_are_there() {
    let papers = ["CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "deny.toml"];
    let missing = papers.iter().filter(|paper| !root().join(paper).is_file());
    nothing_found(&missing.map(ToString::to_string).collect::<Vec<_>>(), "write these");
    assert!(read(&root().join("CHANGELOG.md")).contains("## [Unreleased]"), "CHANGELOG.md");
}
