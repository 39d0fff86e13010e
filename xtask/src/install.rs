//! `cargo xtask install`: components into a folder that Open MPI searches.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::build::{self, COMPONENTS};
use crate::error::{Context, Result, fail, failure};
use crate::{paths, run};

/// The command line of `cargo xtask install`.
#[derive(Args)]
pub struct InstallOptions {
    /// Into ~/.openmpi/components, which Open MPI searches by itself (default)
    #[arg(long, conflicts_with = "prefix")]
    user: bool,
    /// Below DIR, as in an Open MPI that is installed with this prefix
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
}

/// Copies the components and lets ompi_info prove that they are found.
pub fn run(options: &InstallOptions) -> Result<()> {
    build::ensure_optimised()?;
    // Before anything is copied: a component that breaks Open MPI must not get where it is loaded.
    prove(&paths::mca(), false)?;
    let to = match &options.prefix {
        Some(prefix) => below(prefix)?,
        None => user_folder()?,
    };
    fs::create_dir_all(&to).context(|| to.display().to_string())?;
    for component in &COMPONENTS {
        copy(&component.file(), &to)?;
    }
    for text in build::help_files()?.into_iter().chain(build::api_files()) {
        copy(&text, &to)?;
    }
    copy(&build::program(), &to)?;
    let searched = options.prefix.is_none() || to == build::component_folder()?;
    prove(&to, searched)?;
    println!("installed in {}", to.display());
    println!("the command: {}", to.join(build::PROGRAM).display());
    if !searched {
        println!("tell Open MPI: --mca mca_base_component_path {}:SYSTEM_DEFAULT", to.display());
    }
    Ok(())
}

fn user_folder() -> Result<PathBuf> {
    let home = env::var_os("HOME").filter(|home| !home.is_empty());
    let home = home.ok_or_else(|| failure!("HOME is not set: use --prefix DIR"))?;
    Ok(PathBuf::from(home).join(".openmpi/components"))
}

/// The component folder of the installed Open MPI, moved from its prefix to another.
fn below(prefix: &Path) -> Result<PathBuf> {
    let folder = build::component_folder()?;
    let inside = folder.strip_prefix(build::prefix()?).map(Path::to_path_buf);
    let prefix = std::path::absolute(prefix).context(|| prefix.display().to_string())?;
    Ok(prefix.join(inside.unwrap_or_else(|_| "lib/openmpi".into())))
}

/// Whole or not at all: a job that starts meanwhile sees the old file or the new one.
fn copy(file: &Path, folder: &Path) -> Result<()> {
    let name = file.file_name().unwrap_or_default();
    let what = || format!("copying {} to {}", file.display(), folder.display());
    let temporary = folder.join(format!(".{}.{}", name.display(), std::process::id()));
    let done = fs::copy(file, &temporary).and_then(|_| fs::rename(&temporary, folder.join(name)));
    done.inspect_err(|_| drop(fs::remove_file(&temporary))).context(what)
}

fn prove(folder: &Path, searched: bool) -> Result<()> {
    let mut info = Command::new("ompi_info");
    info.args(["--parsable", "--param", "all", "all", "--level", "9"]);
    if searched {
        info.env_remove(build::COMPONENT_PATH);
    } else {
        info.env(build::COMPONENT_PATH, format!("{}:SYSTEM_DEFAULT", folder.display()));
    }
    let text = run::output(&mut info)?;
    for component in &COMPONENTS {
        let mut words = component.name.splitn(3, '_').skip(1);
        let (framework, name) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let line = format!("mca:{framework}:{name}:");
        if !text.lines().any(|l| l.starts_with(&line)) {
            fail!(
                "{} is in {}, but ompi_info does not find it; `ompi_info --mca \
                 mca_base_component_show_load_errors 1` says why",
                component.name,
                folder.display()
            );
        }
    }
    Ok(())
}
