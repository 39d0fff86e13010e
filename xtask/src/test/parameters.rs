//! MCA parameters: the reference is current, names of 0.1.0 still work, `verbose` prints what is
//! done.

use super::job::{Outcome, TestJob};
use super::mpi;
use super::scratch::Scratch;
use super::summary::Tier;
use crate::build::parameters;
use crate::error::{Result, fail};
use crate::paths;

/// Names of 0.1.0, and what they are now.
const RENAMED: [(&str, &str); 13] = [
    ("dir", "checkpoint_dir"),
    ("local", "local_dir"),
    ("copies", "image_replicas"),
    ("spares", "spare_nodes"),
    ("keep", "checkpoints_kept"),
    ("interval", "checkpoint_interval"),
    ("set_interval", "set_checkpoint_interval"),
    ("signal", "checkpoint_signal"),
    ("carry", "piggyback"),
    ("check_content", "verify_sends"),
    ("log_ready", "log_prefault"),
    ("guard", "protect_without_dir"),
    ("dead_peer_grace", "peer_loss_timeout"),
];

/// Runs the tier.
pub fn run(tier: &mut Tier) {
    tier.check("parameters: docs/parameters.md is what the component registers", parameters::check);
    tier.check("parameters: names of 0.1.0 are deprecated synonyms", synonyms);
    tier.check("parameters: a value under an old name arrives, in mpirun and in ranks", old_names);
    tier.check("parameters: verbose says what is done, and nothing by default", verbose);
}

fn synonyms() -> Result<()> {
    let all = parameters::registered()?;
    for (old, new) in RENAMED {
        let fields = all.get(&full(old));
        let field = |key: &str| fields.and_then(|fields| fields.get(key)).cloned();
        let of = format!("name:{}", full(new));
        if field("synonym_of") != Some(of) || field("deprecated").as_deref() != Some("yes") {
            fail!("{old} is no deprecated synonym of {new}");
        }
    }
    Ok(())
}

fn full(name: &str) -> String {
    format!("vprotocol_correlated_{name}")
}

fn sends(options: &[&str]) -> Result<Outcome> {
    let file = paths::root().join("xtask/programs/exchange.c");
    let program = mpi::compile(&file)?.display().to_string();
    let outcome = TestJob::new(2, 1, &[program]).with(options).run()?;
    outcome.must(outcome.code == 0, "the job failed")?;
    Ok(outcome)
}

fn old_names() -> Result<()> {
    let scratch = Scratch::new("parameters")?;
    let folder = scratch.0.join("checkpoints").display().to_string();
    let dir = ["--mca", "vprotocol_correlated_dir", &folder];
    // One that only the ranks read: an unknown one would be ignored, a wrong one would not.
    let ready = ["--mca", "vprotocol_correlated_log_ready", "1048576"];
    let outcome = sends(&[&dir[..], &ready[..]].concat())?;
    let jobs = std::fs::read_dir(&folder).is_ok_and(|mut jobs| jobs.next().is_some());
    outcome.must(jobs, "mpirun does not know the directory under its old name")
}

fn verbose() -> Result<()> {
    const LINE: &str = "vprotocol:correlated: rank 1 on n1: correlated set";
    let silent = sends(&[])?;
    silent.must(!silent.stderr.contains("vprotocol:correlated:"), "it says something")?;
    let outcome = sends(&["--mca", "vprotocol_correlated_verbose", "60"])?;
    outcome.must(outcome.stderr.contains(LINE), &format!("it should say `{LINE}`"))?;
    let reached = outcome.stderr.contains("is reached over tcp");
    outcome.must(reached, "it does not say how peers are reached")
}
