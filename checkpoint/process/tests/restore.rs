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

/// What a program prints when nobody disturbs it.
fn undisturbed(path: &std::path::Path) -> String {
    let output = Command::new(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stdout).unwrap()
}

fn zoo(name: &str, order: &str, ids: Ids) {
    let folder = scratch(name);
    let path = program("zoo.c", &["-pthread"]);
    let answer = undisturbed(&path);
    let (output, image) = (folder.join("output"), folder.join("image"));
    let mut subject = Subject::start(&mut Command::new(&path), &output);
    subject.wait_for("ready");
    let (stats, times) = subject.checkpoint(order, &image, &WriteOptions::default()).unwrap();
    eprintln!("{stats:?} {times:?}");
    subject.kill();
    let (subject, child) = Subject::restore(&image, &output, ids);
    eprintln!("{child:?}");
    let (status, text) = subject.finish(30);
    assert_eq!(text, answer);
    assert_eq!(status, 0);
}

#[test]
fn threads_in_every_kind_of_wait_notice_nothing() {
    zoo("zoo", "fork", Ids::SameIfPermitted);
}

#[test]
fn threads_with_new_ids_notice_nothing() {
    zoo("zoo-new", "fork", Ids::New);
}

#[test]
fn an_image_that_is_written_in_the_pause_is_as_good() {
    zoo("zoo-pause", "pause", Ids::SameIfPermitted);
}

#[test]
fn the_program_that_was_pictured_goes_on_unharmed() {
    let folder = scratch("zoo-goes-on");
    let path = program("zoo.c", &["-pthread"]);
    let answer = undisturbed(&path);
    let (output, image) = (folder.join("output"), folder.join("image"));
    let subject = Subject::start(&mut Command::new(&path), &output);
    subject.wait_for("ready");
    for order in ["fork", "pause", "either", "fork", "fork"] {
        subject.checkpoint(order, &image, &WriteOptions::default()).unwrap();
    }
    let (status, text) = subject.finish(30);
    assert_eq!(text, answer);
    assert_eq!(status, 0);
}
