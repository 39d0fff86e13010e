//! Which tiers there are, what each of them takes of the machine, and what it needs.
//!
//! On two processors the build of the component (fat LTO) is what all jobs wait for: it starts at
//! once, beside the packages and the lints. Then two jobs at a time wait for each other's ranks,
//! time limits and heartbeats, a third one most often for a network or a process that is stopped,
//! and what only computes fills the gaps. Long tiers come first, so that none is left alone in the
//! end.

use super::schedule::Load::{Alone, Jobs, Processors, Waits};
use super::schedule::Task;
use super::summary::Tier;
use super::{
    TestOptions, btl, checkpoint_faults, checkpoint_restart, cluster, collective_clock,
    collectives_component, coordinator_failover, crates, debian, errors, examples, file_contents,
    fuzz, guardians, local_storage, lost_output, miri, mpi, mpich, node_failure, node_names,
    one_sided, one_sided_component, parameters, partitions, phase_failures, programs, rdma, replay,
    shadow_verbs, shared_by_sets, signals, slurm, slurm_cluster, source, spare_nodes, spawned,
    standard_input, surroundings, suspension, time_determinants, trees, triggers,
};
use crate::{build, setup};

/// The names of tiers that others need.
pub const PACKAGES: &str = "Debian packages";
const COMPILED: &str = "component, compiled";
const COMPONENT: &str = "component";

/// MPI programs of a tier; there are about 60, and each runs in a dozen layouts.
const PROGRAMS_AT_A_TIME: usize = 10;

/// All tiers that were asked for.
pub fn tasks(options: &TestOptions) -> Vec<Task<'_>> {
    let mut tasks = vec![Task::new(PACKAGES, Jobs, &[], |tier| {
        tier.check("installed", setup::run);
    })];
    if let Some(version) = options.trees {
        // What --only leaves out has to be built all the same.
        let default = options.only.as_ref().map(|_| crate::tree::Variant::Standard);
        trees::all(&mut tasks, version, options.variant.or(default));
        return tasks;
    }
    if options.fast {
        sources(&mut tasks, options);
        return tasks;
    }
    // With --only it is built if a job needs it.
    component(&mut tasks);
    if options.protected {
        programs_of_ours(&mut tasks, &RECORDED);
        return tasks;
    }
    if options.slurm {
        under_slurm(&mut tasks, true);
        return tasks;
    }
    if options.rdma {
        over_verbs(&mut tasks);
        return tasks;
    }
    if options.debian13 {
        on_debian_13(&mut tasks, options.long);
        return tasks;
    }
    if options.only.is_none() {
        sources(&mut tasks, options);
    }
    jobs(&mut tasks, options);
    if options.long {
        over_verbs(&mut tasks);
        programs_of_ours(&mut tasks, &RECORDED);
        on_debian_13(&mut tasks, true);
        trees::all(&mut tasks, None, None);
    } else if options.no_trees || options.only.is_some() {
        // What is wanted of a tree is said with --trees.
    } else {
        trees::built_before(&mut tasks);
        tasks.push(Task::new("Debian 13", Jobs, &[COMPONENT], debian::run_some));
    }
    tasks
}

/// What needs no MPI.
fn sources<'t>(tasks: &mut Vec<Task<'t>>, options: &'t TestOptions) {
    let after: &[&str] = &[PACKAGES];
    tasks.push(Task::new("source", Processors, &[], source::run));
    tasks.push(Task::new("Rust tests", Processors, after, source::tests));
    tasks.push(Task::new("fuzz targets", Processors, after, move |tier| {
        fuzz::run(tier, if options.long { fuzz::SECONDS_LONG } else { fuzz::SECONDS });
    }));
    tasks.push(Task::new("Miri", Processors, after, move |tier| miri::run(tier, options.long)));
    tasks.push(Task::new("crates", Processors, after, move |tier| {
        crates::run(tier, options.long);
    }));
}

/// What Open MPI loads. Compiling needs no package that is not there where xtask was compiled.
fn component(tasks: &mut Vec<Task>) {
    tasks.push(Task::new(COMPILED, Jobs, &[], |tier| {
        tier.check("Rust part of the component and the program", build::compile);
    }));
    tasks.push(Task::new(COMPONENT, Jobs, &[PACKAGES, COMPILED], |tier| {
        tier.check("build of the component", build::ensure_fresh);
    }));
}

