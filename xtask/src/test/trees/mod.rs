//! `cargo xtask test --trees`: Open MPI built with `--with-rustbtl`, both versions, as they are by
//! default and in variants.
//!
//! The normal run has the parts of it that are quick: `prepare` on a tree that has just enough of
//! Open MPI to be recognised, the Rust core compiled from it without network, and a few tests over
//! versions that were built before (`tree/autotools.rs` keeps them by their content). Others it
//! leaves out, and says so: to build one takes about 10 minutes of processor time.

mod configure;
pub mod recovery;
mod restart;
mod variants;

use std::fs;
use std::path::Path;
use std::process::Command;

use super::local_storage;
use super::lost_output;
use super::mpi::{self, Over};
use super::node_failure;
use super::one_sided;
use super::one_sided_component;
use super::plan::PACKAGES;
use super::schedule::{Load, Task};
use super::scratch::Scratch;
use super::spare_nodes;
use super::summary::Tier;
use crate::error::{Context, Result, fail};
use crate::tree::{self, Installed, Variant, Version};
use crate::{deb, paths, run};

/// The quick part.
pub fn quick(tier: &mut Tier) {
    tier.check("prepare: everything once, nothing twice, nothing stale", prepare_is_exact);
    tier.check("configure: no, yes, and loud when something is missing", configure::decides);
    tier.check("the Rust core of a tree compiles without network", core_compiles);
    tier.check("a Debian package holds what an installation needs", debian_package);
}

/// Programs of tests/mpi that are enough for a normal run.
const SOME: [&str; 6] = ["ring", "halo", "wildcards", "coll_nonblocking", "persistent", "io"];

/// What a normal run does with versions that were built before; the others are left out.
pub fn built_before(tasks: &mut Vec<Task>) {
    for version in Version::ALL {
        let work = move |tier: &mut Tier| {
            if !tree::was_built(version) {
                tier.skip(&format!(
                    "Open MPI {0} built with rustbtl in it: `cargo xtask test --trees {0}` or \
                     --long builds it, which takes about 10 minutes of processor time",
                    version.name()
                ));
                return;
            }
            over(tier, version, Variant::Standard, |tier, installed| {
                recovery::run_one(tier, &Over::Tree(installed));
                spare_nodes::run_over(tier, &Over::Tree(installed), 1);
                mpi::run_some(tier, &Over::Tree(installed), |name| SOME.contains(&name));
            });
        };
        tasks.push(Task::new(name(version, Variant::Standard), Load::Jobs, &[], work));
    }
}

/// Everything, for one version or all, as it is by default, in its variants, or both.
pub fn all(tasks: &mut Vec<Task>, only: Option<Version>, variant: Option<Variant>) {
    let wanted = |other: Variant| variant.is_none_or(|variant| variant == other);
    for version in Version::ALL.into_iter().filter(|version| only.is_none_or(|o| o == *version)) {
        let variants = [Variant::Standard].into_iter().chain(version.variants().iter().copied());
        for variant in variants.filter(|variant| wanted(*variant)) {
            let work = move |tier: &mut Tier| {
                over(tier, version, variant, |tier, installed| match variant {
                    Variant::Standard => standard(tier, version, installed),
                    _ => variants::run(tier, version, variant, installed),
                });
            };
            tasks.push(Task::new(name(version, variant), Load::Jobs, &[PACKAGES], work));
        }
    }
}

fn name(version: Version, variant: Variant) -> String {
    let name = version.name();
    match variant {
        Variant::Standard => format!("Open MPI {name} built with --with-rustbtl"),
        _ => format!("Open MPI {name} built with --with-rustbtl, {}", variant.name()),
    }
}

/// Everything that there is, over a version as it is by default.
fn standard(tier: &mut Tier, version: Version, installed: &Installed) {
    if version == Version::V50 {
        tier.check("a job with ULFM is refused", || ulfm_is_refused(installed));
        one_sided::run_over(tier, &Over::Tree(installed));
        one_sided_component::run_over(tier, &Over::Tree(installed));
    } else {
        one_sided_component::run_one(tier, &Over::Tree(installed));
    }
    tier.check("a job goes on from a checkpoint", || restart::goes_on(installed));
    recovery::run(tier, &Over::Tree(installed));
    node_failure::guardians_over(tier, &Over::Tree(installed));
    local_storage::run_over(tier, &Over::Tree(installed));
    lost_output::run_over(tier, &Over::Tree(installed));
    spare_nodes::run_over(tier, &Over::Tree(installed), usize::MAX);
    mpi::run_over(tier, &Over::Tree(installed));
}

/// Builds a version, if that was not done, and tests it.
fn over(tier: &mut Tier, version: Version, variant: Variant, rest: impl Fn(&mut Tier, &Installed)) {
    let mut built = None;
    tier.prepare("build", || {
        built = Some(tree::build(version, variant)?);
        Ok(())
    });
    let Some(installed) = built else { return };
    tier.check("ompi_info lists component and parameters", || listed(&installed));
    tier.check("the user's command", || users_command(&installed));
    rest(tier, &installed);
}

