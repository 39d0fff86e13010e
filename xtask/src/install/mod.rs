//! `cargo xtask install`: components into a folder that Open MPI searches; `uninstall` takes them
//! back.
//!
//! Open MPI 5.0 has a runtime with parameters of its own (`parameters.rs`). What it is told is
//! written once, so that a user says no more than with 4.1.

mod parameters;

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::build;
use crate::error::{Context, Result, fail, failure};
use crate::{paths, run, sys};

pub use parameters::Parameters;

/// The command line of `cargo xtask install` and `uninstall`.
#[derive(Args)]
pub struct InstallOptions {
    #[command(flatten)]
    place: Place,
    /// Do not try whether Open MPI finds them
    #[arg(long, hide = true)]
    unproved: bool,
}

/// Where to.
#[derive(Args)]
#[group(multiple = false)]
pub struct Place {
    /// Into ~/.openmpi/components, which Open MPI searches by itself (default)
    #[arg(long)]
    user: bool,
    /// Into the installed Open MPI, for all users (as root)
    #[arg(long)]
    system: bool,
    /// Below DIR, as in an Open MPI that is installed with this prefix
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
}

impl Place {
    /// The folder, and the parameters of PMIx that name it.
    fn find(&self) -> Result<(PathBuf, Option<Parameters>)> {
        let has_prrte = build::openmpi::has_prrte()?;
        if let Some(prefix) = &self.prefix {
            return Ok((below(prefix)?, None));
        }
        if self.system {
            if sys::euid() != 0 {
                fail!("--system: only root can write where all users' Open MPI is");
            }
            let parameters = has_prrte.then(Parameters::of_system).transpose()?;
            return Ok((build::component_folder()?, parameters));
        }
        let home = env::var_os("HOME").filter(|home| !home.is_empty());
        let home = home.ok_or_else(|| failure!("HOME is not set: use --prefix DIR"))?;
        let home = PathBuf::from(home);
        let parameters = has_prrte.then(|| Parameters::of_user(&home));
        Ok((user_folder(&home), parameters))
    }
}

/// What Open MPI searches for the components of one user.
pub fn user_folder(home: &Path) -> PathBuf {
    home.join(".openmpi/components")
}

/// Copies the components and lets Open MPI prove that they are found.
pub fn run(options: &InstallOptions) -> Result<()> {
    build::ensure_optimised()?;
    // Before anything is copied: a component that breaks Open MPI must not get where it is loaded.
    if !options.unproved {
        prove(&paths::mca(), false)?;
    }
    let (to, parameters) = options.place.find()?;
    fs::create_dir_all(&to).context(|| to.display().to_string())?;
    for (file, name) in files()? {
        copy(&file, &to.join(name))?;
    }
    if let Some(parameters) = &parameters {
        parameters.name(&to)?;
    }
    let searched = parameters.is_some() || to == build::component_folder()? || is_users(options);
    if !options.unproved {
        prove(&to, searched)?;
        if parameters.is_some() {
            prove_runtime()?;
        }
    }
    println!("installed in {}", to.display());
    println!("the command: {}", to.join(build::PROGRAM).display());
    if let Some(parameters) = &parameters {
        println!("named in {}", parameters.file().display());
    }
    if !searched {
        println!("{}", tell(&to)?);
    }
    Ok(())
}

fn is_users(options: &InstallOptions) -> bool {
    options.place.prefix.is_none()
}

/// How a user says where the components are, if nothing else does.
fn tell(folder: &Path) -> Result<String> {
    if !build::openmpi::has_prrte()? {
        let folder = folder.display();
        return Ok(format!("tell Open MPI: --mca mca_base_component_path {folder}:SYSTEM_DEFAULT"));
    }
    // Options of its command line are for ranks: mpirun itself and its daemons do not see them.
    let home = env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let mut said = "before mpirun: export".to_string();
    for (name, value) in Parameters::in_environment(home.as_deref(), folder)? {
        said += &format!(" {name}={value}");
    }
    Ok(said)
}

