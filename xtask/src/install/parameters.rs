//! Parameters of PMIx, with which Open MPI 5.0's mpirun and daemons work, and which it hands on to
//! the processes of jobs.
//!
//! Debian's file of them says where components of PMIx are. mpirun takes that for the path of Open
//! MPI's components, too, and then nobody searches ~/.openmpi/components or the folder of the
//! installation. So our folder is named behind what the file says: in a block of our own at the
//! end of the user's file, or, for all users, in the file of the installation.
//!
//! PMIx complains about a file in such a folder whose name is for somebody else, unless it is told
//! about which load errors to complain; a list in which nobody is left out silences only that.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build;
use crate::error::{Context, Result, fail, failure};
use crate::run;

const PATH: &str = "mca_base_component_path";
const SHOWN: &str = "mca_base_component_show_load_errors";
/// All load errors are shown but those of a framework that does not exist.
pub const QUIET: &str = "^rustbtl";

const BEGIN: &str = "# rustbtl: begin";
const END: &str = "# rustbtl: end";
/// Behind [`BEGIN`]: what was there before, so that it can be so again.
const NEW_FILE: &str = ", new file";
const OPEN_LINE: &str = ", after a line without end";

/// A file of parameters.
pub struct Parameters {
    file: PathBuf,
    /// Files whose values count where this one has none.
    below: Vec<PathBuf>,
    /// It is of a package: the package's version of it is kept elsewhere meanwhile.
    diverted: bool,
    /// Who may read it, if it is not there yet.
    mode: u32,
}

impl Parameters {
    /// The user's own.
    pub fn of_user(home: &Path) -> Parameters {
        let file = home.join(".pmix/mca-params.conf");
        Parameters { file, below: places(), diverted: false, mode: 0o600 }
    }

    /// The installation's.
    pub fn of_system() -> Result<Parameters> {
        let file = places().into_iter().find(|file| file.parent().is_some_and(Path::is_dir));
        let file = file.ok_or_else(|| failure!("PMIx's folder of parameters was not found"))?;
        let mut dpkg = Command::new("dpkg-query");
        let owned = dpkg.arg("-S").arg(&file).output().is_ok_and(|out| out.status.success());
        Ok(Parameters { file, below: Vec::new(), diverted: owned, mode: 0o644 })
    }

    /// Its text with the folder in it, for a package that has the file in place of another one.
    pub fn text_with(&self, folder: &Path) -> Result<String> {
        let text = fs::read_to_string(&self.file).context(|| self.file.display().to_string())?;
        let before = without_block(&text).map_or(Some(text), |before| before);
        Ok(with_block(before.as_deref(), &[], &[], folder))
    }

    /// The files that jobs of an emulated cluster shall see in place of those that are there: none
    /// names an installed component of ours, and all that have a word in it name the folder.
    pub fn of_cluster(home: &Path, folder: Option<&Path>) -> Result<Vec<(PathBuf, String)>> {
        let systems: Vec<PathBuf> = places().into_iter().filter(|file| file.is_file()).collect();
        if systems.is_empty() {
            fail!(
                "PMIx has no file of parameters, in which our components could be named: make an \
                 empty one, as {}",
                places().iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" or ")
            );
        }
        let own = build::component_folder()?;
        let first: Vec<PathBuf> = has_components(&own).then_some(own).into_iter().collect();
        let users = Some(Self::of_user(home).file).filter(|file| file.is_file());
        let all = systems.iter().map(|file| (file, true)).chain(users.iter().map(|f| (f, false)));
        let seen = |(file, always): (&PathBuf, bool)| {
            let text = fs::read_to_string(file).context(|| file.display().to_string())?;
            Ok((file.clone(), seen_in_cluster(text, always, &first, folder)))
        };
        all.map(seen).collect()
    }

    /// Where they are.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Says that our components are in the folder.
    pub fn name(&self, folder: &Path) -> Result<()> {
        self.forget()?;
        let before = match fs::read_to_string(&self.file) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(failure!("{}: {error}", self.file.display())),
        };
        let below: Vec<String> =
            self.below.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
        let mut folders = Vec::new();
        // Components of an Open MPI whose components are files.
        let own = build::component_folder()?;
        if has_components(&own) {
            folders.push(own);
        }
        let text = with_block(before.as_deref(), &below, &folders, folder);
        if self.diverted {
            self.divert("--add")?;
        }
        let parent = self.file.parent().unwrap_or(&self.file);
        fs::create_dir_all(parent).context(|| parent.display().to_string())?;
        write(&self.file, &text, self.mode)
    }

    /// Variables for the environment of mpirun that name a folder which no file names.
    pub fn in_environment(home: Option<&Path>, folder: &Path) -> Result<Vec<(String, String)>> {
        let users = home.map(|home| Self::of_user(home).file);
        let files = users.into_iter().chain(places());
        let below: Vec<String> = files.filter_map(|file| fs::read_to_string(file).ok()).collect();
        let own = build::component_folder()?;
        let first: Vec<PathBuf> = has_components(&own).then_some(own).into_iter().collect();
        Ok(variables(&with_block(None, &below, &first, folder)))
    }

    /// Takes that back. What others have written stays as it is.
    pub fn forget(&self) -> Result<()> {
        let Ok(text) = fs::read_to_string(&self.file) else { return Ok(()) };
        let Some(rest) = without_block(&text) else { return Ok(()) };
        if self.diverted {
            fs::remove_file(&self.file).context(|| self.file.display().to_string())?;
            return self.divert("--remove");
        }
        match rest {
            Some(rest) => write(&self.file, &rest, self.mode),
            None => {
                fs::remove_file(&self.file).context(|| self.file.display().to_string())?;
                // Only if nothing else is in it.
                let _ = self.file.parent().map(fs::remove_dir);
                Ok(())
            }
        }
    }

    /// The package's file moves aside, or comes back. An update of the package changes it there.
    fn divert(&self, how: &str) -> Result<()> {
        let mut divert = Command::new("dpkg-divert");
        divert.args(["--local", "--rename", how]).arg(&self.file);
        run::output(&mut divert).map(drop)
    }
}

