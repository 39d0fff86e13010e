//! What the numbers were measured on.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::stats;
use crate::{autogroup, paths, run};

/// Machine, versions, and the state of the sources.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model of the processors.
    pub cpu: String,
    /// Their number.
    pub processors: usize,
    /// Runs under a hypervisor.
    pub is_virtual: bool,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// How the kernel limits what TCP connections send: cubic, bbr.
    pub congestion_control: String,
    /// The scheduler groups processes by session (`kernel.sched_autogroup_enabled`).
    pub groups_by_session: bool,
    /// Version of Open MPI.
    pub open_mpi: String,
    /// Version of the compiler of our component.
    pub rustc: String,
    /// Commit of the sources, with `+` if they were changed after it.
    pub commit: String,
    /// Seconds since 1970 at the start.
    pub started: u64,
    /// Processes that were ready to run at the start, over one minute.
    pub load: f64,
    /// Share of the time in which processors were taken away from programs that only compute: the
    /// hypervisor's other guests, or programs beside the benchmarks. One value for each pair.
    pub taken_away: Vec<f64>,
}

/// A program that computes notices a gap of its time as long as this.
const GAP: Duration = Duration::from_millis(1);
/// How long each thread watches for them.
const LOOK: Duration = Duration::from_millis(300);
/// Processors that the benchmarks use.
const LOOKERS: usize = 2;

fn gaps() -> f64 {
    let start = Instant::now();
    let (mut last, mut away) = (start, Duration::ZERO);
    while last.duration_since(start) < LOOK {
        let now = Instant::now();
        let gap = now.duration_since(last);
        away += if gap >= GAP { gap } else { Duration::ZERO };
        last = now;
    }
    away.as_secs_f64() / last.duration_since(start).as_secs_f64()
}

/// The share of the time in which a program that computes does not run, now.
pub fn taken_away() -> f64 {
    thread::scope(|scope| {
        let lookers: Vec<_> = (0..LOOKERS).map(|_| scope.spawn(gaps)).collect();
        lookers.into_iter().map(|one| one.join().unwrap_or(1.0)).fold(0.0, f64::max)
    })
}

fn file(name: &str) -> String {
    fs::read_to_string(name).unwrap_or_default()
}

fn asked(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.current_dir(paths::root()).args(arguments);
    run::output(&mut command).unwrap_or_default()
}

/// The value behind `name :` or `name:`.
fn field(text: &str, name: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_prefix(':'));
    line.unwrap_or("unknown").trim().to_string()
}

impl Machine {
    /// Asks the system.
    pub fn ask() -> Machine {
        let cpu = file("/proc/cpuinfo");
        let memory = field(&file("/proc/meminfo"), "MemTotal");
        let memory_kib = memory.split(' ').next().and_then(|n| n.parse::<u64>().ok());
        let changed = !asked("git", &["status", "--porcelain"]).trim().is_empty();
        let commit = asked("git", &["rev-parse", "--short=12", "HEAD"]);
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
        let load = file("/proc/loadavg");
        Machine {
            cpu: field(&cpu, "model name"),
            processors: thread::available_parallelism().map_or(1, |p| p.get()),
            is_virtual: cpu.lines().any(|l| l.starts_with("flags") && l.contains(" hypervisor")),
            memory_mib: memory_kib.unwrap_or(0) / 1024,
            kernel: file("/proc/sys/kernel/osrelease").trim().to_string(),
            congestion_control: file("/proc/sys/net/ipv4/tcp_congestion_control").trim().into(),
            groups_by_session: autogroup::are_on(),
            open_mpi: asked("mpirun", &["--version"]).lines().next().unwrap_or("").to_string(),
            rustc: asked("rustc", &["--version"]).trim().to_string(),
            commit: format!("{}{}", commit.trim(), if changed { "+" } else { "" }),
            started: since.map_or(0, |time| time.as_secs()),
            load: load.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0),
            taken_away: Vec::new(),
        }
    }

    /// How much was taken away, for people.
    pub fn quiet(&self) -> String {
        let percent = |part| (stats::quantile(&self.taken_away, part).unwrap_or(0.0)) * 100.0;
        format!(
            "processors were away for {:.0} % of the time (median of the pairs; at worst {:.0} %)",
            percent(0.5),
            percent(1.0)
        )
    }

    /// One line.
    pub fn line(&self) -> String {
        format!(
            "{}, {} {}processors, {} GiB, Linux {}, {}groups by session, TCP {}, {}, commit {}",
            self.cpu,
            self.processors,
            if self.is_virtual { "virtual " } else { "" },
            self.memory_mib.div_ceil(1024),
            self.kernel,
            if self.groups_by_session { "" } else { "no " },
            self.congestion_control,
            self.open_mpi.replace("mpirun (", "").replace(')', ""),
            self.commit
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_with_and_without_blanks() {
        assert_eq!(field("model name\t: AMD EPYC\n", "model name"), "AMD EPYC");
        assert_eq!(field("MemTotal:   5 kB\n", "MemTotal"), "5 kB");
        assert_eq!(field("", "MemTotal"), "unknown");
    }

    #[test]
    fn this_machine_has_a_processor_and_memory() {
        let machine = Machine::ask();
        assert!(machine.processors > 0 && machine.memory_mib > 0);
        assert!(machine.line().contains("Linux"));
        let away = taken_away();
        assert!((0.0..=1.0).contains(&away), "{away}");
        let noisy = Machine { taken_away: vec![0.1, 0.0, 0.4], ..machine };
        assert!(noisy.quiet().contains("10 %") && noisy.quiet().contains("40 %"));
    }
}
