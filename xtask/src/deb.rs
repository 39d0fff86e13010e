//! `cargo xtask deb`: a Debian package that puts the components into the stock installation.

use std::collections::BTreeSet;
use std::env;
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
    let shadow = Some(build::shadow_verbs()).filter(|library| library.exists());
    for file in build::help_files()?.into_iter().chain([build::program()]).chain(shadow) {
        copy(&file, &components.join(file.file_name().unwrap_or_default()))?;
    }
    let programs = stage.join("usr/bin");
    fs::create_dir_all(&programs).context(|| programs.display().to_string())?;
    let program = inside.join(build::PROGRAM);
    let below_usr = program.strip_prefix("/usr").unwrap_or(&program);
    symlink(Path::new("..").join(below_usr), programs.join(build::PROGRAM))
        .context(|| programs.display().to_string())?;
    let needed = needed(&components)?;
    let version = version(&openmpi);
    documents(&stage, &version)?;
    manual(&stage)?;
    let control = stage.join("DEBIAN");
    fs::create_dir_all(&control).context(|| control.display().to_string())?;
    let mut depends = needed;
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
    let text = control_file(&library, &version, &openmpi, &architecture, &depends);
    fs::write(control.join("control"), text).context(|| control.display().to_string())?;

    fs::create_dir_all(folder).context(|| folder.display().to_string())?;
    let file = folder.join(format!("{NAME}_{version}_{architecture}.deb"));
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
fn control_file(
    library: &str,
    version: &str,
    openmpi: &str,
    architecture: &str,
    more: &[String],
) -> String {
    let fits = upstream(openmpi);
    let more: String = more.iter().map(|package| format!(", {package}")).collect();
    format!(
        "Package: {NAME}\nVersion: {version}\nArchitecture: {architecture}\nSection: net\n\
         Priority: optional\nMaintainer: {}\n\
         Depends: openmpi-bin, {library} (>= {fits}), {library} (<< {fits}+){more}\n\
         Description: fault tolerance for unchanged MPI programs\n \
         A component of Open MPI: messages of a job are logged, its processes are\n \
         saved, and when a node fails only the ranks of that node are restarted.\n \
         Use: mpirun --mca pml v --mca vprotocol correlated\n",
        maintainer()
    )
}

/// Who builds the package, as Debian's own tools are told.
fn maintainer() -> String {
    let told = |names: &[&str]| {
        names.iter().find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()))
    };
    let name = told(&["DEBFULLNAME"]).unwrap_or_else(|| "rustbtl authors".into());
    let address = told(&["DEBEMAIL", "EMAIL"]).unwrap_or_else(|| "rustbtl@localhost".into());
    format!("{name} <{address}>")
}

/// Packages of the libraries that our files need, as the C library's version in their symbols and
/// as dpkg say.
fn needed(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).context(|| folder.display().to_string())?;
    let files = entries.flatten().map(|entry| entry.path());
    let mut packages = BTreeSet::new();
    let mut libc = (0, 0);
    for file in files.filter(|file| file.extension().is_none_or(|end| end == "so")) {
        let symbols = run::output(Command::new("nm").arg("-D").arg(&file))?;
        libc = libc.max(newest_libc(&symbols));
        for line in run::output(Command::new("ldd").arg(&file))?.lines() {
            let library = line.split_whitespace().find(|word| word.starts_with('/'));
            let Some(library) = library.map(Path::new) else { continue };
            let name = library.file_name().unwrap_or_default().to_string_lossy();
            let mut query = Command::new("dpkg-query");
            // A file has several names where /lib is a link.
            let owners = run::output(query.arg("-S").arg(format!("*/{name}")))?;
            let same = |file: &Path| file.canonicalize().ok() == library.canonicalize().ok();
            let found = owners.lines().filter_map(owner_in).filter(|(_, file)| same(file));
            packages.extend(found.map(|(package, _)| package));
        }
    }
    let (major, minor) = libc;
    let named = |package: String| match package.as_str() {
        "libc6" => format!("libc6 (>= {major}.{minor})"),
        _ => package,
    };
    Ok(packages.into_iter().map(named).collect())
}

