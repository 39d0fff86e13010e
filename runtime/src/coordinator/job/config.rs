//! The configuration that mpirun's component writes to the coordinator's standard input: a key, a
//! blank and a value on each text line; `go` ends it. What comes after that:
//! `rules/mpirun_messages.rs`.

use crate::job_secret::{Travels, Way};
use crate::settings::{FAILURE_TIMEOUT_MS, FAILURE_TIMEOUTS_MS, Images};
use crate::settings::{hosts, is_job_name};
use rustbtl_coordination::interval::Interval;
use std::net::IpAddr;
use std::path::PathBuf;

/// Longest text line that is read.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Interval between checkpoints where sets can be rolled back alone, nobody has chosen one, and
/// there is no limit to what they cost: without checkpoints a failure after days would repeat days.
const INTERVAL_MS: u64 = 300_000;
/// Thousandths of the time that protection may cost, by default.
const OVERHEAD: u64 = 30;
/// Checkpoints get one third of that; the rest is for the payload log.
const PART_OF_CHECKPOINTS: u64 = 3;

/// See the module's documentation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobConfig {
    /// `dir`: where checkpoints are stored.
    pub directory: Option<PathBuf>,
    /// `copies`: without a directory each node stores its images, and so many other nodes a
    /// replica.
    pub replicas: Option<usize>,
    /// `log`: where events go if there is no directory.
    pub log: Option<PathBuf>,
    /// `interval`: seconds between global checkpoints, 0: none; or `auto`. `None`: the default.
    pub interval_ms: Option<u64>,
    /// It is `auto`: `interval_ms` is ignored.
    pub interval_auto: bool,
    /// `mtbf`: milliseconds between failures of one set.
    pub mtbf_ms: u64,
    /// `overhead`: thousandths of the time that protection may cost; 0: no limit.
    pub overhead: u64,
    /// `set_interval`: milliseconds between checkpoints of a set, 0: none.
    pub set_interval_ms: u64,
    /// `keep`: checkpoints to keep.
    pub keep: usize,
    /// `recover`: failed sets are restarted.
    pub recover: bool,
    /// `notices`: the user is told on standard error who was rolled back.
    pub notices: bool,
    /// `failure_timeout`: milliseconds of silence after which a node has failed.
    pub failure_timeout_ms: u64,
    /// `prints`: mpirun prints output that the coordinator relays (`print`).
    pub prints: bool,
    /// `restore`: the checkpoint that the job restarts from.
    pub restore: Option<PathBuf>,
    /// `secret`: how the job's secret gets to the other nodes.
    pub secret: Way,
    /// How it does get there.
    pub secret_travels: Travels,
    /// `again JOB PORT TOKEN`: a failover, in place of a killed coordinator.
    pub failover: Option<(String, u16, String)>,
    /// `at`: mpirun's own addresses.
    pub hosts: Vec<IpAddr>,
    /// `size`: ranks, known when mpirun launches them.
    pub size: u32,
    /// `arg`: the programs' command line, a word each.
    pub command: Vec<String>,
}

impl Default for JobConfig {
    fn default() -> Self {
        Self {
            directory: None,
            replicas: None,
            log: None,
            interval_ms: None,
            interval_auto: false,
            mtbf_ms: 0,
            overhead: OVERHEAD,
            set_interval_ms: 0,
            keep: 2,
            recover: true,
            notices: true,
            failure_timeout_ms: FAILURE_TIMEOUT_MS,
            prints: false,
            restore: None,
            secret: Way::Auto,
            secret_travels: Travels::InClear,
            failover: None,
            hosts: Vec::new(),
            size: 0,
            command: Vec::new(),
        }
    }
}

impl JobConfig {
    /// Number of the first checkpoint. Restored ranks have been in a checkpoint of the old job: for
    /// them it and those before are over.
    pub fn first_checkpoint(&self) -> u64 {
        let restored = self.restore.as_deref().and_then(crate::store::checkpoint_number);
        restored.map_or(1, |checkpoint| checkpoint.0 + 1)
    }

