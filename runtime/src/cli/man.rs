//! The pages of the manual, in docs/man: made from the command line, and kept where packages take
//! them from, so that nobody who builds one needs what makes them.

use super::Cli;
use clap::CommandFactory;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// With this in the environment the pages are written.
const WRITE: &str = "RUSTBTL_WRITE_MAN";

fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/man")
}

/// All files of a folder, and what is in them.
fn texts(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
    let text = |path: PathBuf| (name(&path), fs::read_to_string(&path).unwrap());
    entries.map(|entry| text(entry.path())).collect()
}

#[test]
fn pages_say_what_the_command_line_says() {
    let made = env::temp_dir().join(format!("rustbtl-man-{}", std::process::id()));
    fs::create_dir_all(&made).unwrap();
    clap_mangen::generate_to(Cli::command(), &made).unwrap();
    let pages = texts(&made);
    fs::remove_dir_all(&made).unwrap();
    let names: Vec<&str> = pages.keys().map(String::as_str).collect();
    let commands = ["checkpoint", "list", "report", "restart", "status"];
    let wanted: Vec<String> = commands.iter().map(|name| format!("rustbtl-{name}.1")).collect();
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).chain(["rustbtl.1"]).collect();
    assert_eq!(names, wanted, "what jobs run beside their ranks has no page");
    if env::var_os(WRITE).is_some() {
        fs::create_dir_all(kept()).unwrap();
        for (name, text) in &pages {
            fs::write(kept().join(name), text).unwrap();
        }
    }
    assert!(texts(&kept()) == pages, "{WRITE}=1 cargo test -p rustbtl-runtime man writes docs/man");
}
