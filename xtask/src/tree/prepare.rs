//! `cargo xtask ompi-tree prepare`: everything for `--with-rustbtl` into an Open MPI source tree.

use std::fs;
use std::path::{Path, PathBuf};

use super::files::Files;
use super::{Version, core};
use crate::build::glue_files;
use crate::error::{Result, fail, failure};
use crate::paths;

/// The component's folder in a tree.
pub const COMPONENT: &str = "ompi/mca/vprotocol/correlated";

/// The other component's, of mpirun and its daemons.
pub fn errmgr(version: Version) -> &'static str {
    match version {
        Version::V41 => "orte/mca/errmgr/correlated",
        Version::V50 => "3rd-party/prrte/src/mca/errmgr/correlated",
    }
}

/// What was put into the tree.
pub struct Prepared {
    /// The tree's version.
    pub version: Version,
    /// Changes when autogen.pl has to run again.
    pub autogen_key: String,
    /// Changes when our component's flags may have changed, which make does not see.
    pub flags_key: String,
    /// Files that were written or removed.
    pub touched: usize,
}

/// Puts it there; what is there already is left alone.
pub fn run(tree: &Path) -> Result<Prepared> {
    let version = version_of(tree)?;
    let files = files(version)?;
    let touched = files.write(tree)?;
    // make itself runs automake after a change of Makefile.am or sources.am.
    let for_autogen = |place: &Path| place.extension().is_some_and(|e| e == "m4");
    let for_flags = |place: &Path| place.ends_with("Makefile.am");
    let (autogen_key, flags_key) = (files.digest(for_autogen), files.digest(for_flags));
    Ok(Prepared { version, autogen_key, flags_key, touched })
}

/// Everything, by its place in the tree.
fn files(version: Version) -> Result<Files> {
    let component = Path::new(COMPONENT);
    let mut files = core::files(&component.join("rust"))?;
    let rust: Vec<PathBuf> = files.places().map(Path::to_path_buf).collect();
    let snippets = paths::root().join("configure-snippets");
    for folder in ["config", "ompi"] {
        files.add_folder(Path::new(folder), &snippets.join(folder))?;
    }
    let (vprotocol, glue, from, to) = match version {
        Version::V41 => (&VPROTOCOL, &ORTE, "orte", "orte"),
        Version::V50 => (&VPROTOCOL_5, &PRRTE, "prrte", "3rd-party/prrte"),
    };
    add_glue(&mut files, component, vprotocol, &rust)?;
    files.add_folder(Path::new(to), &snippets.join(from))?;
    add_glue(&mut files, Path::new(errmgr(version)), glue, &[])?;
    Ok(files)
}

/// Which files of glue-c belong to a component.
struct Belongs {
    /// Folders of it; their files lie side by side in the tree, as the MCA wants them.
    folders: &'static [&'static str],
    /// Files of other folders.
    others: &'static [&'static str],
}

const VPROTOCOL: Belongs = Belongs { folders: &["vprotocol", "include"], others: &[] };
/// With the parameters that ORTE's component would tell ompi_info.
const VPROTOCOL_5: Belongs = Belongs {
    others: &["errmgr/errmgr_correlated_params.c", "errmgr/errmgr_correlated.h"],
    ..VPROTOCOL
};
const ORTE: Belongs = Belongs { folders: &["errmgr", "errmgr/orte"], others: &[] };
const PRRTE: Belongs = Belongs { folders: &["errmgr", "errmgr/prrte"], others: &[] };

/// The files of glue-c for a component, and lists of them.
fn add_glue(files: &mut Files, to: &Path, belongs: &Belongs, rust: &[PathBuf]) -> Result<()> {
    let glue = glue(belongs)?;
    for file in glue.c.iter().chain(&glue.help) {
        files.add_file(to.join(name_of(file)), file)?;
    }
    files.add_text(to.join("sources.am"), sources_am(&glue, rust));
    Ok(())
}

/// Files of glue-c that belong to the component.
struct Glue {
    c: Vec<PathBuf>,
    help: Vec<PathBuf>,
}

