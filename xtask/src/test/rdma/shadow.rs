//! Shadow verbs over two Soft-RoCE adapters: programs that call libibverbs, while all of their
//! objects are made again under traffic.

use super::{in_folder, said};
use crate::error::{Context, Result, fail};
use crate::test::scratch::Scratch;
use crate::test::summary::Tier;
use crate::{paths, run};
use std::fs;
use std::process::Command;

const ORDERS: &str = "rebuild rebuild keep rebuild rebuild";
/// Of these, that make objects again.
const REBUILDS: usize = 4;

/// Programs of perftest: sends, writes, reads and atomics, each with a number of iterations.
const PERFTEST: [(&str, &str); 4] = [
    ("ib_send_lat", "-s 64 -n 20000"),
    ("ib_write_bw", "-s 65536 -n 1500"),
    ("ib_read_bw", "-s 65536 -n 1500"),
    ("ib_atomic_lat", "-n 60000"),
];

/// All cases.
pub fn run(tier: &mut Tier) {
    tier.check("Soft-RoCE: ibv_rc_pingpong through rebuilds", || pingpong(""));
    tier.check("Soft-RoCE: ibv_rc_pingpong with events through rebuilds", || pingpong("-e"));
    for (program, options) in PERFTEST {
        tier.check(&format!("Soft-RoCE: {program} through rebuilds"), || {
            perftest(program, options)
        });
    }
    tier.check("Soft-RoCE: everything at once through rebuilds", torture);
    tier.check("Soft-RoCE: two processes without MPI are killed and restored, twice", guarded);
}

/// The folder of a machine's job: the library is in it.
fn job(script: &str) -> Result<Scratch> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--package", "rustbtl-verbs", "--lib"]);
    cargo.current_dir(paths::root());
    run::output(&mut cargo)?;
    let scratch = Scratch::new("rdma")?;
    let library = "librustbtl_verbs.so";
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| paths::root().join("target"), Into::into);
    let built = target.join("debug").join(library);
    fs::copy(&built, scratch.0.join(library)).context(|| built.display().to_string())?;
    let functions = paths::root().join("tests/rdma/shadow.sh");
    let script =
        format!("library=/tmp/out/{library}\n. {}\n{script}\necho passed\n", functions.display());
    let job = scratch.0.join("job.sh");
    fs::write(&job, script).context(|| job.display().to_string())?;
    Ok(scratch)
}

/// What the machine has said, to the end.
fn passed(scratch: &Scratch) -> Result<String> {
    let said = said(in_folder(&scratch.0)?)?;
    if said.lines().last() != Some("passed") {
        fail!("{said}\nthe script did not come to its end");
    }
    Ok(said)
}

fn pingpong(option: &str) -> Result<()> {
    let words = format!("ibv_rc_pingpong -g 1 {option} -s 65536 -n 1500");
    let script = format!("pair '{ORDERS}' {words} || exit 1");
    let said = passed(&job(&script)?)?;
    let iterations = said.lines().filter(|line| line.starts_with("1500 iters in")).count();
    let rebuilds = said.matches("receives posted again").count();
    if iterations != 2 || rebuilds != 2 * REBUILDS || said.contains("failed") {
        fail!("{said}\nexpected 1500 iterations and {REBUILDS} rebuilds on both sides");
    }
    Ok(())
}

/// The test of two plain processes with guardians, over both adapters.
fn guarded() -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--package", "rustbtl-process", "--example", "preload"]);
    run::output(cargo.current_dir(paths::root()))?;
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--no-run", "--quiet", "--package", "rustbtl-conformance"]);
    cargo.args(["--test", "plain_verbs", "--message-format", "json"]);
    let messages = run::output(cargo.current_dir(paths::root()))?;
    let test = super::executable(&messages, "plain_verbs")?;
    let scratch =
        job("RUSTBTL_ADAPTERS=rxe1,rxe2 /tmp/out/deps/plain_verbs --ignored 2>&1 || exit 1")?;
    // As they lie in cargo's folder.
    let preload = test.ancestors().nth(2).map(|target| target.join("examples/libpreload.so"));
    let [deps, examples] = ["deps", "examples"].map(|name| scratch.0.join(name));
    let library = "librustbtl_verbs.so";
    for (from, to) in [
        (Some(test), deps.join("plain_verbs")),
        (Some(scratch.0.join(library)), deps.join(library)),
        (preload, examples.join("libpreload.so")),
    ] {
        let from = from.unwrap_or_default();
        let folder = to.parent().unwrap_or(&to);
        fs::create_dir_all(folder).context(|| folder.display().to_string())?;
        fs::copy(&from, &to).context(|| from.display().to_string())?;
    }
    let said = passed(&scratch)?;
    if !said.contains("1 passed; 0 failed") {
        fail!("{said}\nthe test has not run");
    }
    Ok(())
}

/// The client's table has one line of results.
fn perftest(program: &str, options: &str) -> Result<()> {
    let script = format!("pair '{ORDERS}' {program} -F -x 1 {options} || exit 1");
    let said = passed(&job(&script)?)?;
    let iterations = options.split(' ').next_back().unwrap_or_default();
    let is_result = |line: &str| line.split_whitespace().nth(1) == Some(iterations);
    let results = said.lines().filter(|line| is_result(line)).count();
    let rebuilds = said.matches("receives posted again").count();
    if results == 0 || rebuilds != 2 * REBUILDS || said.contains("failed") {
        fail!("{said}\nexpected results of {iterations} iterations, and {REBUILDS} rebuilds");
    }
    Ok(())
}

fn torture() -> Result<()> {
    let mut compiler = Command::new("cc");
    let scratch = job("folder=$(mktemp -d)
        shadowed 0 1 timeout 100 /tmp/out/torture $folder 12 rxe1 rxe2 1 || exit 1")?;
    compiler.args(["-O1", "-o"]).arg(scratch.0.join("torture"));
    compiler.arg(paths::root().join("shadow/library/tests/torture.c")).arg("-libverbs");
    run::output(&mut compiler)?;
    let said = passed(&scratch)?;
    if !said.contains("all is well") {
        fail!("{said}\nexpected all to be well");
    }
    Ok(())
}
