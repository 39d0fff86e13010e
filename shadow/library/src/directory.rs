//! The directory: a folder that the job's processes share. What one publishes is a file that
//! appears whole, by rename; processes meet by such files, too.
//!
//! Nothing is held open, so an image of the process has nothing of it. Files of an epoch are not
//! removed: the folder is the job's and goes with it.

use rustbtl_shadow::{Job, Name, Readiness, Tallies, Tally, Value};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Between two looks at the folder.
const LOOK: Duration = Duration::from_millis(1);

/// The folder, seen by one process.
#[derive(Clone, Debug)]
pub struct Directory {
    folder: PathBuf,
    job: Job,
}

/// Somebody has not come to a meeting in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Where.
    pub meeting: String,
    /// Who.
    pub process: u32,
}

impl Directory {
    /// Of a job whose processes share this folder.
    pub fn new(folder: PathBuf, job: Job) -> Self {
        Self { folder, job }
    }

    /// The job.
    pub fn job(&self) -> Job {
        self.job
    }

    /// Put a file there, whole.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let whole = self.folder.join(name);
        let part = self.folder.join(format!("{name}.new{}", self.job.process));
        let put = fs::write(&part, bytes).and_then(|()| fs::rename(&part, &whole));
        if let Err(error) = put {
            // Peers would use names of before, or wait for ever.
            crate::real::give_up(&format!("{}: {error}", whole.display()));
        }
    }

    /// A file that somebody has put there.
    pub fn get(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.folder.join(name)).ok()
    }

    /// Tell the others what a name stands for.
    pub fn publish(&self, epoch: u32, name: Name, value: Value) {
        self.put(&file_of(epoch, name), &value);
    }

    /// What a name stands for.
    pub fn find(&self, epoch: u32, name: Name) -> Option<Value> {
        self.get(&file_of(epoch, name))?.try_into().ok()
    }

    /// This process is one of the job.
    pub fn join(&self) {
        self.put(&format!("joined.{}", self.job.process), b"");
    }

    /// It has ended: nobody waits for it any more.
    pub fn leave(&self) {
        self.put(&format!("left.{}", self.job.process), b"");
    }

    /// Has a process ended?
    pub fn has_left(&self, process: u32) -> bool {
        self.folder.join(format!("left.{process}")).exists()
    }

    /// Have all processes begun?
    pub fn all_have_joined(&self) -> bool {
        let joined = |process| self.folder.join(format!("joined.{process}")).exists();
        (0..self.job.processes).all(joined)
    }

    /// Wait until all processes have come here, or have ended.
    ///
    /// # Errors
    /// Who was not there in time.
    pub fn meet(&self, meeting: &str, patience: Duration) -> Result<(), Missing> {
        self.put(&format!("at.{meeting}.{}", self.job.process), b"");
        let begin = Instant::now();
        for process in 0..self.job.processes {
            let there = self.folder.join(format!("at.{meeting}.{process}"));
            while !there.exists() && !self.has_left(process) {
                if begin.elapsed() > patience {
                    return Err(Missing { meeting: meeting.to_owned(), process });
                }
                std::thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    /// Tell the others what was posted here.
    pub fn put_tallies(&self, round: &str, tallies: &[Tally]) {
        let lines: Vec<_> = tallies.iter().map(line_of).collect();
        self.put(&format!("tallies.{round}.{}", self.job.process), lines.join("\n").as_bytes());
    }

    /// What was posted everywhere. Processes that have ended have no connections.
    pub fn tallies(&self, round: &str) -> Tallies {
        let mut all = Tallies::new();
        for process in (0..self.job.processes).filter(|&process| !self.has_left(process)) {
            let bytes = self.get(&format!("tallies.{round}.{process}")).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            all.extend(text.lines().filter_map(tally_of).map(|tally| (tally.qpn, tally)));
        }
        all
    }
}

fn file_of(epoch: u32, name: Name) -> String {
    match name {
        Name::Qp(qpn) => format!("{epoch}.qp.{qpn:x}"),
        Name::Key { process, key } => format!("{epoch}.key.{process}.{key:x}"),
        Name::Lid(lid) => format!("{epoch}.lid.{lid:x}"),
        Name::Gid(gid) => format!("{epoch}.gid.{:x}", u128::from_be_bytes(gid)),
        Name::GidOf { process, gid } => {
            format!("{epoch}.gid.{process}.{:x}", u128::from_be_bytes(gid))
        }
    }
}

fn line_of(tally: &Tally) -> String {
    let Tally { qpn, peer, consuming, sends, .. } = tally;
    let readiness = match tally.readiness {
        Readiness::No => 0,
        Readiness::Yes => 1,
        Readiness::Broken => 2,
    };
    let mut line = format!("{qpn} {peer} {readiness} {consuming} {sends}");
    for length in &tally.under_way {
        line += &format!(" {length}");
    }
    line
}

fn tally_of(line: &str) -> Option<Tally> {
    let numbers: Option<Vec<u64>> = line.split(' ').map(|word| word.parse().ok()).collect();
    let numbers = numbers?;
    let [qpn, peer, readiness, consuming, sends, under_way @ ..] = numbers.as_slice() else {
        return None;
    };
    Some(Tally {
        qpn: u32::try_from(*qpn).ok()?,
        peer: u32::try_from(*peer).ok()?,
        readiness: match readiness {
            0 => Readiness::No,
            1 => Readiness::Yes,
            2 => Readiness::Broken,
            _ => return None,
        },
        consuming: *consuming,
        sends: *sends,
        under_way: under_way.iter().map(|&length| length as u32).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_are_what_they_were() {
        for (readiness, under_way) in [
            (Readiness::No, vec![]),
            (Readiness::Yes, vec![0, u32::MAX, 7]),
            (Readiness::Broken, vec![1]),
        ] {
            let tally = Tally {
                qpn: 0x80_0000,
                peer: 3,
                readiness,
                consuming: u64::MAX,
                sends: 9,
                under_way,
            };
            assert_eq!(tally_of(&line_of(&tally)), Some(tally));
        }
        for damaged in ["", "1 2 3", "1 2 3 4 5", "1 2 x 4 5", "4294967296 2 1 4 5"] {
            assert_eq!(tally_of(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn names_are_found_in_their_epoch_and_meetings_wait() {
        let folder = std::env::temp_dir().join(format!("rustbtl-verbs-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let of = |process| Directory::new(folder.clone(), Job { process, processes: 2 });
        let (one, other) = (of(0), of(1));
        for name in [
            Name::Qp(7),
            Name::Key { process: 0, key: 7 },
            Name::Lid(7),
            Name::Gid([7; 16]),
            Name::GidOf { process: 0, gid: [7; 16] },
        ] {
            one.publish(1, name, [9; 16]);
            assert_eq!(other.find(1, name), Some([9; 16]));
            assert_eq!(other.find(2, name), None);
        }
        let soon = Duration::from_millis(5);
        let missing = Missing { meeting: "here".to_owned(), process: 1 };
        assert_eq!(one.meet("here", soon), Err(missing));
        assert_eq!(other.meet("here", soon), Ok(()));
        assert!(!one.all_have_joined());
        other.leave();
        assert_eq!(one.meet("there", soon), Ok(()));
        fs::remove_dir_all(&folder).expect("the folder");
    }
}
