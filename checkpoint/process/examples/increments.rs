//! Measures images: `increments MIB PERCENT SCATTERED FULL_EVERY CHECKPOINTS` takes checkpoints of
//! a program that changes PERCENT of its memory in between, with each compression; prints sizes and
//! times, with pages that the kernel notes (`track`) and without.

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
    println!(
        "compression checkpoint    stored MiB  elsewhere MiB   read MiB  pause ms  write ms  \
         processor ms  sync ms  verify ms"
    );
    let styles = [Compression::None, Compression::Lz4, Compression::Zstd];
    let only = std::env::var("ONLY").unwrap_or_default();
    let styles = styles.into_iter().flat_map(|style| [(style, "fork"), (style, "fork;track")]);
    for (compression, order) in styles {
        if !format!("{compression:?} {order}").contains(&only) {
            continue;
        }
        std::fs::create_dir_all(&folder).unwrap();
        let output = folder.join("output");
        let mut command = Command::new(&program);
        let mut subject = Subject::start(command.args([mib, percent, scattered]), &output);
        let mut history = History::new(every);
        let options = WriteOptions { compression, ..WriteOptions::default() };
        for checkpoint in 1..=checkpoints {
            subject.wait_for(&format!("round {checkpoint}\n"));
            let path = folder.join(format!("{checkpoint}.img"));
            subject.send(order);
            let Answer::Continued { child, description, times_us } = subject.receive() else {
                panic!("no snapshot");
            };
            let (at, as_known) = (&path, &path);
            let before = processor_ms();
            let stats =
                dump::write_next_image(child, &description, at, as_known, &options, &mut history);
            let processor = processor_ms() - before;
            subject.send("d");
            let stats = stats.unwrap();
            let start = Instant::now();
            restore::verify(&path).unwrap();
            let verify = start.elapsed().as_secs_f64() * 1e3;
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            println!(
                "{:<11} {checkpoint:>10} {:>13.1} {:>14.1} {:>10.1} {:>9.1} {:>9.0} \
                 {processor:>13.0} {:>8.0} {verify:>10.0}",
                format!("{compression:?} {}", if order.ends_with("track") { "t" } else { "" }),
                mib(stats.file_bytes),
                mib(stats.elsewhere_bytes),
                mib(stats.touched_bytes - stats.unread_bytes),
                times_us[5] as f64 / 1e3,
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

/// Processor time of this process.
fn processor_ms() -> f64 {
    // SAFETY: plain data.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a local value.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let ms = |time: libc::timeval| time.tv_sec as f64 * 1e3 + time.tv_usec as f64 / 1e3;
    ms(usage.ru_utime) + ms(usage.ru_stime)
}
