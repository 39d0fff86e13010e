//! Building Open MPI with rustbtl in it, in the cache, and only as much of it as has to be.
//!
//! ```text
//! CACHE/ompi/VERSION/src                the tree: unpacked once, prepared and autogen'ed
//! CACHE/ompi/VERSION/build[-VARIANT]    out of tree; object files of Open MPI stay
//! CACHE/ompi/VERSION/install[-VARIANT]  what tests use
//! ```
//! Each step leaves a file with a key of what it was made from. Keys hold what the step before has
//! made, so a change begins where it matters: a source of ours costs one component, a line of
//! configure.m4 costs autogen, configure and what make then finds changed.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use sha2::{Digest, Sha256};

use super::files::hex;
use super::{Variant, Version, prepare, source};
use crate::error::{Context, Result, fail};
use crate::{run, setup, sys};

/// Debian packages that only this needs.
const PACKAGES: [(&str, &str); 9] = [
    ("autoconf", "configure of Open MPI"),
    ("automake", "Makefile.in of Open MPI"),
    ("libtool", "libraries of Open MPI"),
    ("flex", "parsers of Open MPI"),
    ("perl", "autogen.pl of Open MPI"),
    ("curl", "its source"),
    ("xz-utils", "unpacking it"),
    ("libhwloc-dev", "Open MPI's view of the machine"),
    ("libpmix-dev", "PMIx for Open MPI 4.1; libevent with it"),
];

/// What is left out: it takes long to build, and is not where rustbtl could show.
const SLIM: [&str; 9] = [
    "--with-rustbtl",
    "--enable-mpi-fortran=no",
    "--disable-oshmem",
    "--disable-io-romio",
    "--without-ucx",
    "--without-ofi",
    "--without-psm2",
    "--with-hwloc=external",
    "--with-libevent=external",
];

/// A variant shows that it works, not how fast: this takes half as long to compile.
const QUICKLY: &str = "CFLAGS=-O1";

/// More for each version. PRRTE wants a newer PMIx than Debian 12 has; with 4.1 it is Debian's, as
/// in Debian's own Open MPI.
fn configure_arguments(version: Version, variant: Variant) -> Vec<String> {
    let debians_pmix = format!("--with-pmix=/usr/lib/{}-linux-gnu/pmix2", env::consts::ARCH);
    let mut arguments: Vec<String> = SLIM.map(str::to_string).to_vec();
    arguments.extend(match version {
        Version::V41 => [debians_pmix, "--without-verbs".into()],
        Version::V50 => ["--with-pmix=internal".into(), "--with-prrte=internal".into()],
    });
    let variant: &[&str] = match variant {
        Variant::Standard => &[],
        Variant::Dso => &["--enable-mca-dso", QUICKLY],
        Variant::Static => &["--enable-mca-static", QUICKLY],
        Variant::NoFt => &["--with-ft=no", QUICKLY],
    };
    arguments.extend(variant.iter().map(ToString::to_string));
    arguments
}

/// An Open MPI that can be used.
pub struct Installed {
    /// Where it was installed.
    pub prefix: PathBuf,
}

impl Installed {
    /// A program of it, that finds its libraries and nothing of the system's Open MPI.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.prefix.join("bin").join(name));
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = [self.prefix.join("bin")].into_iter().chain(env::split_paths(&path));
        command.env("PATH", env::join_paths(folders).expect("parts of a list that was split"));
        command.env("OPAL_PREFIX", &self.prefix);
        command
    }
}

/// Where things are for a version and a variant of it.
struct Places {
    top: PathBuf,
    source: PathBuf,
    build: PathBuf,
    prefix: PathBuf,
}

impl Places {
    fn new(version: Version, variant: Variant) -> Result<Places> {
        let top = source::cache()?.join("ompi").join(source::tarball(version).version);
        let suffix = match variant {
            Variant::Standard => String::new(),
            _ => format!("-{}", variant.name()),
        };
        Ok(Places {
            source: top.join("src"),
            build: top.join(format!("build{suffix}")),
            prefix: top.join(format!("install{suffix}")),
            top,
        })
    }

    fn key_file(&self, step: &str) -> PathBuf {
        let name = self.build.file_name().unwrap_or_default().to_string_lossy();
        match step {
            "autogen" => self.top.join("autogen.key"),
            _ => self.top.join(format!("{name}-{step}.key")),
        }
    }

    /// Runs a step unless its key is what it was when the step last succeeded.
    fn step(&self, step: &str, key: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let file = self.key_file(step);
        if fs::read_to_string(&file).is_ok_and(|before| before == key) {
            return Ok(());
        }
        let _ = fs::remove_file(&file);
        let start = Instant::now();
        work()?;
        eprintln!("ompi-tree: {step} took {:.0} s", start.elapsed().as_secs_f64());
        fs::write(&file, key).context(|| file.display().to_string())
    }
}

/// Was it built before, from whatever state of our sources?
pub fn was_built(version: Version) -> bool {
    let places = Places::new(version, Variant::Standard);
    places.is_ok_and(|places| places.key_file("flags").exists())
}