/// A folder that looks like the source of Open MPI 5.0.
fn minimal_tree(scratch: &Scratch) -> Result<()> {
    let framework = scratch.0.join("ompi/mca/vprotocol");
    let what = || framework.display().to_string();
    fs::create_dir_all(&framework).context(what)?;
    fs::write(framework.join("vprotocol.h"), "").context(what)?;
    fs::write(scratch.0.join("VERSION"), "major=5\nminor=0\nrelease=7\n").context(what)
}

fn prepare_is_exact() -> Result<()> {
    let scratch = Scratch::new("tree")?;
    minimal_tree(&scratch)?;
    let (version, first) = tree::prepare(&scratch.0)?;
    if version != Version::V50 || first < 50 {
        fail!("prepare took the tree for {version:?} and wrote {first} files");
    }
    let component = scratch.0.join("ompi/mca/vprotocol/correlated");
    for name in ["configure.m4", "Makefile.am", "owner.txt", "sources.am", "rust/Cargo.lock"] {
        if !component.join(name).is_file() {
            fail!("prepare did not write {name}");
        }
    }
    // What is damaged is repaired, and nothing else is touched.
    let damaged = component.join("sources.am");
    fs::write(&damaged, "x").context(|| damaged.display().to_string())?;
    match tree::prepare(&scratch.0)? {
        (_, 1) => Ok(()),
        (_, again) => fail!("the second prepare wrote {again} files, not 1"),
    }
}

fn core_compiles() -> Result<()> {
    let scratch = Scratch::new("tree-core")?;
    minimal_tree(&scratch)?;
    tree::prepare(&scratch.0)?;
    let rust = scratch.0.join("ompi/mca/vprotocol/correlated/rust");
    let mut cargo = Command::new("cargo");
    // An empty home of cargo: nothing can come from its cache.
    cargo.current_dir(&rust).env("CARGO_HOME", scratch.0.join("cargo-home"));
    cargo.args(["check", "--quiet", "--offline", "--locked", "--package", "rustbtl-component"]);
    run::output(cargo.arg("--target-dir").arg(paths::target().join("tree-core"))).map(drop)
}

fn debian_package() -> Result<()> {
    let scratch = Scratch::new("deb")?;
    let package = deb::package(&scratch.0)?;
    let text = run::output(Command::new("dpkg-deb").arg("-c").arg(&package))?;
    for wanted in
        ["/mca_vprotocol_correlated.so", "/help-mca-vprotocol-correlated.txt", "/usr/bin/rustbtl"]
    {
        if !text.contains(wanted) {
            fail!("{} lacks {wanted}:\n{text}", package.display());
        }
    }
    Ok(())
}

fn listed(installed: &Installed) -> Result<()> {
    let mut info = installed.command("ompi_info");
    let text = run::output(info.args(["--param", "vprotocol", "correlated", "--level", "9"]))?;
    for wanted in ["sets", "log_budget", "checkpoint_dir", "recover"] {
        let wanted = &format!("\"vprotocol_correlated_{wanted}\"");
        if !text.contains(wanted) {
            fail!("ompi_info does not list {wanted}:\n{text}");
        }
    }
    Ok(())
}

/// Both would handle failures; the user must choose.
fn ulfm_is_refused(installed: &Installed) -> Result<()> {
    let ring = paths::root().join("tests/mpi/ring.c");
    let program = mpi::compile_over(&ring, &Over::Tree(installed))?;
    let mut mpirun = installed.command("mpirun");
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "--with-ft", "ulfm"]);
    mpirun.args(["--mca", "pml", "v", "--mca", "vprotocol", "correlated", "-n", "2"]);
    let output = mpirun.arg(program).output().context(|| "starting mpirun".into())?;
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.success() || !text.contains("With ULFM the program handles failures itself") {
        fail!("it ended with {} and said:\n{text}", output.status);
    }
    Ok(())
}

/// Word for word what the README says, and that it is our component which does the work.
fn users_command(installed: &Installed) -> Result<()> {
    let ring = paths::root().join("tests/mpi/ring.c");
    let program = mpi::compile_over(&ring, &Over::Tree(installed))?;
    let scratch = Scratch::new("users-command")?;
    let mut mpirun = installed.command("mpirun");
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "--mca", "pml", "v"]);
    mpirun.args(["--mca", "vprotocol", "correlated"]);
    mpirun.arg("--mca").arg("vprotocol_correlated_report").arg(&scratch.0);
    run::output(mpirun.args(["-n", "4"]).arg(program))?;
    for rank in 0..4 {
        let report = scratch.0.join(format!("rank-{rank}.json"));
        if !Path::new(&report).is_file() {
            fail!("rank {rank} wrote no report: did it run over the component?");
        }
    }
    Ok(())
}
