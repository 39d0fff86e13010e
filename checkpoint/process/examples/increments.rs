//! Measures images: `increments MIB PERCENT SCATTERED FULL_EVERY CHECKPOINTS` takes checkpoints of
//! a program that changes PERCENT of its memory in between, with each compression; prints sizes and
//! times.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Answer, Subject};
use rustbtl_process::dump::{self, Compression, History, WriteOptions};
use rustbtl_process::restore;
use std::process::Command;
use std::time::Instant;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [mib, percent, scattered, every, checkpoints] = &words[..] else {
        panic!("increments MIB PERCENT SCATTERED FULL_EVERY CHECKPOINTS");
    };
    let (every, checkpoints): (u32, u32) = (every.parse().unwrap(), checkpoints.parse().unwrap());
    let program = common::program("change.c", &[]);
    let folder = std::env::temp_dir().join(format!("increments-{}", std::process::id()));
    println!("compression checkpoint    stored MiB  elsewhere MiB  write ms  sync ms  verify ms");
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        std::fs::create_dir_all(&folder).unwrap();
        let output = folder.join("output");
        let mut command = Command::new(&program);
        let mut subject = Subject::start(command.args([mib, percent, scattered]), &output);
        let mut history = History::new(every);
        let options = WriteOptions { compression, ..WriteOptions::default() };
        for checkpoint in 1..=checkpoints {
            subject.wait_for(&format!("round {checkpoint}\n"));
            let path = folder.join(format!("{checkpoint}.img"));
            subject.send("fork");
            let Answer::Continued { child, description, .. } = subject.receive() else {
                panic!("no snapshot");
            };
            let (at, as_known) = (&path, &path);
            let stats =
                dump::write_next_image(child, &description, at, as_known, &options, &mut history);
            subject.send("d");
            let stats = stats.unwrap();
            let start = Instant::now();
            restore::verify(&path).unwrap();
            let verify = start.elapsed().as_secs_f64() * 1e3;
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            println!(
                "{:<11} {checkpoint:>10} {:>13.1} {:>14.1} {:>9.0} {:>8.0} {verify:>10.0}",
                format!("{compression:?}"),
                mib(stats.file_bytes),
                mib(stats.elsewhere_bytes),
                stats.write_us as f64 / 1e3,
                stats.sync_us as f64 / 1e3,
            );
            // SAFETY: our own child.
            unsafe { libc::kill(subject.pid as i32, libc::SIGUSR1) };
        }
        subject.kill();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
