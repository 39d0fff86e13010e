//! The Rust part as a workspace of its own, with the crates that it needs in it: the part of our
//! workspace below component and runtime, without tests and benchmarks.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::files::Files;
use crate::error::{Context, Result, failure};
use crate::{paths, run};

/// The crates that become a static library and a program.
const TOPS: [&str; 2] = ["rustbtl-component", "rustbtl-runtime"];

/// What a build script of these crates compiles; it is found by its place in the workspace.
const RESTORER: &str = "glue-c/restorer";

/// Where cargo finds crates, in a tree without network.
const CONFIG: &str = "\
# Crates come from vendor/: no network is needed.
[source.crates-io]
replace-with = \"vendored\"

[source.vendored]
directory = \"vendor\"
";

/// All files of it, below `place`.
pub fn files(place: &Path) -> Result<Files> {
    let stage = stage()?;
    let mut files = Files::default();
    files.add_folder(place, &stage)?;
    Ok(files)
}

/// Makes the workspace in the target folder; the one of last time if nothing has changed.
fn stage() -> Result<PathBuf> {
    let root = paths::root();
    let mut own = Files::default();
    let crates = crates_below(&metadata()?, &TOPS);
    let read = |file: PathBuf| fs::read_to_string(&file).context(|| file.display().to_string());
    own.add_text("Cargo.toml", workspace(&read(root.join("Cargo.toml"))?, &crates));
    own.add_text(".cargo/config.toml", CONFIG.into());
    own.add_file("Cargo.lock", &root.join("Cargo.lock"))?;
    own.add_file("LICENSE", &root.join("LICENSE"))?;
    for folder in &crates {
        let from = root.join(folder);
        own.add_text(folder.join("Cargo.toml"), package(&read(from.join("Cargo.toml"))?));
        add_sources(&mut own, folder, &from)?;
    }
    own.add_folder(Path::new(RESTORER), &root.join(RESTORER))?;
    let stages = paths::target().join("ompi-tree");
    let stage = stages.join(&own.digest(|_| true)[..16]);
    if !stage.exists() {
        let unfinished = stages.join(format!("unfinished-{}", std::process::id()));
        let _ = fs::remove_dir_all(&unfinished);
        own.write_all(&unfinished)?;
        vendor(&unfinished)?;
        let renamed = fs::rename(&unfinished, &stage);
        let _ = fs::remove_dir_all(&unfinished);
        // Somebody else may have made the same meanwhile.
        renamed
            .or_else(|e| if stage.exists() { Ok(()) } else { Err(e) })
            .context(|| stage.display().to_string())?;
    }
    Ok(stage)
}

/// Adds what a crate is made of: all files in its folder but documents, what is for tests, and
/// other crates.
fn add_sources(files: &mut Files, place: &Path, from: &Path) -> Result<()> {
    let entries = fs::read_dir(from).context(|| from.display().to_string())?;
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let not_built = ["tests", "benches", "examples", "target", "Cargo.toml"];
        if not_built.iter().any(|other| name == *other) || path.join("Cargo.toml").exists() {
            continue;
        }
        if path.is_dir() {
            add_sources(files, &place.join(name), &path)?;
        } else if path.extension().is_some_and(|extension| extension != "md") {
            files.add_file(place.join(name), &path)?;
        }
    }
    Ok(())
}

/// Fetches the crates (from cargo's own cache, if they are there) and drops the others from the
/// lock file.
fn vendor(workspace: &Path) -> Result<()> {
    // Not with the configuration that we wrote: its vendor folder is not there yet.
    let config = workspace.join(".cargo");
    let aside = workspace.join("cargo-config");
    fs::rename(&config, &aside).context(|| config.display().to_string())?;
    let mut cargo = Command::new("cargo");
    cargo.current_dir(workspace).args(["vendor", "--quiet", "--versioned-dirs", "vendor"]);
    // It prints a configuration; ours is as good.
    run::output(&mut cargo)?;
    fs::rename(&aside, &config).context(|| config.display().to_string())
}

fn metadata() -> Result<Value> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(paths::root()).args(["metadata", "--format-version", "1", "--no-deps"]);
    let text = run::output(&mut cargo)?;
    serde_json::from_str(&text).map_err(|e| failure!("what cargo metadata says: {e}"))
}

