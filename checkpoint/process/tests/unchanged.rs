//! Pages that the kernel calls unchanged (`freeze/changes.rs`), of a program that does all that
//! there is to its memory.

mod common;

use common::{Answer, Subject, program, scratch};
use rustbtl_checkpoint::image::{Record, records};
use rustbtl_process::dump::{History, WriteOptions, write_next_image};
use rustbtl_process::restore::{Ids, verify};
use std::path::PathBuf;
use std::process::Command;

/// The program of churn.c, and what a guardian knows of it.
struct Churn {
    subject: Subject,
    history: History,
    round: u32,
    image: PathBuf,
}

impl Churn {
    fn start(name: &str, seed: u64, closing: u32) -> Self {
        let (folder, path) = (scratch(name), program("churn.c", &[]));
        let (output, image) = (folder.join("output"), folder.join("0.img"));
        let mut command = Command::new(&path);
        command.args([&seed.to_string(), "40", &closing.to_string()]);
        let subject = Subject::start(&mut command, &output);
        subject.wait_for("ready");
        Self { subject, history: History::new(100), round: 0, image }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: our own child.
        unsafe { libc::kill(self.subject.pid as i32, signal) };
    }

    /// The hash of its memory, and a page that it has written.
    fn change(&mut self) -> (String, u64) {
        self.round += 1;
        self.signal(libc::SIGUSR1);
        let key = format!("round {} ", self.round);
        self.subject.wait_for(&key);
        let text = loop {
            let text = self.subject.text();
            let line = text.split_once(&key).unwrap().1;
            if let Some((line, _)) = line.split_once('\n') {
                break line.to_owned();
            }
        };
        let (hash, page) = text.split_once(' ').unwrap();
        (hash.to_owned(), u64::from_str_radix(page, 16).unwrap())
    }

    /// Takes a snapshot and writes its image, with what `edit` makes of the description; returns
    /// how many bytes were not read.
    fn image(
        &mut self,
        verify_unchanged: bool,
        edit: impl FnOnce(Vec<u8>) -> Vec<u8>,
    ) -> Result<u64, String> {
        self.image.set_file_name(format!("{}.img", self.round));
        self.subject.send("fork;track");
        let Answer::Continued { child, description, .. } = self.subject.receive() else { panic!() };
        let options = WriteOptions { sync: false, verify_unchanged, ..WriteOptions::default() };
        let (image, history) = (&self.image, &mut self.history);
        let stats = write_next_image(child, &edit(description), image, image, &options, history);
        self.subject.send("d");
        stats.map(|stats| stats.unread_bytes).map_err(|error| error.to_string())
    }
}

/// Does the kernel say what was not written?
fn kernel_notes(description: &[u8]) -> bool {
    records(description).any(|record| matches!(record, Ok(Record::Unchanged(_))))
}

#[test]
fn what_the_kernel_calls_unchanged_is_and_the_last_image_of_a_row_gives_the_memory() {
    for seed in 1..=6 {
        // In the last case the program closes the descriptor under way.
        let closing = if seed == 6 { 5 } else { 0 };
        let mut churn = Churn::start(&format!("churn-{seed}"), seed, closing);
        let (mut notes, mut unread) = (false, Vec::new());
        for _ in 0..9 {
            churn.change();
            let see = |description: Vec<u8>| {
                notes = kernel_notes(&description);
                description
            };
            unread.push(churn.image(true, see).unwrap());
        }
        let hash = churn.change().0;
        unread.push(churn.image(false, |description| description).unwrap());
        eprintln!(
            "seed {seed}: the kernel notes it: {notes}; bytes that were not read: {unread:?}"
        );
        for (at, bytes) in unread.iter().enumerate() {
            // Where it was closed, two snapshots are needed again.
            let closed = closing as usize;
            let begins = at == 0 || closed > 0 && [closed - 1, closed].contains(&at);
            assert_eq!(*bytes > 0, notes && !begins, "image {at}");
        }
        verify(&churn.image).unwrap();
        churn.subject.kill();
        let (subject, _) =
            Subject::restore(&churn.image, &churn.subject.output, Ids::SameIfPermitted);
        churn.subject = subject;
        churn.signal(libc::SIGUSR2);
        churn.subject.wait_for(&format!("now {hash}"));
        // The restored process begins anew, and so does its guardian.
        churn.history = History::new(100);
        let again: Vec<bool> = (0..3)
            .map(|_| {
                churn.change();
                churn.image(true, |description| description).unwrap() > 0
            })
            .collect();
        assert_eq!(again, [false, notes, notes]);
        churn.subject.kill();
    }
}

#[test]
fn a_write_that_the_kernel_had_not_noted_would_be_found() {
    let mut churn = Churn::start("churn-planted", 7, 0);
    let mut notes = false;
    churn.change();
    let first = |description: Vec<u8>| {
        notes = kernel_notes(&description);
        description
    };
    churn.image(true, first).unwrap();
    churn.change();
    churn.image(true, |description| description).unwrap();
    // One page more is said to be unchanged.
    let (_, page) = churn.change();
    let forget = |description: Vec<u8>| {
        let mut planted = Vec::new();
        for record in records(&description) {
            let mut record = record.unwrap();
            let mut runs = [page.to_le_bytes(), (page + 4096).to_le_bytes()].concat();
            if let Record::Unchanged(unchanged) = &mut record {
                let number = |run: &[u8]| u64::from_le_bytes(run[..8].try_into().unwrap());
                let all = unchanged.runs.chunks(16).chain([&runs[..]]);
                let mut all: Vec<&[u8]> = all.collect();
                all.sort_by_key(|run| number(run));
                runs = all.concat();
                unchanged.runs = &runs;
            }
            record.encode(&mut planted);
        }
        planted
    };
    let found = churn.image(true, forget);
    if notes {
        let error = found.unwrap_err();
        assert!(error.contains(&format!("{page:#x}: the kernel says")), "{error}");
    }
    // The image that was not written is none that the next one could build on.
    churn.change();
    assert_eq!(churn.image(true, |description| description), Ok(0));
    churn.change();
    assert_eq!(churn.image(true, |description| description).unwrap() > 0, notes);
    // Nor does a snapshot of which there was no image at all.
    churn.subject.send("fork;track");
    assert!(matches!(churn.subject.receive(), Answer::Continued { .. }));
    churn.subject.send("d");
    churn.change();
    assert_eq!(churn.image(true, |description| description), Ok(0));
    // One that is written in the pause ends the watch, and is written all the same.
    churn.image.set_file_name("pause.img");
    churn.subject.checkpoint("pause;track", &churn.image, &WriteOptions::default()).unwrap();
    churn.change();
    assert_eq!(churn.image(true, |description| description), Ok(0));
    churn.subject.kill();
}
