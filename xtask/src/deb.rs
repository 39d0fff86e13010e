//! `cargo xtask deb`: a Debian package that puts the components into the stock installation.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::build;
use crate::error::{Context, Result, fail};
use crate::install::Parameters;
use crate::{paths, run};

/// The package's name.
const NAME: &str = "openmpi-rustbtl";

/// The command line of `cargo xtask deb`.
#[derive(Args)]
pub struct DebOptions {
    /// Where the package goes
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

/// Builds it and says where it is.
pub fn run(options: &DebOptions) -> Result<()> {
    let folder = options.output.clone().unwrap_or_else(paths::out);
    println!("{}", package(&folder)?.display());
    Ok(())
}

/// Builds the package for the installed Open MPI, which must be Debian's.
pub fn package(folder: &Path) -> Result<PathBuf> {
    build::ensure_optimised()?;
    let library = owner(&build::component_folder()?)?;
    let openmpi = field(&library, "Version")?;
    let architecture = field(&library, "Architecture")?;
    let stage = paths::target().join("deb");
    let _ = fs::remove_dir_all(&stage);
    let inside = build::component_folder()?;
    let components = stage.join(inside.strip_prefix("/").unwrap_or(&inside));
    for component in build::components()? {
        copy(&component.file(), &components.join(component.installed_name()))?;
    }
    // Beside the components, where they look for it; the user finds it in PATH.
    for file in build::help_files()?.into_iter().chain([build::program()]) {
        copy(&file, &components.join(file.file_name().unwrap_or_default()))?;
    }
    let programs = stage.join("usr/bin");
    fs::create_dir_all(&programs).context(|| programs.display().to_string())?;
    symlink(inside.join(build::PROGRAM), programs.join(build::PROGRAM))
        .context(|| programs.display().to_string())?;
    let documents = stage.join("usr/share/doc").join(NAME);
    fs::create_dir_all(&documents).context(|| documents.display().to_string())?;
    fs::copy(paths::root().join("LICENSE"), documents.join("copyright"))
        .context(|| documents.display().to_string())?;
    let control = stage.join("DEBIAN");
    fs::create_dir_all(&control).context(|| control.display().to_string())?;
    let mut depends = Vec::new();
    if build::openmpi::has_prrte()? {
        let parameters = Parameters::of_system()?;
        let file = parameters.file();
        depends.push(owner_of(file, "libpmix")?);
        let place = stage.join(file.strip_prefix("/").unwrap_or(file));
        let folder = place.parent().unwrap_or(&stage);
        fs::create_dir_all(folder).context(|| folder.display().to_string())?;
        let text = parameters.text_with(&inside)?;
        fs::write(&place, text).context(|| place.display().to_string())?;
        let [before, after] = diversion(file);
        script(&control.join("preinst"), &before)?;
        script(&control.join("postrm"), &after)?;
    }
    let text = control_file(&library, &openmpi, &architecture, &depends);
    fs::write(control.join("control"), text).context(|| control.display().to_string())?;

    fs::create_dir_all(folder).context(|| folder.display().to_string())?;
    let file = folder.join(format!("{NAME}_{}_{architecture}.deb", version(&openmpi)));
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.args(["--build", "--root-owner-group"]).arg(&stage).arg(&file);
    run::to_stderr(&mut dpkg)?;
    run::check(&mut dpkg)?;
    Ok(file)
}

/// Our version, and that of the Open MPI that it was compiled for.
fn version(openmpi: &str) -> String {
    // Debian sorts what follows a tilde before the release itself.
    let version = env!("CARGO_PKG_VERSION").replace('-', "~");
    format!("{version}+openmpi{}", upstream(openmpi))
}

/// `4.1.4` of `4.1.4-3+b1`.
fn upstream(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    version.split('-').next().unwrap_or(version)
}

/// Components are compiled against internals: they fit this upstream version of Open MPI only.
fn control_file(library: &str, openmpi: &str, architecture: &str, more: &[String]) -> String {
    let fits = upstream(openmpi);
    let more: String = more.iter().map(|package| format!(", {package}")).collect();
    format!(
        "Package: {NAME}\nVersion: {}\nArchitecture: {architecture}\nSection: net\n\
         Priority: optional\nMaintainer: rustbtl maintainers <rustbtl@localhost>\n\
         Depends: {library} (>= {fits}), {library} (<< {fits}+), libc6{more}\n\
         Description: fault tolerance for unchanged MPI programs (component of Open MPI)\n \
         The vprotocol component \"correlated\": mpirun --mca pml v --mca vprotocol correlated\n",
        version(openmpi)
    )
}

/// Scripts of the package: the file that another one has at this place goes aside as long as this
/// one is installed. Updates change it there.
fn diversion(file: &Path) -> [String; 2] {
    let file = file.display();
    let divert = |how: &str| {
        format!("dpkg-divert --package {NAME} {how} --rename --divert {file}.distrib {file}")
    };
    let script = |when: &str, how: &str| {
        format!("#!/bin/sh\nset -e\ncase \"$1\" in\n{when}) {} ;;\nesac\n", divert(how))
    };
    [script("install|upgrade", "--add"), script("remove|abort-install|disappear", "--remove")]
}

fn script(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text)
        .and_then(|()| fs::set_permissions(file, fs::Permissions::from_mode(0o755)))
        .context(|| file.display().to_string())
}

/// The package that has the folder.
fn owner(folder: &Path) -> Result<String> {
    owner_of(folder, "libopenmpi")
}

fn owner_of(folder: &Path, start: &str) -> Result<String> {
    let text = run::output(Command::new("dpkg-query").arg("-S").arg(folder))
        .context(|| format!("{} is not of a Debian package", folder.display()))?;
    let is_library = |name: &&str| name.starts_with(start) && !name.contains("-dev");
    let before = text.lines().filter_map(|line| line.split_once(": "));
    let mut names = before.flat_map(|(names, _)| names.split(", "));
    let Some(name) = names.find(is_library) else {
        fail!("no package {start}… owns {}:\n{text}", folder.display());
    };
    Ok(name.split(':').next().unwrap_or(name).to_string())
}

fn field(package: &str, name: &str) -> Result<String> {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", &format!("${{{name}}}"), package]);
    run::output(&mut query)
}

fn copy(file: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().unwrap_or(to);
    fs::create_dir_all(folder).context(|| folder.display().to_string())?;
    fs::copy(file, to).map(drop).context(|| to.display().to_string())?;
    let mode = if file.extension().is_none() { "0755" } else { "0644" };
    run::check(Command::new("chmod").arg(mode).arg(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_fits_one_upstream_version() {
        assert_eq!(upstream("4.1.4-3+b1"), "4.1.4");
        assert_eq!(upstream("1:5.0.7-1"), "5.0.7");
        let control = control_file("libopenmpi3", "4.1.4-3+b1", "amd64", &[]);
        assert!(
            control.contains("Depends: libopenmpi3 (>= 4.1.4), libopenmpi3 (<< 4.1.4+), libc6")
        );
    }
}
