//! Tiers beside each other, as far as the machine and what they need allow.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::summary::{Summary, Tier};

/// What a tier takes of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// Processors: compilers and tests without MPI. One at a time; cargo uses all processors.
    Processors,
    /// Jobs on emulated nodes, which wait for each other most of the time: a few at a time.
    Jobs,
    /// The same, but most of the time nothing runs: cuts, what is stopped, Slurm's time limits. One
    /// beside the others.
    Waits,
    /// Everything: it runs when all others have ended.
    Alone,
}

/// A tier to run.
pub struct Task<'t> {
    name: String,
    load: Load,
    /// Names of tiers that have to have passed before.
    needs: &'static [&'static str],
    work: Work<'t>,
}

type Work<'t> = Box<dyn FnOnce(&mut Tier) + Send + 't>;

impl<'t> Task<'t> {
    /// A tier with its name.
    pub fn new(
        name: impl Into<String>,
        load: Load,
        needs: &'static [&'static str],
        work: impl FnOnce(&mut Tier) + Send + 't,
    ) -> Task<'t> {
        Task { name: name.into(), load, needs, work: Box::new(work) }
    }
}

/// What is to be done, and what is being done.
struct ScheduleState<'t> {
    waiting: Vec<Task<'t>>,
    running: Vec<(String, Load)>,
    failed: Vec<String>,
    jobs_max: usize,
}

/// What a lane finds when it polls for work.
enum FoundTask<'t> {
    Task(Task<'t>),
    /// One that cannot run, because another one has failed.
    Hindered(Task<'t>),
    NothingNow,
    NothingMore,
}

impl<'t> ScheduleState<'t> {
    /// The first that can run now.
    fn take(&mut self) -> FoundTask<'t> {
        if self.waiting.is_empty() {
            return FoundTask::NothingMore;
        }
        let failed = |name: &&str| self.failed.iter().any(|failed| failed == name);
        if let Some(at) = self.waiting.iter().position(|task| task.needs.iter().any(failed)) {
            return FoundTask::Hindered(self.waiting.remove(at));
        }
        match self.waiting.iter().position(|task| self.can_run(task)) {
            Some(at) => {
                let task = self.waiting.remove(at);
                self.running.push((task.name.clone(), task.load));
                FoundTask::Task(task)
            }
            None => FoundTask::NothingNow,
        }
    }

    fn can_run(&self, task: &Task) -> bool {
        let is_done = |name: &&str| {
            let running = self.running.iter().any(|(other, _)| other == name);
            !running && self.waiting.iter().all(|other| other.name != **name)
        };
        let running = |load| self.running.iter().filter(|(_, other)| *other == load).count();
        let has_room = match task.load {
            Load::Processors => running(Load::Processors) == 0,
            Load::Jobs => running(Load::Jobs) < self.jobs_max,
            Load::Waits => running(Load::Waits) == 0,
            Load::Alone => {
                self.running.is_empty()
                    && self.waiting.iter().all(|other| other.load == Load::Alone)
            }
        };
        has_room && running(Load::Alone) == 0 && task.needs.iter().all(is_done)
    }
}

/// Runs all tiers, `jobs_max` of those with jobs at a time; of those that can run the first.
pub fn run(summary: &Summary, tasks: Vec<Task>, jobs_max: usize) {
    let state = ScheduleState { waiting: tasks, running: Vec::new(), failed: Vec::new(), jobs_max };
    let (state, changed) = (Mutex::new(state), Condvar::new());
    thread::scope(|scope| {
        // And one each of those that compute and that wait.
        for _ in 0..jobs_max + 2 {
            scope.spawn(|| lane(summary, &state, &changed));
        }
    });
}

fn lane(summary: &Summary, state: &Mutex<ScheduleState>, changed: &Condvar) {
    let mut locked = lock(state);
    loop {
        let (task, can_run) = match locked.take() {
            FoundTask::Task(task) => (task, true),
            FoundTask::Hindered(task) => (task, false),
            FoundTask::NothingMore => return,
            FoundTask::NothingNow => {
                locked = changed.wait(locked).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
        };
        drop(locked);
        let name = task.name.clone();
        let passed = can_run && in_tier(summary, task);
        if !can_run {
            summary.tier(&name).skip(&format!("{name}: what it needs has failed"));
        }
        locked = lock(state);
        locked.running.retain(|(other, _)| *other != name);
        if !passed {
            locked.failed.push(name);
        }
        changed.notify_all();
    }
}

fn in_tier(summary: &Summary, task: Task) -> bool {
    let mut tier = summary.tier(task.name);
    (task.work)(&mut tier);
    tier.is_good()
}

fn lock<'l, 't>(state: &'l Mutex<ScheduleState<'t>>) -> MutexGuard<'l, ScheduleState<'t>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::failure;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn no_more_jobs_than_allowed_and_who_runs_alone_does() {
        let summary = Summary::new(None);
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = |_: &mut Tier| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(5));
            now.fetch_sub(1, Ordering::SeqCst);
        };
        let alone = |_: &mut Tier| assert_eq!(now.load(Ordering::SeqCst), 0);
        let mut tasks = vec![Task::new("alone", Load::Alone, &[], alone)];
        tasks.extend((0..10).map(|n| Task::new(n.to_string(), Load::Jobs, &[], work)));
        run(&summary, tasks, 2);
        assert_eq!(most.load(Ordering::SeqCst), 2);
        let waits = |n: u32| Task::new(format!("waits {n}"), Load::Waits, &[], work);
        run(&summary, (0..5).map(waits).collect(), 2);
        assert_eq!(most.load(Ordering::SeqCst), 2);
        let jobs = |n: u32| Task::new(n.to_string(), Load::Jobs, &[], work);
        run(&summary, (0..10).map(jobs).chain((0..5).map(waits)).collect(), 2);
        assert_eq!(most.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn what_is_needed_comes_first_and_its_failure_is_reported() {
        let summary = Summary::new(None);
        let order = Mutex::new(Vec::new());
        let note = |name| order.lock().unwrap().push(name);
        let tasks = vec![
            Task::new("last", Load::Jobs, &["second"], |_| note("last")),
            Task::new("second", Load::Jobs, &["first"], |tier| {
                note("second");
                tier.check("case", || Err(failure!("bad")));
            }),
            Task::new("first", Load::Processors, &[], |_| note("first")),
        ];
        run(&summary, tasks, 2);
        assert_eq!(*order.lock().unwrap(), ["first", "second"]);
        assert!(!summary.finish());
    }
}
