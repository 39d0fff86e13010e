//! Orders to mpirun on the pipe, a line each. The keys are those of
//! `glue-c/errmgr/errmgr_correlated_pipe.h`; a test compares the two.

use crate::settings::hex;
use core::fmt::{self, Display, Formatter};
use rustbtl_fragments::ids::PeerId;

/// One line to mpirun's component.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MpirunOrder {
    /// End the job: that is no failure.
    End,
    /// End the job with this text as its error.
    Fail(String),
    /// The ranks of the lost node run again.
    Recovered,
    /// A guardian has ended, and its ranks run elsewhere: continue without it.
    Tolerate(PeerId),
    /// A guardian has ended: do what stock Open MPI does.
    Stock(PeerId),
    /// Report how long other nodes have been silent.
    Measure,
    /// The node behind this connection has failed: end it.
    Cut(u32),
    /// Output of a rank that has no daemon.
    Print {
        /// Whose.
        rank: PeerId,
        /// 1: standard output, 2: standard error.
        stream: u8,
        /// Place of the first byte in all that the rank has printed.
        position: u64,
        /// What it is.
        bytes: Vec<u8>,
    },
}

/// Keys of the lines to mpirun.
pub mod to_mpirun {
    /// The coordinator listens: port, job, secret.
    pub const OK: &str = "ok";
    /// It cannot start: why.
    pub const ERROR: &str = "error";
    /// [`super::MpirunOrder::End`].
    pub const END: &str = "end";
    /// [`super::MpirunOrder::Fail`].
    pub const FAIL: &str = "fail";
    /// [`super::MpirunOrder::Recovered`].
    pub const RECOVERED: &str = "recovered";
    /// [`super::MpirunOrder::Tolerate`].
    pub const TOLERATE: &str = "let";
    /// [`super::MpirunOrder::Stock`].
    pub const STOCK: &str = "stock";
    /// [`super::MpirunOrder::Print`].
    pub const PRINT: &str = "print";
    /// [`super::MpirunOrder::Measure`].
    pub const MEASURE: &str = "measure";
    /// [`super::MpirunOrder::Cut`].
    pub const CUT: &str = "cut";
}

/// Keys of the lines from mpirun, once the job runs.
pub mod from_mpirun {
    /// So much of a rank's output has come through its lost daemon.
    pub const CAME: &str = "came";
    /// A piece was printed.
    pub const PRINTED: &str = "printed";
    /// How far mpirun's output of a rank is.
    pub const REACHED: &str = "reached";
    /// The user's signal: `stay` or `exit`.
    pub const CHECKPOINT: &str = "checkpoint";
    /// A node is lost.
    pub const LOST: &str = "lost";
    /// A guardian has ended as if by a signal.
    pub const GUARDIAN: &str = "guardian";
    /// How long other nodes have been silent.
    pub const QUIET: &str = "quiet";
}

