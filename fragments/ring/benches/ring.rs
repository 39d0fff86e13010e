//! One push and one pop on one thread: what the ring costs beside the cache lines. (Between two
//! threads: `examples/pingpong.rs`, since criterion cannot pin two.)

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rustbtl_ring::heap;
use std::hint::black_box;

fn push_and_pop(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring");
    for payload in [0usize, 8, 32, 64, 256, 4096] {
        let (mut input, mut output) = heap(64 << 10);
        let mut header = [7; 32];
        header[..4].copy_from_slice(&(32 + payload as u32).to_le_bytes());
        let data = vec![1; payload];
        let mut into = vec![0; payload];
        group.throughput(Throughput::Bytes(payload as u64));
        group.bench_function(BenchmarkId::new("push and pop", payload), |b| {
            b.iter(|| {
                assert!(input.try_push(black_box(&header), black_box(&data)));
                let (start, len) = output.peek().expect("no damage").expect("a frame");
                // SAFETY: the frame has `len` bytes and stays until `consume`.
                let frame = unsafe { std::slice::from_raw_parts(start, len) };
                into[..len - 32].copy_from_slice(&frame[32..]);
                output.consume();
                black_box(&into);
            });
        });
    }
    let (_input, mut output) = heap(64 << 10);
    group.bench_function("idle poll", |b| b.iter(|| black_box(output.peek()).is_ok()));
    group.finish();
}

criterion_group!(benches, push_and_pop);
criterion_main!(benches);
