//! Real programs are frozen, written, killed and restored, and give the same answer.

mod common;

use common::{Subject, program, scratch};
use rustbtl_process::outside::{Ids, WriteOptions};
use std::process::Command;

#[test]
fn a_simple_program_gives_the_same_answer() {
    let folder = scratch("simple");
    let path = program("count.c", &[]);
    let undisturbed = Command::new(&path).output().unwrap();
    let answer = String::from_utf8(undisturbed.stdout).unwrap();
    let (output, image) = (folder.join("output"), folder.join("image"));
    let mut subject = Subject::start(&mut Command::new(&path), &output);
    subject.wait_for("ready");
    let (stats, times) = subject.checkpoint("fork", &image, &WriteOptions::default()).unwrap();
    eprintln!("{stats:?} {times:?}");
    subject.kill();
    let (subject, child) = Subject::restore(&image, &output, Ids::SameIfPermitted);
    eprintln!("{child:?}");
    let (status, text) = subject.finish(30);
    assert_eq!(text, answer);
    assert_eq!(libc::WEXITSTATUS(status), 42);
}