/// Builds what has to be built and installs it.
pub fn build(version: Version, variant: Variant) -> Result<Installed> {
    if variant != Variant::Standard && !version.variants().contains(&variant) {
        fail!("Open MPI {} is not built as `{}` here", version.name(), variant.name());
    }
    setup::install(&PACKAGES)?;
    let places = Places::new(version, variant)?;
    fs::create_dir_all(&places.top).context(|| places.top.display().to_string())?;
    let lock = places.top.join(".lock");
    let file = File::create(&lock).context(|| lock.display().to_string())?;
    sys::lock(&file).context(|| format!("locking {}", lock.display()))?;

    if !places.source.exists() {
        source::tarball(version).unpack(&places.source)?;
    }
    let prepared = prepare::run(&places.source)?;
    places.step("autogen", &prepared.autogen_key, || {
        logged(Command::new("./autogen.pl").arg("--force"), &places.source, "autogen")
    })?;
    let arguments = configure_arguments(version, variant);
    let key = combined(&[&prepared.autogen_key, &arguments.join(" ")]);
    places.step("configure", &key, || configure(&places, &arguments))?;
    places.step("make", &key, || {
        make(&places.build, &[], "make")?;
        make(&places.build, &["install"], "install")
    })?;
    let key = combined(&[&key, &prepared.flags_key]);
    let parts = parts(version, variant);
    places.step("flags", &key, || {
        parts.iter().try_for_each(|part| {
            make(&places.build.join(part.component), &["mostlyclean"], "clean")
        })
    })?;
    parts.iter().try_for_each(|part| component(&places, part))?;
    let installed = Installed { prefix: places.prefix };
    check_listed(&installed)?;
    Ok(installed)
}

fn configure(places: &Places, arguments: &[String]) -> Result<()> {
    fs::create_dir_all(&places.build).context(|| places.build.display().to_string())?;
    let mut configure = Command::new(places.source.join("configure"));
    configure.arg(format!("--prefix={}", places.prefix.display())).args(arguments);
    logged(&mut configure, &places.build, "configure")
}

/// A component of ours, and where it is a part of a library, that and its folder.
struct Part {
    component: &'static str,
    library: Option<(&'static str, &'static str)>,
}

fn parts(version: Version, variant: Variant) -> [Part; 2] {
    let errmgr = prepare::errmgr(version);
    let files = match version {
        Version::V41 => variant != Variant::Static,
        Version::V50 => variant == Variant::Dso,
    };
    let (mpi, runtime) = match version {
        _ if files => (None, None),
        Version::V41 => (Some(("ompi", "libmpi.la")), Some(("orte", "libopen-rte.la"))),
        Version::V50 => (Some(("ompi", "libmpi.la")), Some(("3rd-party/prrte/src", "libprrte.la"))),
    };
    [
        Part { component: prepare::COMPONENT, library: mpi },
        Part { component: errmgr, library: runtime },
    ]
}

/// Builds and installs a component of ours alone: quick when nothing of it has changed.
fn component(places: &Places, part: &Part) -> Result<()> {
    let folder = places.build.join(part.component);
    make(&folder, &[], "component")?;
    if let Some((folder, library)) = part.library {
        let whole = places.build.join(folder);
        make(&whole, &[library], "library")?;
        make(&whole, &["install-libLTLIBRARIES"], "library-install")?;
    }
    make(&folder, &["install"], "component-install")
}

fn make(folder: &Path, targets: &[&str], log: &str) -> Result<()> {
    let jobs = thread::available_parallelism().map_or(2, |n| n.get());
    let mut make = Command::new("make");
    logged(make.arg(format!("-j{jobs}")).args(targets), folder, log)
}

/// Runs it with its output in a file, whose end is shown if it fails.
fn logged(command: &mut Command, folder: &Path, name: &str) -> Result<()> {
    let file = folder.join(format!("rustbtl-{name}.log"));
    let what = || format!("{} (output in {})", run::line(command), file.display());
    let log = File::create(&file).context(|| file.display().to_string())?;
    let both = log.try_clone().context(|| file.display().to_string())?;
    let title = what();
    command.current_dir(folder).stdin(Stdio::null()).stdout(log).stderr(both);
    // Settings of the cargo that runs us are not for what is built here.
    for name in ["CARGO", "CARGO_MANIFEST_DIR", "RUSTC", "MAKEFLAGS"] {
        command.env_remove(name);
    }
    let status = command.status().context(|| title.clone())?;
    if status.success() {
        return Ok(());
    }
    let text = fs::read(&file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let end = &lines[lines.len().saturating_sub(20)..];
    fail!("{title} ended with {status}:\n{}", end.join("\n"));
}

/// Does the new Open MPI know the component?
fn check_listed(installed: &Installed) -> Result<()> {
    let mut info = installed.command("ompi_info");
    let text = run::output(info.args(["--parsable", "--param", "vprotocol", "all"]))?;
    if !text.lines().any(|line| line.starts_with("mca:vprotocol:correlated:")) {
        fail!("ompi_info of {} does not list vprotocol correlated", installed.prefix.display());
    }
    Ok(())
}

fn combined(keys: &[&str]) -> String {
    hex(&Sha256::digest(keys.join("\n")))
}
