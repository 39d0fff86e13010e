//! Measures the pause: `pause ROUNDS PERCENT SCATTERED MIB…` takes snapshots of a program
//! that changes PERCENT of its memory in between, in turns with copies of as much memory in this
//! process: to fresh memory, as a checkpoint to memory would need it, and once more to the same
//! place. `order` is the time from the order to its answer: what is done in the background, too.
//! Medians. With GLIBC_TUNABLES=glibc.malloc.hugetlb=1 the program has huge pages from malloc.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Answer, Subject};
use std::process::Command;
use std::time::Instant;

/// Memory on 4 KiB pages, as malloc gives it to the program.
struct Pages {
    at: *mut u8,
    bytes: usize,
}

impl Pages {
    fn new(bytes: usize) -> Self {
        let (rights, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, kind, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "{bytes} bytes of memory");
        // SAFETY: advice about it.
        unsafe { libc::madvise(at, bytes, libc::MADV_NOHUGEPAGE) };
        Self { at: at.cast(), bytes }
    }

    /// Milliseconds of a copy of all of it.
    fn copy_to(&self, other: &Self) -> f64 {
        let start = Instant::now();
        // SAFETY: two mappings of this length.
        unsafe { std::ptr::copy_nonoverlapping(self.at, other.at, self.bytes) };
        std::hint::black_box(other.at);
        start.elapsed().as_secs_f64() * 1e3
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A snapshot: milliseconds of its clone, of the whole pause, and from the order on.
fn snapshot(subject: &Subject, order: &str) -> [f64; 3] {
    let start = Instant::now();
    subject.send(order);
    let Answer::Continued { times_us, .. } = subject.receive() else { panic!("no snapshot") };
    let whole = start.elapsed().as_secs_f64() * 1e3;
    subject.send("d");
    [times_us[4] as f64 / 1e3, times_us[5] as f64 / 1e3, whole]
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [rounds, percent, scattered, sizes @ ..] = &words[..] else {
        panic!("pause ROUNDS PERCENT SCATTERED MIB…");
    };
    let rounds: usize = rounds.parse().unwrap();
    let program = common::program("change.c", &[]);
    println!(
        "  MiB  order           copy, fresh  copy, again    clone    pause    order  /fresh  /again"
    );
    for size in sizes {
        let mib: usize = size.parse().unwrap();
        let output = common::scratch("pause").join("output");
        let mut command = Command::new(&program);
        let mut subject = Subject::start(command.args([size, percent, scattered]), &output);
        let mut turn = 1;
        subject.wait_for("round 1\n");
        let from = Pages::new(mib << 20);
        // SAFETY: all of the mapping.
        unsafe { std::ptr::write_bytes(from.at, 1, from.bytes) };
        let orders = ["fork", "fork;collapse"];
        let has_huge_pages = std::env::var_os("GLIBC_TUNABLES").is_some();
        for order in &orders[..if has_huge_pages { 1 } else { 2 }] {
            let mut times = [const { Vec::new() }; 5];
            for _ in 0..rounds {
                let to = Pages::new(from.bytes);
                times[0].push(from.copy_to(&to));
                times[1].push(from.copy_to(&to));
                drop(to);
                let [clone, pause, whole] = snapshot(&subject, order);
                times[4].push(whole);
                times[2].push(clone);
                times[3].push(pause);
                turn += 1;
                // SAFETY: our own child.
                unsafe { libc::kill(subject.pid as i32, libc::SIGUSR1) };
                subject.wait_for(&format!("round {turn}\n"));
            }
            let [fresh, again, clone, pause, whole] = times.each_mut().map(|times| median(times));
            println!(
                "{mib:5}  {order:<14} {fresh:9.1} ms {again:9.1} ms {clone:5.1} ms {pause:5.1} ms \
                 {whole:6.1} ms  {:6.3}  {:6.3}",
                pause / fresh,
                pause / again
            );
        }
        subject.kill();
    }
}