impl Display for MpirunOrder {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::End => f.write_str(to_mpirun::END),
            Self::Fail(text) => write!(f, "{} {text}", to_mpirun::FAIL),
            Self::Recovered => f.write_str(to_mpirun::RECOVERED),
            Self::Tolerate(rank) => write!(f, "{} {rank}", to_mpirun::TOLERATE),
            Self::Stock(rank) => write!(f, "{} {rank}", to_mpirun::STOCK),
            Self::Measure => f.write_str(to_mpirun::MEASURE),
            Self::Cut(id) => write!(f, "{} {id}", to_mpirun::CUT),
            Self::Print { rank, stream, position, bytes } => {
                write!(f, "{} {rank} {stream} {position} {}", to_mpirun::PRINT, hex(bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::job::config::JobConfig;
    use std::collections::BTreeMap;

    /// `#define PREFIX_NAME "key"` of the header that C reads.
    fn header(prefix: &str) -> BTreeMap<String, String> {
        let text = include_str!("../../../../../glue-c/errmgr/errmgr_correlated_pipe.h");
        let define = |line: &str| {
            let define = line.strip_prefix("#define ")?.strip_prefix(prefix)?;
            let (name, key) = define.split_once(' ')?;
            Some((name.to_owned(), key.trim().trim_matches('"').to_owned()))
        };
        text.lines().filter_map(define).collect()
    }

    #[test]
    fn c_and_rust_use_the_same_keys() {
        let ours = [
            ("OK", to_mpirun::OK),
            ("ERROR", to_mpirun::ERROR),
            ("END", to_mpirun::END),
            ("FAIL", to_mpirun::FAIL),
            ("RECOVERED", to_mpirun::RECOVERED),
            ("TOLERATE", to_mpirun::TOLERATE),
            ("STOCK", to_mpirun::STOCK),
            ("PRINT", to_mpirun::PRINT),
            ("MEASURE", to_mpirun::MEASURE),
            ("CUT", to_mpirun::CUT),
            ("CAME", from_mpirun::CAME),
            ("PRINTED", from_mpirun::PRINTED),
            ("REACHED", from_mpirun::REACHED),
            ("CHECKPOINT", from_mpirun::CHECKPOINT),
            ("LOST", from_mpirun::LOST),
            ("GUARDIAN", from_mpirun::GUARDIAN),
            ("QUIET", from_mpirun::QUIET),
        ];
        let ours = ours.map(|(name, key)| (name.to_owned(), key.to_owned()));
        assert_eq!(header("RUSTBTL_KEY_"), BTreeMap::from(ours));
    }

    #[test]
    fn keys_of_the_setup_are_those_that_the_coordinator_reads() {
        let again = format!("job-1 4711 {}", "ab".repeat(32));
        let ours = [
            ("DIR", "dir", "/a"),
            ("RESTORE", "restore", "/a/checkpoint-1"),
            ("LOG", "log", "/tmp"),
            ("INTERVAL", "interval", "1"),
            ("MTBF", "mtbf", "1000"),
            ("OVERHEAD", "overhead", "30"),
            ("SET_INTERVAL", "set_interval", "1000"),
            ("IMAGES", "images", "lz4 4"),
            ("KEEP", "keep", "2"),
            ("REPLICAS", "copies", "1"),
            ("RECOVER", "recover", "1"),
            ("NOTICES", "notices", "0"),
            ("FAILURE_TIMEOUT", "failure_timeout", "4000"),
            ("PRINTS", "prints", "1"),
            ("SECRET", "secret", "file:/home/u/key"),
            ("FAILOVER", "again", again.as_str()),
            ("ADDRESSES", "at", "1.0;tcp://10.0.0.1:5"),
            ("SIZE", "size", "4"),
            ("ARG", "arg", "./x"),
            ("GO", "go", ""),
        ];
        let mut config = JobConfig::default();
        for (_, key, value) in ours {
            let line = format!("{key} {value}");
            assert_eq!(config.take(&line), Ok(key == "go"), "{line}");
        }
        let ours = ours.map(|(name, key, _)| (name.to_owned(), key.to_owned()));
        assert_eq!(header("RUSTBTL_SETUP_"), BTreeMap::from(ours));
    }

    #[test]
    fn orders_are_lines_that_c_reads() {
        let rank = PeerId(3);
        let print = MpirunOrder::Print { rank, stream: 2, position: 40, bytes: b"ab\n".to_vec() };
        let table = [
            (MpirunOrder::End, "end"),
            (MpirunOrder::Fail("why".into()), "fail why"),
            (MpirunOrder::Recovered, "recovered"),
            (MpirunOrder::Tolerate(rank), "let 3"),
            (MpirunOrder::Stock(rank), "stock 3"),
            (MpirunOrder::Measure, "measure"),
            (MpirunOrder::Cut(17), "cut 17"),
            (print, "print 3 2 40 61620a"),
        ];
        for (order, line) in table {
            assert_eq!(order.to_string(), line);
        }
    }
}
