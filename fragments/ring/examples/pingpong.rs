//! Half round trip through two rings between two pinned threads, and the message rate of one;
//! beside it the same for one bare cache line, which is the limit of the machine.
//!
//! `cargo run --release -p rustbtl-ring --example pingpong`
// A benchmark measures time.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use rustbtl_ring::{Consumer, Heap, Producer, heap};
use std::hint::{black_box, spin_loop};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

#[repr(align(128))]
struct CacheLine(AtomicU64);

fn pin(core: usize) {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a valid set; CPU_SET checks the index.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the pointer and the size belong to `set`.
    let failed = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) } != 0;
    if failed {
        eprintln!("cannot pin to core {core}: figures will vary");
    }
}

fn bare(rounds: u64) -> f64 {
    let there = CacheLine(AtomicU64::new(0));
    let back = CacheLine(AtomicU64::new(0));
    let (ready, mut elapsed) = (&Barrier::new(2), 0.0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            ready.wait();
            for i in 1..=rounds {
                while there.0.load(Ordering::Acquire) != i {}
                back.0.store(i, Ordering::Release);
            }
        });
        pin(0);
        ready.wait();
        let start = Instant::now();
        for i in 1..=rounds {
            there.0.store(i, Ordering::Release);
            while back.0.load(Ordering::Acquire) != i {}
        }
        elapsed = start.elapsed().as_nanos() as f64;
    });
    elapsed / rounds as f64 / 2.0
}

fn header(payload: usize) -> [u8; 32] {
    let mut header = [7; 32];
    header[..4].copy_from_slice(&(32 + payload as u32).to_le_bytes());
    header
}

#[inline]
fn push(ring: &mut Producer<Heap>, payload: &[u8]) {
    while !ring.try_push(&header(payload.len()), payload) {
        spin_loop();
    }
}

#[inline]
fn pop(ring: &mut Consumer<Heap>, into: &mut [u8]) {
    loop {
        if let Some((start, len)) = ring.peek().expect("damage") {
            let len = len - 32;
            // SAFETY: the frame has `len` bytes behind its header.
            let frame = unsafe { std::slice::from_raw_parts(start, 32 + len) };
            into[..len].copy_from_slice(&frame[32..]);
            ring.consume();
            return;
        }
    }
}

fn pingpong(ring_bytes: usize, payload: usize, rounds: u64) -> f64 {
    let (mut there_in, mut there_out) = heap(ring_bytes);
    let (mut back_in, mut back_out) = heap(ring_bytes);
    let (ready, mut elapsed) = (&Barrier::new(2), 0.0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(1);
            ready.wait();
            let data = vec![1; payload];
            let mut into = vec![0; payload];
            for _ in 0..rounds {
                pop(&mut there_out, &mut into);
                push(&mut back_in, black_box(&data));
            }
            black_box(into);
        });
        pin(0);
        ready.wait();
        let data = vec![1; payload];
        let mut into = vec![0; payload];
        let start = Instant::now();
        for _ in 0..rounds {
            push(&mut there_in, black_box(&data));
            pop(&mut back_out, &mut into);
        }
        elapsed = start.elapsed().as_nanos() as f64;
        black_box(into);
    });
    elapsed / rounds as f64 / 2.0
}

fn rate(ring_bytes: usize, payload: usize, messages: u64) -> f64 {
    let (mut input, mut output) = heap(ring_bytes);
    let (ready, mut elapsed) = (&Barrier::new(2), 0.0);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(1);
            ready.wait();
            let data = vec![1; payload];
            for _ in 0..messages {
                push(&mut input, black_box(&data));
            }
        });
        pin(0);
        ready.wait();
        let mut into = vec![0; payload];
        let start = Instant::now();
        for _ in 0..messages {
            pop(&mut output, &mut into);
        }
        elapsed = start.elapsed().as_secs_f64();
        black_box(into);
    });
    messages as f64 / elapsed
}

fn main() {
    let median = |mut runs: Vec<f64>| {
        runs.sort_by(f64::total_cmp);
        runs[runs.len() / 2]
    };
    let ring_bytes = std::env::args().nth(1).map_or(64 << 10, |v| v.parse().expect("ring bytes"));
    let line = median((0..5).map(|_| bare(1_000_000)).collect());
    println!("bare cache line        {line:8.1} ns per half round trip");
    for payload in [0, 8, 32, 64, 256, 1024, 4096] {
        let rounds = if payload > 512 { 300_000 } else { 1_000_000 };
        let time = median((0..5).map(|_| pingpong(ring_bytes, payload, rounds)).collect());
        println!("ring {payload:5} B            {time:8.1} ns   {:.2} x bare", time / line);
    }
    for payload in [8, 64, 256, 4096, 12 << 10] {
        let messages = if payload > 512 { 500_000 } else { 5_000_000 };
        let per_second = median((0..5).map(|_| rate(ring_bytes, payload, messages)).collect());
        println!(
            "rate {payload:5} B            {:8.2} M messages/s   {:8.0} MB/s",
            per_second / 1e6,
            per_second * payload as f64 / 1e6
        );
    }
}