/// Where PMIx has its parameters: Debian's, and one that was installed with Open MPI.
fn places() -> Vec<PathBuf> {
    let debians =
        format!("/usr/lib/{}-linux-gnu/pmix2/share/pmix-mca-params.conf", std::env::consts::ARCH);
    let with_openmpi = build::prefix().map(|prefix| prefix.join("etc/pmix-mca-params.conf"));
    [PathBuf::from(debians)].into_iter().chain(with_openmpi).collect()
}

/// Files that are named like components of Open MPI.
fn has_components(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let ours = |name: &String| name.contains("_correlated.");
    names.filter(|name| !ours(name)).any(|name| name.starts_with("mca_") && name.ends_with(".so"))
}

/// Whole or not at all; also behind a symbolic link, and with the rights that the file had.
fn write(file: &Path, text: &str, mode: u32) -> Result<()> {
    let file = file.canonicalize().unwrap_or_else(|_| file.to_path_buf());
    let shown = || file.display().to_string();
    let temporary = file.with_extension(format!("rustbtl-{}", std::process::id()));
    fs::write(&temporary, text).context(shown)?;
    let rights = fs::metadata(&file).map(|before| before.permissions());
    let rights = rights.unwrap_or_else(|_| Permissions::from_mode(mode));
    fs::set_permissions(&temporary, rights).context(shown)?;
    fs::rename(&temporary, &file).context(shown)
}

/// The text of a file as jobs of a cluster see it. The folder is named where that counts: in a file
/// that says where components are, and `always` in the installation's.
fn seen_in_cluster(text: String, always: bool, first: &[PathBuf], folder: Option<&Path>) -> String {
    let text = without_block(&text).map_or(text, |before| before.unwrap_or_default());
    match folder {
        Some(folder) if always || value(&text, PATH).is_some() => {
            with_block(Some(&text), &[], first, folder)
        }
        _ => text,
    }
}

/// The last value that a text has for a parameter: that one counts.
fn value<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim()).next_back()
}

/// The text of a file (None: there is none) with our block at its end. `below`: texts of files that
/// count where it says nothing. `first`: folders that must be searched, too.
fn with_block(before: Option<&str>, below: &[String], first: &[PathBuf], folder: &Path) -> String {
    let texts = || before.into_iter().chain(below.iter().map(String::as_str));
    let known = texts().find_map(|text| value(text, PATH)).unwrap_or_default();
    let mut path: Vec<String> = first.iter().map(|folder| folder.display().to_string()).collect();
    path.extend(known.split(':').filter(|part| !part.is_empty()).map(str::to_string));
    let ours = folder.display().to_string();
    path.retain(|part| *part != ours);
    path.push(ours);

    let mut text = before.unwrap_or_default().to_string();
    let mut how = String::new();
    if before.is_none() {
        how += NEW_FILE;
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
        how += OPEN_LINE;
    }
    text += &format!("{BEGIN}{how} (`cargo xtask uninstall` takes it back)\n");
    text += &format!("{PATH} = {}\n", path.join(":"));
    let shown = texts().find_map(|text| value(text, SHOWN));
    if shown.is_none_or(|shown| matches!(shown, "all" | "1" | "true" | "yes" | "enabled")) {
        text += &format!("{SHOWN} = {QUIET}\n");
    }
    text + END + "\n"
}