/// Folders of the crates of ours that these are made of.
fn crates_below(metadata: &Value, tops: &[&str]) -> BTreeSet<PathBuf> {
    let empty = Vec::new();
    let packages = metadata["packages"].as_array().unwrap_or(&empty);
    let root = Path::new(metadata["workspace_root"].as_str().unwrap_or_default());
    let mut todo: Vec<String> = tops.iter().map(|top| top.to_string()).collect();
    let mut seen = BTreeSet::new();
    let mut folders = BTreeSet::new();
    while let Some(name) = todo.pop() {
        let Some(package) = packages.iter().find(|p| p["name"] == name.as_str()) else { continue };
        if !seen.insert(name) {
            continue;
        }
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let folder = manifest.parent().and_then(|folder| folder.strip_prefix(root).ok());
        folders.extend(folder.map(Path::to_path_buf));
        for dependency in package["dependencies"].as_array().unwrap_or(&empty) {
            if dependency["path"].is_string() && dependency["kind"] != "dev" {
                todo.extend(dependency["name"].as_str().map(str::to_string));
            }
        }
    }
    folders
}

/// The workspace's manifest with these members only.
fn workspace(manifest: &str, crates: &BTreeSet<PathBuf>) -> String {
    let keep = |header: &str| {
        header.starts_with("[workspace.") || header == "[profile.release]" || header.is_empty()
    };
    let members: String =
        crates.iter().map(|folder| format!("    \"{}\",\n", folder.display())).collect();
    let rest = sections(manifest, keep);
    format!("[workspace]\nresolver = \"3\"\nmembers = [\n{members}]\n\n{}", rest.trim_start())
}

/// A crate's manifest without what is for tests and benchmarks.
fn package(manifest: &str) -> String {
    let test_only = ["dev-dependencies", "cfg(loom)", "[[bench]]", "[[test]]", "[[example]]"];
    sections(manifest, |header| !test_only.iter().any(|word| header.contains(word)))
}

/// The sections of a manifest whose header is wanted ("": what comes before the first).
fn sections(manifest: &str, wanted: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    let mut keeps = wanted("");
    for line in manifest.lines() {
        if line.starts_with('[') {
            keeps = wanted(line.trim_end());
        }
        if keeps {
            text += line;
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn manifests_lose_what_is_for_tests() {
        let manifest = "[package]\nname = \"a\"\n\n[dev-dependencies]\nx = \"1\"\n\n\
             [target.'cfg(loom)'.dependencies]\nloom = \"1\"\n\n[[bench]]\nname = \"b\"\n\n\
             [lints]\nworkspace = true\n";
        assert_eq!(package(manifest), "[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n");
    }

    #[test]
    fn the_workspace_keeps_its_settings_and_some_members() {
        let manifest = "[workspace]\nresolver = \"3\"\nmembers = [\n    \"a\",\n    \"b\",\n]\n\n\
             [workspace.package]\nversion = \"1\"\n\n[profile.dev]\npanic = \"abort\"\n\n\
             [profile.release]\nlto = \"fat\"\n";
        let made = workspace(manifest, &BTreeSet::from(["b".into()]));
        assert!(made.starts_with("[workspace]\nresolver = \"3\"\nmembers = [\n    \"b\",\n]\n"));
        assert!(made.ends_with("[profile.release]\nlto = \"fat\"\n"), "{made}");
        assert!(made.contains("version = \"1\"") && !made.contains("profile.dev"), "{made}");
    }

    #[test]
    fn crates_are_followed_over_paths_but_not_for_tests() {
        let path =
            |name: &str, kind: Option<&str>| json!({"name": name, "path": "/", "kind": kind});
        let metadata = json!({ "workspace_root": "/w", "packages": [
            { "name": "top", "manifest_path": "/w/top/Cargo.toml",
              "dependencies": [path("low", None), path("sim", Some("dev")),
                               { "name": "libc", "path": null, "kind": null }] },
            { "name": "low", "manifest_path": "/w/x/low/Cargo.toml", "dependencies": [] },
            { "name": "sim", "manifest_path": "/w/sim/Cargo.toml", "dependencies": [] },
        ] });
        let found = crates_below(&metadata, &["top"]);
        assert_eq!(found, BTreeSet::from(["top".into(), "x/low".into()]));
    }
}
