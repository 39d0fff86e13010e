//! What the coordinator of the running job has logged: when it is ready, checkpoints, process ids.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;

use serde_json::Value;

use super::processes::{all, find, is, program_of};

/// What is known of the job so far.
#[derive(Default)]
pub struct JobEvents {
    /// The coordinator's list of events.
    file: Option<File>,
    /// Read, and not yet a whole line.
    text: Vec<u8>,
    /// All ranks have called MPI_Init.
    pub ready: bool,
    /// The last checkpoint of all ranks or of a set that is complete.
    pub checkpoint: Option<u64>,
    /// The last checkpoint that is ordered.
    pub ordered: Option<u64>,
    /// Ranks that are in MPI_Finalize, or were.
    pub finishing: BTreeSet<u32>,
    /// How often replicas of all images were reported (again).
    pub replicated: u64,
    /// The places of each event in the list.
    pub events: BTreeMap<String, Vec<u64>>,
    /// So many events are in the list.
    count: u64,
    /// The process id of each rank's program, the newest.
    pub pids: BTreeMap<u32, libc::pid_t>,
}

impl JobEvents {
    /// Reads what is new, in a job of so many ranks.
    pub fn read_on(&mut self, ranks: u32) {
        self.file = self.file.take().or_else(open);
        match &mut self.file {
            Some(file) => {
                let mut more = Vec::new();
                // What cannot be read now is read later.
                let _ = file.read_to_end(&mut more);
                self.add(&more);
            }
            // It is started before the programs are: there is none, so nobody reports that all
            // ranks are ready. Then it counts that their programs run.
            None if !self.ready => {
                let running: BTreeSet<u32> = all().filter_map(program_of).collect();
                self.ready = running.len() == ranks as usize && coordinator().is_none();
            }
            None => (),
        }
    }

    /// The place of this event in the list, counted from the place of an earlier one, if it was
    /// logged.
    pub fn place(&self, event: Nth, after: u64) -> Option<u64> {
        let later = self.events.get(event.0)?.iter().filter(|&&place| place > after);
        later.copied().nth(event.1.checked_sub(1)? as usize)
    }

    fn add(&mut self, text: &[u8]) {
        self.text.extend_from_slice(text);
        while let Some(end) = self.text.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.text.drain(..=end).collect();
            self.handle(&serde_json::from_slice(&line).unwrap_or_default());
        }
    }

    fn handle(&mut self, event: &Value) {
        if let Some(name) = event["event"].as_str() {
            self.count += 1;
            self.events.entry(name.to_string()).or_default().push(self.count);
        }
        let number = |key: &str| event[key].as_u64().and_then(|n| u32::try_from(n).ok());
        match event["event"].as_str() {
            Some("ready") => self.ready = true,
            Some("replication_ok") => self.replicated += 1,
            Some("checkpoint_completed") => {
                self.checkpoint = self.checkpoint.max(event["checkpoint"].as_u64())
            }
            Some("checkpoint_started") => {
                self.ordered = self.ordered.max(event["checkpoint"].as_u64())
            }
            Some("finishing") => self.finishing.extend(number("rank")),
            Some("rank") => {
                if let (Some(rank), Some(pid)) = (number("rank"), number("pid")) {
                    self.pids.insert(rank, pid as libc::pid_t);
                }
            }
            _ => (),
        }
    }
}

/// An event is logged for this time: 1 is the first one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Nth(pub &'static str, pub u64);

fn coordinator() -> Option<libc::pid_t> {
    find(|pid| is(pid, "rustbtl", "coordinator"))
}

/// The coordinator has it open, wherever it is: in the folder for checkpoints, or in mpirun's own,
/// which is only seen in the first node.
fn open() -> Option<File> {
    let folder = format!("/proc/{}/fd", coordinator()?);
    let mut entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let file = entries.find(|link| {
        let target = fs::read_link(link).unwrap_or_default();
        target.extension().is_some_and(|ending| ending == "jsonl")
    });
    File::open(file?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_understood_in_whatever_pieces_they_come() {
        let mut job = JobEvents::default();
        job.add(br#"{"event":"rank","rank":1,"pid":70,"set":0}"#);
        assert!(job.pids.is_empty());
        job.add(b"\nnonsense\n{\"event\":\"ready\",\"ranks\":2}\n{\"event\":\"checkpoint_com");
        assert!(job.ready && job.checkpoint.is_none());
        job.add(b"pleted\",\"checkpoint\":3}\n{\"event\":\"rank\",\"rank\":1,\"pid\":71}\n");
        assert_eq!(job.checkpoint, Some(3));
        assert_eq!(job.pids, BTreeMap::from([(1, 71)]));
    }
}