/// What a text says, as variables of PMIx and of Open MPI: mpirun hands PMIx's on to daemons, and
/// Open MPI's to the ranks, but neither to the other.
fn variables(text: &str) -> Vec<(String, String)> {
    let named = |prefix: &str, name: &str| {
        value(text, name).map(|value| (format!("{prefix}_MCA_{name}"), value.to_string()))
    };
    ["PMIX", "OMPI"]
        .into_iter()
        .flat_map(|prefix| [PATH, SHOWN].map(|name| named(prefix, name)))
        .flatten()
        .collect()
}

/// The text without our block: Some(None) if there was no file before. None: there is no block.
fn without_block(text: &str) -> Option<Option<String>> {
    let begin = if text.starts_with(BEGIN) { 0 } else { text.find(&format!("\n{BEGIN}"))? + 1 };
    let line = text[begin..].lines().next().unwrap_or_default();
    let end = text[begin..].find(&format!("\n{END}")).map(|at| begin + at + 1 + END.len());
    let rest = end.map_or("", |end| text[end..].strip_prefix('\n').unwrap_or(&text[end..]));
    let mut head = &text[..begin];
    if line.contains(OPEN_LINE) && rest.is_empty() {
        head = head.strip_suffix('\n').unwrap_or(head);
    }
    let all = format!("{head}{rest}");
    let gone = all.is_empty() && line.contains(NEW_FILE);
    Some((!gone).then_some(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDER: &str = "/home/u/.openmpi/components";

    fn block(before: Option<&str>, below: &str) -> String {
        with_block(before, &[below.to_string()], &[], Path::new(FOLDER))
    }

    #[test]
    fn what_was_there_is_there_again() {
        for before in [None, Some(""), Some("a = 1\n"), Some("a = 1"), Some("# x\n\nb=2\n\n")] {
            let text = block(before, "");
            let back = without_block(&text).expect("a block");
            assert_eq!(back.as_deref(), before, "{text}");
        }
        assert_eq!(without_block("a = 1\n"), None);
    }

    #[test]
    fn what_is_written_behind_the_block_stays() {
        let text = block(None, "") + "later = 1\n";
        assert_eq!(without_block(&text), Some(Some("later = 1\n".into())));
        let text = block(Some("a = 1"), "") + "later = 1\n";
        assert_eq!(without_block(&text), Some(Some("a = 1\nlater = 1\n".into())));
    }

    #[test]
    fn folders_that_are_named_already_come_first() {
        let system = "mca_base_component_path = /usr/lib/pmix\n";
        let text = block(None, system);
        assert_eq!(value(&text, PATH), Some("/usr/lib/pmix:/home/u/.openmpi/components"));
        assert_eq!(value(&text, SHOWN), Some(QUIET));
        let text = block(Some("mca_base_component_path=/mine\n"), system);
        assert_eq!(value(&text, PATH), Some("/mine:/home/u/.openmpi/components"));
        let again = block(Some(&text), system);
        assert_eq!(value(&again, PATH), Some("/mine:/home/u/.openmpi/components"));
    }

    #[test]
    fn a_cluster_sees_its_own_components_only() {
        let installed = block(Some("a = 1\n"), "mca_base_component_path = /usr/lib/pmix\n");
        let seen = |text: &str, always, folder: Option<&str>| {
            seen_in_cluster(text.into(), always, &[], folder.map(Path::new))
        };
        assert_eq!(seen(&installed, false, Some("/built")), "a = 1\n");
        assert_eq!(seen(&installed, true, None), "a = 1\n");
        let system = "mca_base_component_path = /usr/lib/pmix\n";
        let text = seen(system, true, Some("/built"));
        assert_eq!(value(&text, PATH), Some("/usr/lib/pmix:/built"));
        let text = seen(&block(Some(system), ""), false, Some("/built"));
        assert_eq!(value(&text, PATH), Some("/usr/lib/pmix:/built"));
    }

    #[test]
    fn the_environment_says_the_same_to_both() {
        let said = variables(&block(None, "mca_base_component_path = /usr/lib/pmix\n"));
        let path = "/usr/lib/pmix:/home/u/.openmpi/components".to_string();
        let both = |prefix: &str| {
            [
                (format!("{prefix}_MCA_mca_base_component_path"), path.clone()),
                (format!("{prefix}_MCA_mca_base_component_show_load_errors"), QUIET.to_string()),
            ]
        };
        assert_eq!(said, [both("PMIX"), both("OMPI")].concat());
    }

    #[test]
    fn a_wish_not_to_see_load_errors_is_respected() {
        let text = block(Some("mca_base_component_show_load_errors = none\n"), "");
        assert_eq!(value(&text, SHOWN), Some("none"));
        let text = block(Some("mca_base_component_show_load_errors = all\n"), "");
        assert_eq!(value(&text, SHOWN), Some(QUIET));
    }
}
