//! Verbs for real: a virtual machine with two Soft-RoCE adapters (tests/rdma/vm.sh), in which the
//! transport's suite, MPI programs and protected jobs run. Its kernel and qemu are kept outside of
//! the checkout.

mod protection;
mod shadow;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::mpi;
use super::scratch::Scratch;
use super::summary::Tier;
use crate::error::{Context, Failure, Result, fail};
use crate::{paths, run, setup};

/// vm.sh's exit code where the machine cannot be had.
const NO_MACHINE: i32 = 77;
/// Programs of tests/mpi that are short enough for a machine without hardware support.
const PROGRAMS: [&str; 6] =
    ["probe", "datatypes_basic", "wildcards", "truncate", "order", "coll_rooted"];

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    const ADAPTERS: &str = "Soft-RoCE: two adapters in a virtual machine";
    if let Err(why) = setup::run_for_rdma() {
        return tier.skip(&format!("verbs over Soft-RoCE, nothing of it is proved: {why}"));
    }
    let started = match in_machine("rdma link") {
        Ok(Err(why)) => {
            tier.skip(&format!("verbs over Soft-RoCE, nothing of it is proved: {why}"));
            return;
        }
        Ok(Ok(links)) if links.matches("state ACTIVE").count() == 2 => Ok(()),
        Ok(Ok(links)) => Err(Failure(format!("{links}\nexpected two that are active"))),
        Err(failure) => Err(failure),
    };
    if !tier.check(ADAPTERS, || started) {
        return;
    }
    tier.check("Soft-RoCE: the suite of the transports", suite);
    for program in PROGRAMS {
        tier.check(&format!("Soft-RoCE: {program} over two adapters"), || over_adapters(program));
    }
    shadow::run(tier);
    protection::run(tier);
}

/// Runs a script in the machine: what it wrote. `Err` inside: the machine cannot be had, and why.
fn in_machine(script: &str) -> Result<std::result::Result<String, String>> {
    let scratch = Scratch::new("rdma")?;
    let job = scratch.0.join("job.sh");
    fs::write(&job, script).context(|| job.display().to_string())?;
    in_folder(&scratch.0)
}

/// The same for a folder that holds `job.sh`.
fn in_folder(folder: &Path) -> Result<std::result::Result<String, String>> {
    let mut machine = Command::new("bash");
    machine.arg(paths::root().join("tests/rdma/vm.sh")).arg(folder);
    let Output { status, stdout, stderr } =
        machine.output().context(|| "starting bash".to_string())?;
    let [said, why] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    match status.code() {
        Some(0) => Ok(Ok(said)),
        Some(NO_MACHINE) => Ok(Err(why.trim().to_string())),
        _ => fail!("{said}{why}\nin the virtual machine: {status}"),
    }
}

/// It was there a moment ago.
fn said(outcome: std::result::Result<String, String>) -> Result<String> {
    match outcome {
        Ok(said) => Ok(said),
        Err(why) => fail!("{why}"),
    }
}

/// The suite of the transports, over both adapters.
fn suite() -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--no-run", "--quiet", "--package", "rustbtl-conformance"]);
    cargo.args(["--test", "verbs_adapters", "--message-format", "json"]);
    cargo.current_dir(paths::root());
    let messages = run::output(&mut cargo)?;
    let scratch = Scratch::new("rdma")?;
    // /tmp of the host is not that of the machine.
    let program = scratch.0.join("suite");
    fs::copy(executable(&messages, "verbs_adapters")?, &program)
        .context(|| program.display().to_string())?;
    let job = scratch.0.join("job.sh");
    let script = "RUSTBTL_ADAPTERS=rxe1,rxe2 /tmp/out/suite --ignored --test-threads=2 2>&1";
    fs::write(&job, script).context(|| job.display().to_string())?;
    let said = said(in_folder(&scratch.0)?)?;
    if !said.contains(" 0 failed; 0 ignored") || said.contains("running 0 tests") {
        fail!("{said}\nthe suite has not run");
    }
    Ok(())
}

/// The test program that cargo has built.
fn executable(messages: &str, test: &str) -> Result<PathBuf> {
    let of = |line: &str| -> Option<PathBuf> {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == test;
        is_it.then(|| message["executable"].as_str().map(PathBuf::from))?
    };
    match messages.lines().find_map(of) {
        Some(program) => Ok(program),
        None => fail!("{messages}\ncargo has not said where the test program is"),
    }
}

/// An MPI program, each rank with an adapter of its own and no shared memory between them.
fn over_adapters(program: &str) -> Result<()> {
    let source = paths::root().join(format!("tests/mpi/{program}.c"));
    let program = mpi::compile(&source)?;
    let script = job(&program);
    let said = said(in_machine(&script)?)?;
    let (packets, least) = (packets(&said), 20);
    if !said.lines().any(|line| line == "OK") || packets < least {
        fail!("{said}\n{packets} packets by the first adapter; expected OK, and {least} at least");
    }
    Ok(())
}

/// What is done in the machine.
fn job(program: &Path) -> String {
    let line = mpirun(&program.display().to_string());
    let own = [("recover", "0"), ("verbs", "1"), ("verbose", "20")];
    parameters(&own) + &format!("timeout 120 {line} || exit 1\n{PACKETS}\n")
}

/// Says how many packets the first adapter has sent.
const PACKETS: &str =
    "echo \"packets $(cat /sys/class/infiniband/rxe1/ports/1/hw_counters/sent_pkts)\"";

/// Two ranks, each with an adapter of its own.
fn mpirun(words: &str) -> String {
    let rank = |adapter: &str| {
        format!("-np 1 -x OMPI_MCA_vprotocol_correlated_verbs_if_include={adapter} {words}")
    };
    format!("mpirun --oversubscribe {} : {}", rank("rxe1"), rank("rxe2"))
}

/// MCA parameters, as variables. Ranks of one node would share memory, which is switched off.
fn parameters(own: &[(&str, &str)]) -> String {
    let path = format!("{}:SYSTEM_DEFAULT", paths::mca().display());
    let of_open_mpi = [
        ("mca_base_component_path", path.as_str()),
        ("plm", "isolated"),
        // Not the loopback: rustbtl listens there in any case.
        ("oob_tcp_if_include", "v1"),
        ("pml", "v"),
        ("vprotocol", "correlated"),
    ];
    let ours = [("shm", "0"), ("tcp_if_include", "lo")];
    let mut script =
        "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n".to_string();
    for (name, value) in of_open_mpi {
        script += &format!("export OMPI_MCA_{name}={value}\n");
    }
    for (name, value) in ours.iter().chain(own) {
        script += &format!("export OMPI_MCA_vprotocol_correlated_{name}={value}\n");
    }
    script
}

/// What the counter of the first adapter has said.
fn packets(said: &str) -> u64 {
    let number = said.lines().find_map(|line| line.strip_prefix("packets "));
    number.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_read() {
        assert_eq!(packets("OK\npackets 4711\n"), 4711);
        assert_eq!(packets("OK\n"), 0);
    }

    #[test]
    fn the_test_program_is_found_in_what_cargo_says() {
        let other = r#"{"target":{"name":"verbs"},"executable":"/a"}"#;
        let ours = r#"{"target":{"name":"verbs_adapters"},"executable":"/b"}"#;
        assert_eq!(
            executable(&format!("{other}\n{ours}\n"), "verbs_adapters").ok(),
            Some("/b".into())
        );
        assert!(executable(other, "verbs_adapters").is_err());
    }
}
