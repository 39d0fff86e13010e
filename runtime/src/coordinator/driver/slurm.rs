//! A job under Slurm is told at its start that Slurm ends it when one of its nodes fails, if
//! nothing shows that it was submitted with `--no-kill`.
//!
//! Slurm does not tell a job (22.05: neither its environment nor `scontrol show job`). What shows
//! it: the variables with which users ask for it once and for all, which sbatch passes on, and the
//! options in the batch script. A job with a directory for checkpoints that is queued again needs
//! no other option. What was said on sbatch's command line is not known.

use crate::coordinator::job::config::JobConfig;
use std::process::{Command, Stdio};
use std::thread;

/// Each of them is `--no-kill` of a command that makes allocations.
const VARIABLES: [&str; 2] = ["SBATCH_NO_KILL", "SALLOC_NO_KILL"];

/// Their values, but for `set`; Slurm refuses all others.
const TAKEN_BACK: [&str; 2] = ["off", "no"];

/// Of sbatch, and what takes it back.
const NO_KILL: [&str; 2] = ["-k", "--no-kill"];
const KILL: &str = "--no-kill=off";

/// Tells the user, if there is something to tell. slurmctld may take its time: nobody waits for it.
pub(crate) fn notify(config: &JobConfig, name: &str) {
    if !config.recover || !config.notices || !config.has_storage() || config.failover.is_some() {
        return;
    }
    let Some(allocation) = allocation(|name| std::env::var(name).ok()) else { return };
    // A job that is queued again goes on from these.
    let (name, lasts) = (name.to_owned(), config.directory.is_some());
    let asked = move || {
        let mut scontrol = Command::new("scontrol");
        scontrol.args(["write", "batch_script", &allocation, "-"]).stdin(Stdio::null());
        let script = scontrol.output().map(|done| done.stdout).unwrap_or_default();
        let script = String::from_utf8_lossy(&script);
        let is_fine = asks_for(&NO_KILL, &script) || lasts && asks_for(&["--requeue"], &script);
        if !is_fine {
            report!(
                "job {name}: Slurm ends this job when one of its nodes fails, unless it was \
                 submitted with --no-kill: give sbatch or salloc that option, or once and for all \
                 `export SBATCH_NO_KILL=set SALLOC_NO_KILL=set`"
            );
        }
    };
    // Without a thread the user is not told; the job is not the worse for it.
    let _ = thread::Builder::new().name("slurm".into()).spawn(asked);
}

/// The number of an allocation that may end when a node fails.
fn allocation(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let number = variable("SLURM_JOB_ID")?;
    let nodes: u32 = variable("SLURM_JOB_NUM_NODES")?.parse().ok()?;
    let is_on = |value: String| !TAKEN_BACK.contains(&value.to_ascii_lowercase().as_str());
    let asked = VARIABLES.iter().any(|name| variable(name).is_some_and(is_on));
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (nodes > 1 && !asked && is_number).then_some(number)
}

/// Is one of these options in this batch script? sbatch reads them up to the first command.
fn asks_for(names: &[&str], script: &str) -> bool {
    let head = script.lines().take_while(|line| line.starts_with('#') || line.trim().is_empty());
    let options = head.filter_map(|line| line.strip_prefix("#SBATCH"));
    let words = options.flat_map(|line| line.split('#').next().unwrap_or("").split_whitespace());
    let all = words.filter(|word| names.contains(word) || *word == KILL && names == NO_KILL);
    all.last().is_some_and(|word| word != KILL)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Option<String> {
        let find = |name: &str| pairs.iter().find(|(known, _)| *known == name);
        allocation(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn only_allocations_of_several_nodes_are_told() {
        let (job, nodes) = (("SLURM_JOB_ID", "17"), ("SLURM_JOB_NUM_NODES", "4"));
        assert_eq!(of(&[job, nodes]), Some("17".into()));
        assert_eq!(of(&[job, ("SLURM_JOB_NUM_NODES", "1")]), None);
        assert_eq!(of(&[nodes]), None);
        assert_eq!(of(&[job, nodes, ("SBATCH_NO_KILL", "set")]), None);
        assert_eq!(of(&[job, nodes, ("SALLOC_NO_KILL", "SET")]), None);
        assert_eq!(of(&[job, nodes, ("SALLOC_NO_KILL", "off")]), Some("17".into()));
        assert_eq!(of(&[("SLURM_JOB_ID", "-x"), nodes]), None);
    }

    #[test]
    fn the_option_is_found_where_sbatch_finds_it() {
        for script in [
            "#!/bin/bash\n#SBATCH -N 4 --no-kill\nmpirun\n",
            "#!/bin/bash\n\n#SBATCH -k\nmpirun\n",
            "#!/bin/sh\n# text\n#SBATCH --no-kill=off\n#SBATCH --no-kill\n",
        ] {
            assert!(asks_for(&NO_KILL, script), "{script}");
        }
        assert!(asks_for(&["--requeue"], "#SBATCH --requeue --no-kill=off\n"));
        for script in [
            "",
            "#!/bin/bash\n#SBATCH --requeue # --no-kill\nmpirun\n",
            "#!/bin/bash\nmpirun\n#SBATCH --no-kill\n",
            "#!/bin/bash\n#SBATCH --no-kill --no-kill=off\n",
            "# --no-kill\n",
        ] {
            assert!(!asks_for(&NO_KILL, script), "{script}");
        }
    }
}
