//! Dropped into Debian 13's own Open MPI 5.0: installed as users and administrators do, in a tree
//! of its packages, and taken back; jobs over it that lose programs, nodes, or everything.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::job::TestJob;
use super::mpi::{self, InTree, Over};
use super::scratch::Scratch;
use super::summary::Tier;
use super::trees::recovery;
use super::{
    btl, errors, file_contents, local_storage, lost_output, node_failure, node_names,
    one_sided_component, signals, slurm_cluster, spare_nodes, spawned,
};
use crate::debian;
use crate::error::{Context, Result, fail};
use crate::{paths, run, setup};

/// What is done in the tree, on one node, with a private layer above it.
const SCRIPTS: [(&str, &str); 5] = [
    ("installed by a user (root), and taken back", include_str!("user.sh")),
    ("installed by a user without rights, with parameters of PMIx", include_str!("rightless.sh")),
    ("installed for all users, and taken back", include_str!("system.sh")),
    ("installed as a Debian package, and removed", include_str!("package.sh")),
    ("a folder of its own, named in the environment", include_str!("prefix.sh")),
];

/// What all of them use.
const COMMON: &str = include_str!("common.sh");

/// Of our programs some are enough where this is one tier of many.
const SOME: [&str; 6] = ["ring", "halo", "wildcards", "coll_all", "rma_active", "one_sided_flush"];

/// Runs the tier. With `long` our programs also run on three nodes.
pub fn run(tier: &mut Tier, long: bool) {
    let mut made = debian::make();
    let passed = tier.check("a tree of its packages", || {
        made.as_ref().map(drop).map_err(|failure| crate::error::Failure(failure.0.clone()))
    });
    let Ok(tree) = &mut made else { return };
    let tree: &Path = tree;
    if !passed || !tier.check("components for its Open MPI", || debian::components(tree)) {
        return;
    }
    for (title, script) in SCRIPTS {
        tier.check(title, || in_tree(tree, script));
    }
    let over = Over::Debian(InTree::new(tree));
    tier.check("jobs run over our component: 1 to 3 nodes", || is_ours(tree, &[1, 2, 3]));
    tier.check("a program hides libmpi's symbols", || hides_mpi(tree));
    recovery::run(tier, &over);
    node_failure::guardians_over(tier, &over);
    local_storage::run_over(tier, &over);
    spare_nodes::run_over(tier, &over, usize::MAX);
    lost_output::run_over(tier, &over);
    signals::suspended_over(tier, &over);
    spawned::run_over(tier, &over);
    slurm_cluster::run_over(tier, &over, true);
    file_contents::run_over(tier, &over);
    node_names::run_one(tier, &over);
    tier.check("another PML is selected", || {
        errors::other_pml(program("xtask/programs/exchange.c", &over)?.as_ref(), &over)
    });
    tier.check("another release of Open MPI is refused", || {
        errors::other_release(program("tests/mpi/ring.c", &over)?.as_ref(), &over)
    });
    let many = Over::Debian(InTree { three_nodes: long, ..InTree::new(tree) });
    mpi::run_over(tier, &many);
    btl::run_over(tier, InTree::new(tree));
    one_sided_component::run_over(tier, &many);
    if long {
        tier.check("packages for both: lintian finds no error", || without_errors(tree));
    }
}

/// What a normal run does where there is a tree.
pub fn run_some(tier: &mut Tier) {
    let Some(tree) = debian::made() else {
        tier.skip(
            "Debian 13: `cargo xtask test --debian13` or --long makes a tree of its packages (as \
             root, from Debian's archive: minutes, and 700 MB), which then stays",
        );
        return;
    };
    if !tier.check("components for its Open MPI", || debian::components(&tree)) {
        return;
    }
    let (title, script) = SCRIPTS[0];
    tier.check(title, || in_tree(&tree, script));
    let over = Over::Debian(InTree::new(&tree));
    tier.check("jobs run over our component: 2 nodes", || is_ours(&tree, &[2]));
    tier.check("a program hides libmpi's symbols", || hides_mpi(&tree));
    recovery::run_one(tier, &over);
    spare_nodes::run_over(tier, &over, 1);
    mpi::run_some(tier, &over, |name| SOME.contains(&name));
    one_sided_component::run_one(tier, &over);
}