/// Takes back what [`run()`] has done, and nothing else.
pub fn take_back(options: &InstallOptions) -> Result<()> {
    let (from, parameters) = options.place.find()?;
    if let Some(parameters) = &parameters {
        parameters.forget()?;
    }
    let mut removed = 0;
    for (_, name) in files()? {
        let file = from.join(name);
        if file.exists() {
            fs::remove_file(&file).context(|| file.display().to_string())?;
            removed += 1;
        }
    }
    if !options.place.system {
        // Only where nothing else is in them.
        let _ = fs::remove_dir(&from);
        let _ = from.parent().map(fs::remove_dir);
    }
    println!("removed {removed} files from {}", from.display());
    Ok(())
}

/// What is installed, and under which name.
fn files() -> Result<Vec<(PathBuf, String)>> {
    let name = |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut all = Vec::new();
    for component in build::components()? {
        all.push((component.file(), component.installed_name()));
    }
    let texts = build::help_files()?.into_iter().chain(build::api_files());
    let shadow = Some(build::shadow_verbs()).filter(|library| library.exists());
    let rest = texts.chain([build::program()]).chain(shadow);
    all.extend(rest.map(|file| (file.clone(), name(&file))));
    Ok(all)
}

/// The component folder of the installed Open MPI, moved from its prefix to another.
fn below(prefix: &Path) -> Result<PathBuf> {
    let folder = build::component_folder()?;
    let inside = folder.strip_prefix(build::prefix()?).map(Path::to_path_buf);
    let prefix = std::path::absolute(prefix).context(|| prefix.display().to_string())?;
    Ok(prefix.join(inside.unwrap_or_else(|_| "lib/openmpi".into())))
}

/// Whole or not at all: a job that starts meanwhile sees the old file or the new one.
fn copy(file: &Path, to: &Path) -> Result<()> {
    let what = || format!("copying {} to {}", file.display(), to.display());
    let name = to.file_name().unwrap_or_default();
    let temporary = to.with_file_name(format!(".{}.{}", name.display(), std::process::id()));
    // Whatever the umask was when it was built: it may be for others.
    let mode = if file.extension().is_none() { 0o755 } else { 0o644 };
    let done = fs::copy(file, &temporary)
        .and_then(|_| fs::set_permissions(&temporary, Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&temporary, to));
    done.inspect_err(|_| drop(fs::remove_file(&temporary))).context(what)
}

/// Does ompi_info find them?
fn prove(folder: &Path, searched: bool) -> Result<()> {
    let mut info = Command::new("ompi_info");
    info.args(["--parsable", "--param", "all", "all", "--level", "9"]);
    if searched {
        info.env_remove(build::COMPONENT_PATH);
    } else {
        info.env(build::COMPONENT_PATH, format!("{}:SYSTEM_DEFAULT", folder.display()));
    }
    let text = run::output(&mut info)?;
    for component in build::components()?.iter().filter(|component| component.is_openmpis()) {
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

/// Do PRRTE, and processes that its mpirun starts?
fn prove_runtime() -> Result<()> {
    let listed = run::output(&mut Command::new("prte_info"))?;
    let is_ours = |line: &str| line.contains("errmgr: correlated");
    if !listed.lines().any(is_ours) {
        fail!("the component of mpirun is installed, but prte_info does not list it:\n{listed}");
    }
    let mut mpirun = Command::new("mpirun");
    if sys::euid() == 0 {
        mpirun.arg("--allow-run-as-root");
    }
    mpirun.args(["-n", "1", "ompi_info", "--parsable", "--param", "vprotocol", "correlated"]);
    let text = run::output(mpirun.env_remove(build::COMPONENT_PATH))?;
    if !text.lines().any(|line| line.starts_with("mca:vprotocol:correlated:")) {
        fail!(
            "ompi_info finds the component, but not where mpirun starts it: something sets \
             mca_base_component_path (`mpirun -n 1 env | grep component_path`)"
        );
    }
    Ok(())
}