/// The package, and its file, in a line of `dpkg-query -S`, which also names diversions.
fn owner_in(line: &str) -> Option<(String, &Path)> {
    let (packages, file) = line.rsplit_once(": ")?;
    let package = packages.split([':', ',']).next().filter(|name| !name.contains(' '))?;
    Some((package.to_string(), Path::new(file)))
}

/// The newest version of glibc among symbols.
fn newest_libc(symbols: &str) -> (u32, u32) {
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let mut parts = rest[..end].split('.').map(|part| part.parse().ok());
        Some((parts.next()??, parts.next()??))
    });
    versions.max().unwrap_or_default()
}

/// Licence and changes.
fn documents(stage: &Path, version: &str) -> Result<()> {
    let to = stage.join("usr/share/doc").join(NAME);
    fs::create_dir_all(&to).context(|| to.display().to_string())?;
    let [licence, changes] = ["LICENSE", "CHANGELOG.md"].map(|name| paths::root().join(name));
    fs::copy(licence, to.join("copyright")).context(|| to.display().to_string())?;
    let mut date = Command::new("date");
    match env::var("SOURCE_DATE_EPOCH") {
        Ok(seconds) => date.args(["-R", "-d", &format!("@{seconds}")]),
        Err(_) => date.args(["-R", "-r"]).arg(&changes),
    };
    let date = run::output(date.env("LC_ALL", "C"))?;
    let text = format!(
        "{NAME} ({version}) unstable; urgency=medium\n\n  * What has changed is in \
         CHANGELOG.md.gz beside this file.\n\n -- {}  {}\n",
        maintainer(),
        date.trim()
    );
    let file = to.join("changelog");
    fs::write(&file, text).context(|| file.display().to_string())?;
    compress(&file)?;
    let file = to.join("CHANGELOG.md");
    fs::copy(changes, &file).context(|| file.display().to_string())?;
    compress(&file)
}

/// The pages of docs/man.
fn manual(stage: &Path) -> Result<()> {
    let (from, to) = (paths::root().join("docs/man"), stage.join("usr/share/man/man1"));
    fs::create_dir_all(&to).context(|| to.display().to_string())?;
    for page in fs::read_dir(&from).context(|| from.display().to_string())?.flatten() {
        let file = to.join(page.file_name());
        fs::copy(page.path(), &file).context(|| file.display().to_string())?;
        compress(&file)?;
    }
    Ok(())
}

/// In place, with nothing in it that depends on when.
fn compress(file: &Path) -> Result<()> {
    run::check(Command::new("chmod").arg("0644").arg(file))?;
    run::check(Command::new("gzip").args(["-9n"]).arg(file))
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
    if file.extension().is_none_or(|end| end == "so") {
        run::check(Command::new("strip").arg("--strip-unneeded").arg(to))?;
    }
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
        let more = ["libc6 (>= 2.34)".to_string()];
        let control = control_file("libopenmpi3", "0.2", "4.1.4-3+b1", "amd64", &more);
        let wanted = "libopenmpi3 (>= 4.1.4), libopenmpi3 (<< 4.1.4+), libc6 (>= 2.34)\n";
        assert!(control.contains(&format!("Depends: openmpi-bin, {wanted}")), "{control}");
    }

    #[test]
    fn an_owner_is_no_diversion() {
        let owner = |line| owner_in(line).map(|(package, _)| package);
        assert_eq!(owner("libc6:amd64: /lib64/ld.so").as_deref(), Some("libc6"));
        assert_eq!(owner("libm1, libm2: /lib/libm.so").as_deref(), Some("libm1"));
        assert_eq!(owner("diversion by libc6 from: /lib64/ld.so"), None);
    }

    #[test]
    fn the_newest_glibc_counts_by_numbers() {
        assert_eq!(newest_libc("U a@GLIBC_2.4\nU b@GLIBC_2.34\nU c@GLIBC_2.2.5\n"), (2, 34));
        assert_eq!(newest_libc("U a\n"), (0, 0));
    }
}