    /// Can checkpoints be stored?
    pub fn has_storage(&self) -> bool {
        self.directory.is_some() || self.replicas.is_some()
    }

    /// Do nodes store their images themselves?
    pub fn is_local(&self) -> bool {
        self.directory.is_none() && self.replicas.is_some()
    }

    /// One text line; true: it was the last.
    pub fn take(&mut self, line: &str) -> Result<bool, String> {
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        let path = || -> Result<Option<PathBuf>, String> {
            let path = PathBuf::from(value);
            if path.is_absolute() { Ok(Some(path)) } else { Err(format!("{key}: {value:?}")) }
        };
        let number = || value.parse::<u64>().map_err(|_| format!("{key}: {value:?} is no number"));
        match key {
            "dir" => self.directory = path()?,
            "log" => self.log = path()?,
            "restore" => self.restore = path()?,
            "again" => {
                let failover =
                    failover_from(value).ok_or("again: that is no job, port and token")?;
                self.failover = Some(failover);
            }
            "secret" => self.secret = value.parse()?,
            "recover" => self.recover = number()? != 0,
            "notices" => self.notices = number()? != 0,
            "failure_timeout" => self.failure_timeout_ms = failure_timeout(number()?)?,
            "prints" => self.prints = number()? != 0,
            "interval" if value == "auto" => self.interval_auto = true,
            "interval" => self.interval_ms = Some(seconds(value)?),
            "mtbf" => self.mtbf_ms = number()?,
            "overhead" => self.overhead = number()?,
            "set_interval" => self.set_interval_ms = number()?,
            "copies" => self.replicas = Some(usize::try_from(number()?).unwrap_or(usize::MAX)),
            "keep" => self.keep = usize::try_from(number()?).unwrap_or(usize::MAX).max(1),
            "at" => self.hosts = hosts(value),
            "size" => self.size = u32::try_from(number()?).map_err(|_| "size".to_owned())?,
            // For guardians, who get it from mpirun, too: here it is refused if it makes no sense.
            "images" => drop(value.parse::<Images>()?),
            "arg" => self.command.push(value.to_owned()),
            "go" if self.interval_auto && self.mtbf_ms == 0 => {
                return Err(
                    "vprotocol_correlated_checkpoint_interval is auto, but it is not known how \
                     often a node fails: add --mca vprotocol_correlated_mtbf SECONDS, the mean \
                     time between failures of one node"
                        .into(),
                );
            }
            "go" => return Ok(true),
            _ => return Err(format!("{key:?} is unknown")),
        }
        Ok(false)
    }

    /// Milliseconds between global checkpoints if they are fixed, 0 otherwise.
    pub fn fixed_interval_ms(&self) -> u64 {
        match self.interval() {
            Interval::Fixed { interval_ms } => interval_ms,
            Interval::Off | Interval::Auto { .. } | Interval::Governed { .. } => 0,
        }
    }

    /// Between global checkpoints.
    pub fn interval(&self) -> Interval {
        let rolls_back_alone = self.recover && self.has_storage();
        match (self.interval_auto, self.interval_ms) {
            (true, _) => Interval::Auto { mtbf_ms: self.mtbf_ms },
            (false, None) if rolls_back_alone && self.overhead > 0 => {
                Interval::Governed { share: (self.overhead / PART_OF_CHECKPOINTS).max(1) }
            }
            (false, None) if rolls_back_alone => Interval::Fixed { interval_ms: INTERVAL_MS },
            (false, None | Some(0)) => Interval::Off,
            (false, Some(interval_ms)) => Interval::Fixed { interval_ms },
        }
    }
}

fn failover_from(value: &str) -> Option<(String, u16, String)> {
    let words: Vec<&str> = value.split(' ').collect();
    let [job, port, token] = words.try_into().ok()?;
    let port = port.parse().ok().filter(|&port| port != 0)?;
    is_job_name(job).then_some((job.to_owned(), port, token.to_owned()))
}