fn name_of(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn glue(belongs: &Belongs) -> Result<Glue> {
    let is_c = |name: &str| name.ends_with(".c") || name.ends_with(".h");
    let mut c = glue_files(belongs.folders, is_c)?;
    c.extend(belongs.others.iter().map(|file| paths::root().join("glue-c").join(file)));
    c.sort_by_key(|file| name_of(file));
    let help = glue_files(belongs.folders, |name| name.starts_with("help-mca-"))?;
    Ok(Glue { c, help })
}

/// The lists that Makefile.am includes. Vendored crates change only together with Cargo.lock.
fn sources_am(glue: &Glue, rust: &[PathBuf]) -> String {
    let rust: Vec<String> = rust
        .iter()
        .filter_map(|place| place.strip_prefix(COMPONENT).ok())
        .filter(|place| !place.starts_with("rust/vendor") && !place.starts_with("rust/.cargo"))
        .map(|place| place.display().to_string())
        .collect();
    let names = |files: &[PathBuf]| files.iter().map(|file| name_of(file)).collect::<Vec<_>>();
    let list = |name: &str, items: &[String]| {
        let items: String = items.iter().map(|item| format!(" \\\n        {item}")).collect();
        format!("\n{name} ={items}\n")
    };
    let head = "# Written by `cargo xtask ompi-tree prepare` of rustbtl.\n";
    let mut text = head.to_string() + &list("glue_sources", &names(&glue.c));
    text += &list("help_texts", &names(&glue.help));
    if !rust.is_empty() {
        text += &list("rust_sources", &rust);
    }
    text
}

/// Which Open MPI the tree is, if it is one that we know.
fn version_of(tree: &Path) -> Result<Version> {
    let file = tree.join("VERSION");
    let text = fs::read_to_string(&file).map_err(|e| {
        failure!("{}: {e}; is this the top of an Open MPI source tree?", file.display())
    })?;
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or("?")
    };
    let version = format!("{}.{}", field("major"), field("minor"));
    if !tree.join("ompi/mca/vprotocol/vprotocol.h").is_file() {
        fail!("{} has no vprotocol framework: is it Open MPI's?", tree.display());
    }
    Version::ALL.into_iter().find(|known| known.name() == version).ok_or_else(|| {
        failure!(
            "{} is Open MPI {version}; rustbtl supports 4.1 and 5.0 (glue-c/include/compat.h)",
            tree.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_as_automake_wants_them() {
        let glue = Glue { c: vec!["x/a.c".into(), "y/b.h".into()], help: vec!["x/h.txt".into()] };
        let rust = [
            Path::new(COMPONENT).join("rust/Cargo.toml"),
            Path::new(COMPONENT).join("rust/vendor/libc/src/lib.rs"),
        ];
        let text = sources_am(&glue, &rust);
        let wanted = "\nglue_sources = \\\n        a.c \\\n        b.h\n\nhelp_texts = \\\n        \
             h.txt\n\nrust_sources = \\\n        rust/Cargo.toml\n";
        assert!(text.ends_with(wanted), "{text}");
    }

    #[test]
    fn a_component_gets_the_files_of_its_rooms_side_by_side() {
        let names = |belongs: &Belongs| {
            let glue = glue(belongs).unwrap();
            let names: Vec<String> = glue.c.iter().chain(&glue.help).map(|f| name_of(f)).collect();
            names.join(" ")
        };
        let (vprotocol, five) = (names(&VPROTOCOL), names(&VPROTOCOL_5));
        let (orte, prrte) = (names(&ORTE), names(&PRRTE));
        for name in ["compat.h", "glue.h", "vprotocol_correlated.h", "vprotocol_correlated_send.c"]
        {
            assert!(vprotocol.contains(name) && !orte.contains(name), "{name}");
        }
        assert!(!vprotocol.contains("errmgr") && five.contains("errmgr_correlated_params.c"));
        for name in ["errmgr_correlated.h", "errmgr_correlated_loss.c", "help-mca-errmgr-"] {
            assert!(orte.contains(name) && prrte.contains(name), "{name}");
        }
        assert!(orte.contains("orte_correlated.h") && !orte.contains("prrte"));
        assert!(prrte.contains("prrte_correlated_values.c") && !prrte.contains(" orte_"));
    }

    #[test]
    fn a_tree_that_is_not_one_is_refused() {
        let refused = version_of(paths::root()).unwrap_err();
        assert!(refused.0.contains("source tree"), "{refused}");
    }
}