/// Everything that runs jobs.
fn jobs<'t>(tasks: &mut Vec<Task<'t>>, options: &'t TestOptions) {
    let built: &[&str] = &[COMPONENT];
    tasks.push(Task::new("emulated cluster", Jobs, &[PACKAGES], cluster::run));
    tasks.push(Task::new(
        "node failure, with and without recovery",
        Jobs,
        built,
        node_failure::run,
    ));
    programs_of_ours(tasks, &PLAIN);
    let by_the_clock = options.checkpoint_faults || options.long;
    tasks.push(Task::new("failures while a checkpoint is taken", Jobs, built, move |tier| {
        checkpoint_faults::run(tier, by_the_clock);
    }));
    let long = options.long;
    tasks.push(Task::new("partitions of the network", Waits, built, move |tier| {
        partitions::run(tier, long);
    }));
    let wait: [(&str, TaskRun); 3] = [
        ("signals to parts of a job", signals::run),
        ("coordinator failover", coordinator_failover::run),
        ("spare nodes", spare_nodes::run),
    ];
    tasks.extend(wait.map(|(name, work)| Task::new(name, Waits, built, work)));
    // With --only what is named is run.
    let every_case = options.long || options.only.is_some();
    tasks.push(Task::new("contents of files, and rollback", Jobs, built, move |tier| {
        file_contents::run(tier, every_case);
    }));
    tasks.push(Task::new("programs that use verbs past MPI", Jobs, built, move |tier| {
        shadow_verbs::run(tier, every_case);
    }));
    let more: [(&str, TaskRun); 21] = [
        ("checkpoint, kill -9 of everything, restart", checkpoint_restart::run),
        ("memory that several sets share", shared_by_sets::run),
        ("replay of nondeterministic events", replay::run),
        ("checkpoint triggers, and output of restarted jobs", triggers::run),
        ("suspended logging, and rollback", suspension::run),
        ("one-sided communication, files, and rollback", one_sided::run),
        ("recovery without a shared checkpoint directory", local_storage::run),
        ("failures in MPI_Finalize and while checkpoints are taken", phase_failures::run),
        ("names of nodes", node_names::run),
        ("guardians", guardians::run),
        ("programs of others", programs::run),
        ("Open MPI source trees", trees::quick),
        ("programs of MPICH, through wi4mpi", mpich::run),
        ("determinants of time", time_determinants::run),
        ("the batch script of the user guide (docs/slurm.sh)", slurm::run),
        ("examples", examples::run),
        ("parameters", parameters::run),
        ("errors", errors::run),
        ("surroundings of jobs", surroundings::run),
        ("standard input", standard_input::run),
        ("spawned processes", spawned::run),
    ];
    tasks.extend(more.map(|(name, work)| Task::new(name, Jobs, built, work)));
    collectives_component::tasks(tasks, built, options.long);
    collective_clock::tasks(tasks, built);
    btl::tasks(tasks, built);
    if one_sided_component::IS_THERE {
        one_sided_component::tasks(tasks, built, options.long, every_case);
    }
    under_slurm(tasks, options.long);
    // Whoever reads mpirun's output has to keep up with it.
    tasks.push(Task::new("output of failed nodes", Alone, built, lost_output::run));
}

/// Jobs under real Slurm.
fn under_slurm(tasks: &mut Vec<Task>, everything: bool) {
    tasks.push(Task::new("jobs under Slurm", Waits, &[COMPONENT], move |tier| {
        slurm_cluster::run(tier, everything);
    }));
}

/// Over adapters, of software, in a virtual machine.
fn over_verbs(tasks: &mut Vec<Task>) {
    tasks.push(Task::new("verbs over Soft-RoCE", Alone, &[COMPONENT], rdma::run));
}

/// Dropped into the Open MPI 5.0 of another release.
fn on_debian_13(tasks: &mut Vec<Task>, long: bool) {
    tasks.push(Task::new("Debian 13", Jobs, &[COMPONENT], move |tier| debian::run(tier, long)));
}

/// What runs a tier.
type TaskRun = fn(&mut Tier);

/// How our programs run.
struct Programs {
    over: mpi::Over<'static>,
    title: &'static str,
}

const PLAIN: Programs = Programs { over: mpi::Over::Component, title: "MPI programs (tests/mpi)" };
const RECORDED: Programs = Programs {
    over: mpi::Over::Protected,
    title: "MPI programs (tests/mpi), determinants recorded",
};

/// Our MPI programs, some at a time, and by themselves those that need much memory.
fn programs_of_ours(tasks: &mut Vec<Task>, how: &'static Programs) {
    let needs: &[&str] = &[COMPONENT];
    let names = match mpi::names() {
        Ok(names) => names,
        Err(failure) => {
            tasks.push(Task::new(how.title, Jobs, &[], |tier| {
                tier.check("list of programs", || Err(failure));
            }));
            return;
        }
    };
    let (large, small): (Vec<String>, Vec<String>) =
        names.into_iter().partition(|name| mpi::is_large(name));
    for some in small.chunks(PROGRAMS_AT_A_TIME) {
        let some = some.to_vec();
        let (first, last) = (&some[0], &some[some.len() - 1]);
        let name = format!("{}: {first} to {last}", how.title);
        tasks.push(Task::new(name, Jobs, needs, move |tier| {
            mpi::run_some(tier, &how.over, |name| some.iter().any(|other| other == name));
        }));
    }
    if !large.is_empty() {
        let name = format!("{}: {}, alone", how.title, large.join(", "));
        tasks.push(Task::new(name, Alone, needs, move |tier| {
            mpi::run_some(tier, &how.over, |name| large.iter().any(|other| other == name));
        }));
    }
}