/// lintian about the packages for the installed Open MPI and for the tree's.
fn without_errors(tree: &Path) -> Result<()> {
    setup::install(&[("lintian", "what is wrong with a Debian package")])?;
    let scratch = Scratch::new("lintian")?;
    let me = env::current_exe().context(|| "this program's file".into())?;
    let words = ["deb".as_ref(), "--output".as_ref(), scratch.0.as_os_str()].map(OsStr::to_owned);
    let inside = [&[me.clone().into_os_string()], words.as_slice()].concat();
    let mut here = Command::new(&me);
    here.args(&words);
    for mut build in [here, debian::inside(tree, &inside)?] {
        // The project has no address of its own.
        run::output(build.env("DEBEMAIL", "somebody@debian.org"))?;
    }
    let files = fs::read_dir(&scratch.0).context(|| scratch.0.display().to_string())?;
    let files: Vec<_> = files.flatten().map(|file| file.path()).collect();
    let packages = files.iter().filter(|file| file.extension().is_some_and(|end| end == "deb"));
    if packages.clone().count() != 2 {
        fail!("there should be two packages: {files:?}");
    }
    let mut lintian = Command::new("lintian");
    run::output(lintian.args(["--fail-on", "error", "--allow-root"]).args(packages)).map(drop)
}

fn program(source: &str, over: &Over) -> Result<String> {
    let program = mpi::compile_over(&paths::root().join(source), over)?;
    Ok(program.display().to_string())
}

/// Runs a script as process of the first node: it fails where its exit code is not 0.
fn in_tree(tree: &Path, script: &str) -> Result<()> {
    let scratch = Scratch::new("debian")?;
    let over = Over::Debian(InTree::new(tree));
    let common = scratch.0.join("common.sh");
    fs::write(&common, COMMON).context(|| common.display().to_string())?;
    let text = format!(". ./common.sh\n{script}");
    let ring = format!("RING={}", program("tests/mpi/ring.c", &over)?);
    let long = format!("LONG={}", program("tests/workloads/hash_ring.c", &over)?);
    let job = TestJob::new(1, 4, &["sh", "-euc", &text]);
    let mut job = over.job(job).with(&["--script", "--env", &ring, "--env", &long]);
    job.folder = scratch.0.clone();
    job.seconds = 120;
    let outcome = job.run()?;
    outcome.must(outcome.code == 0, "the script did not come to its end")?;
    outcome.must(outcome.stdout.ends_with("passed\n"), "the script did not pass")
}

/// It is not linked with anything of Open MPI's, so it is compiled outside.
fn hides_mpi(tree: &Path) -> Result<()> {
    let scratch = Scratch::new("debian")?;
    let program = scratch.0.join("hides_mpi").display().to_string();
    let mut compiler = Command::new("cc");
    compiler.arg("-o").arg(&program).arg(paths::root().join("xtask/programs/hides_mpi.c"));
    run::output(compiler.arg("-ldl"))?;
    let folder = scratch.0.display().to_string();
    let report = ["--mca", "vprotocol_correlated_report", &folder];
    let job = TestJob::new(1, 2, &[&program]);
    let outcome = Over::Debian(InTree::new(tree)).job(job).with(&report).run()?;
    outcome.must(outcome.code == 0, "the job failed")?;
    must_have_reports(&scratch, 2)?;
    node_failure::must_be_clean(&outcome)
}

/// So many ranks have run over our component.
fn must_have_reports(scratch: &Scratch, ranks: usize) -> Result<()> {
    let mut find = Command::new("find");
    let reports = run::output(find.arg(&scratch.0).args(["-name", "rank-*.json"]))?;
    if reports.lines().count() != ranks {
        fail!("not every rank has written a report:\n{reports}");
    }
    Ok(())
}

/// Every rank writes a report, and the result is that of a job of stock Open MPI.
fn is_ours(tree: &Path, numbers: &[u32]) -> Result<()> {
    let over = Over::Debian(InTree::new(tree));
    let ring = program("tests/mpi/ring.c", &over)?;
    for &nodes in numbers {
        let scratch = Scratch::new("debian")?;
        let stock = over.job(TestJob::new(nodes, 2, &[&ring])).with(&["--plain"]).run()?;
        stock.must(stock.code == 0 && stock.stdout.contains("HASH"), "stock's job failed")?;
        let folder = scratch.0.display().to_string();
        let report = ["--mca", "vprotocol_correlated_report", &folder];
        let ours = over.job(TestJob::new(nodes, 2, &[&ring])).with(&report).run()?;
        ours.must(ours.code == 0 && ours.stdout == stock.stdout, "not as stock's")?;
        node_failure::must_be_clean(&ours)?;
        must_have_reports(&scratch, 2 * nodes as usize)?;
    }
    Ok(())
}