fn failure_timeout(ms: u64) -> Result<u64, String> {
    if FAILURE_TIMEOUTS_MS.contains(&ms) {
        return Ok(ms);
    }
    let (least, most) = (FAILURE_TIMEOUTS_MS.start() / 1000, FAILURE_TIMEOUTS_MS.end() / 1000);
    Err(format!(
        "vprotocol_correlated_failure_timeout is {} s: give {least} to {most} seconds",
        ms as f64 / 1000.0
    ))
}

/// As milliseconds.
fn seconds(value: &str) -> Result<u64, String> {
    let seconds = value.parse().ok().filter(|seconds| (0.0..1e12).contains(seconds));
    let seconds: f64 = seconds.ok_or_else(|| {
        format!(
            "vprotocol_correlated_checkpoint_interval is {value:?}: give a number of seconds, \
             auto, or 0 for checkpoints that are only taken on request"
        )
    })?;
    Ok((seconds * 1000.0).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_automatic_interval_needs_to_know_how_often_something_fails() {
        let mut config = JobConfig::default();
        assert_eq!(config.interval(), Interval::Off);
        assert_eq!(config.take("interval auto"), Ok(false));
        assert!(config.take("go").unwrap_err().contains("vprotocol_correlated_mtbf"));
        assert_eq!(config.take("mtbf 86400000"), Ok(false));
        assert_eq!(config.take("go"), Ok(true));
        assert_eq!(config.interval(), Interval::Auto { mtbf_ms: 86_400_000 });
    }

    #[test]
    fn sets_that_can_be_rolled_back_alone_have_checkpoints_by_default() {
        let interval = |lines: &[&str]| {
            let mut config = JobConfig::default();
            lines.iter().for_each(|line| assert_eq!(config.take(line), Ok(false), "{line}"));
            config.interval()
        };
        let usual = Interval::Governed { share: 10 };
        let without_limit = Interval::Fixed { interval_ms: INTERVAL_MS };
        assert_eq!(interval(&["copies 1", "overhead 0"]), without_limit);
        assert_eq!(interval(&["copies 1", "overhead 1"]), Interval::Governed { share: 1 });
        assert_eq!(interval(&["copies 1"]), usual);
        assert_eq!(interval(&["dir /a"]), usual);
        assert_eq!(interval(&["dir /a", "interval 0"]), Interval::Off);
        assert_eq!(interval(&["dir /a", "recover 0"]), Interval::Off);
        assert_eq!(interval(&[]), Interval::Off);
    }

    #[test]
    fn what_mpirun_configures_is_understood_and_nonsense_is_not() {
        let mut config = JobConfig::default();
        for line in [
            "dir /a b",
            "interval 1.5",
            "keep 0",
            "size 4",
            "arg ./x",
            "arg ",
            "arg a b",
            "images lz4 4",
            "failure_timeout 2000",
        ] {
            assert_eq!(config.take(line), Ok(false), "{line}");
        }
        assert_eq!(config.take("go"), Ok(true));
        assert_eq!(config.directory, Some("/a b".into()));
        assert_eq!((config.interval_ms, config.keep, config.size), (Some(1500), 1, 4));
        assert_eq!(config.failure_timeout_ms, 2000);
        assert_eq!(config.command, ["./x", "", "a b"]);
        for line in [
            "dir relative",
            "size x",
            "size 5000000000",
            "what",
            "",
            "interval often",
            "interval -1",
            "interval nan",
            "interval inf",
            "interval 1s",
            "failure_timeout 1999",
            "failure_timeout 600001",
            "failure_timeout nan",
            "failure_timeout -4000",
            "images gzip 0",
            "images lz4 x",
        ] {
            assert!(config.take(line).is_err(), "{line}");
        }
    }
}
