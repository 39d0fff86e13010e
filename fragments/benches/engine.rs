//! Cost of a message in the engine alone: two engines, frames handed over in memory.
#![allow(missing_docs)]

mod null;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use null::Pair;

fn messages(c: &mut Criterion) {
    let mut group = c.benchmark_group("message");
    for bytes in [0, 8, 256, 4096] {
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("expected", bytes), |b| {
            let mut pair = Pair::new();
            b.iter(|| {
                pair.receive(1, 5, bytes);
                pair.send(0, 5, bytes);
                pair.deliver(1);
            });
        });
        group.bench_function(BenchmarkId::new("unexpected", bytes), |b| {
            let mut pair = Pair::new();
            b.iter(|| {
                pair.send(0, 5, bytes);
                pair.deliver(1);
                pair.receive(1, 5, bytes);
            });
        });
        group.bench_function(BenchmarkId::new("send alone", bytes), |b| {
            let mut pair = Pair::new();
            b.iter(|| pair.send(0, 5, bytes));
        });
    }
    group.finish();
}

fn ping_pong(c: &mut Criterion) {
    c.bench_function("ping-pong of 8 bytes, there and back", |b| {
        let mut pair = Pair::new();
        b.iter(|| {
            pair.receive(1, 5, 8);
            pair.send(0, 5, 8);
            pair.deliver(1);
            pair.receive(0, 5, 8);
            pair.send(1, 5, 8);
            pair.deliver(0);
        });
    });
}

criterion_group!(benches, messages, ping_pong);
criterion_main!(benches);
