//! What a copy into the payload log costs, beside a bare memcpy of the same bytes.
//!
//! `cargo bench -p rustbtl-checkpoint`. Goal (DESIGN §10): append of 1 MiB messages into a fresh
//! arena reaches 0.9 of the bandwidth of memcpy to fresh memory. Both sides get their memory
//! from the same allocator in pieces of the same size, never touched before.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use rustbtl_checkpoint::{LogLimits, PayloadLog, SegmentMemory, SegmentSource};
use rustbtl_fragments::host::LogEntry;
use rustbtl_fragments::ids::{CommRank, ContextId, MessageSeq, PeerId, SetId};
use rustbtl_fragments::payload_digest::PayloadDigest;
use rustbtl_fragments::wire::StreamKey;
use std::hint::black_box;

/// Zeroed vectors: above malloc's threshold these are mappings with fresh pages.
#[derive(Clone)]
struct Fresh;

impl SegmentMemory for Fresh {
    type Segment = Vec<u8>;
    type Error = ();

    fn allocate(&mut self, bytes: usize, source: SegmentSource) -> Result<Vec<u8>, ()> {
        if source == SegmentSource::Spill {
            return Err(());
        }
        Ok(vec![0; bytes])
    }
}

fn entry(sequence: u64, bytes: usize) -> LogEntry {
    LogEntry {
        to: PeerId(3),
        set: SetId(2),
        stream: StreamKey::of(ContextId(0), 1),
        sequence: MessageSeq(sequence),
        source: CommRank(0),
        tag: 1,
        bytes: bytes as u64,
        digest: PayloadDigest::NONE,
    }
}

fn send(log: &mut PayloadLog<Fresh>, from: &[u8], count: u64) {
    for sequence in 0..count {
        let entry = entry(sequence, from.len());
        let record = log.append(&entry, |into| into.copy_from_slice(from));
        black_box(record.unwrap());
    }
}

/// 64 messages of 1 MiB, into memory that nobody has touched.
fn large(c: &mut Criterion) {
    const BYTES: usize = 1 << 20;
    const COUNT: u64 = 64;
    const PIECE: usize = 4 << 20;
    let from = vec![0x5A_u8; BYTES];
    let mut group = c.benchmark_group("1MiB");
    group.throughput(Throughput::Bytes(COUNT * BYTES as u64)).sample_size(20);
    group.bench_function("memcpy_fresh", |b| {
        b.iter_batched(
            Vec::<Vec<u8>>::new,
            |mut pieces| {
                for _ in 0..COUNT as usize * BYTES / PIECE {
                    let mut piece = vec![0; PIECE];
                    for part in piece.chunks_mut(BYTES) {
                        part.copy_from_slice(black_box(&from));
                    }
                    pieces.push(piece);
                }
                pieces
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("log_fresh", |b| {
        b.iter_batched(
            || PayloadLog::new(Fresh, LogLimits::default()),
            |mut log| {
                send(&mut log, &from, COUNT);
                log
            },
            BatchSize::PerIteration,
        );
    });
    let mut touched = vec![1_u8; COUNT as usize * BYTES];
    group.bench_function("memcpy_touched", |b| {
        b.iter(|| {
            for part in touched.chunks_mut(BYTES) {
                part.copy_from_slice(black_box(&from));
            }
        });
    });
    let mut log = PayloadLog::new(Fresh, LogLimits::default());
    send(&mut log, &from, COUNT);
    group.bench_function("log_recycled", |b| {
        b.iter(|| {
            log.trim(SetId(2), |_| true);
            send(&mut log, &from, COUNT);
        });
    });
    group.finish();
}

/// Rounds that fill the log with 384 MiB, each followed by a trim: the first one, later ones, and
/// ones whose messages have another size than those before, with a budget that holds no more than
/// one round: segments of another size have to do.
fn rounds(c: &mut Criterion) {
    const MIB: u64 = 1 << 20;
    const BYTES: u64 = 384 * MIB;
    let from = vec![0x5A_u8; 3 << 20];
    let mut group = c.benchmark_group("rounds");
    group.throughput(Throughput::Bytes(BYTES)).sample_size(10);
    group.bench_function("log_first_round", |b| {
        b.iter_batched(
            || PayloadLog::new(Fresh, LogLimits::default()),
            |mut log| {
                send(&mut log, &from[..1 << 20], BYTES / MIB);
                log
            },
            BatchSize::PerIteration,
        );
    });
    let mut log = PayloadLog::new(Fresh, LogLimits::default());
    send(&mut log, &from[..1 << 20], BYTES / MIB);
    group.bench_function("log_later_round", |b| {
        b.iter(|| {
            log.trim(SetId(2), |_| true);
            send(&mut log, &from[..1 << 20], BYTES / MIB);
        });
    });
    let limits = LogLimits { budget_bytes: BYTES + 8 * MIB, ..LogLimits::default() };
    let mut log = PayloadLog::new(Fresh, limits);
    let mut large = true;
    group.bench_function("log_at_budget", |b| {
        b.iter(|| {
            log.trim(SetId(2), |_| true);
            let bytes = if large { 3 } else { 1 } * MIB;
            send(&mut log, &from[..bytes as usize], BYTES / bytes);
            large = !large;
        });
    });
    group.finish();
}

/// 4,096 small messages into recycled segments; with the time of the bare copies.
fn small(c: &mut Criterion) {
    const COUNT: u64 = 4096;
    for bytes in [8, 256, 4096] {
        let from = vec![0x5A_u8; bytes];
        let mut group = c.benchmark_group(format!("{bytes}B"));
        group.throughput(Throughput::Elements(COUNT)).sample_size(50);
        let mut touched = vec![1_u8; COUNT as usize * bytes];
        group.bench_function("memcpy_touched", |b| {
            b.iter(|| {
                for part in touched.chunks_exact_mut(bytes) {
                    part.copy_from_slice(black_box(&from));
                }
            });
        });
        let mut log = PayloadLog::new(Fresh, LogLimits::default());
        group.bench_function("log_recycled_trimmed", |b| {
            b.iter(|| {
                log.trim(SetId(2), |_| true);
                send(&mut log, &from, COUNT);
            });
        });
        group.bench_function("log_recycled", |b| {
            b.iter_batched_ref(
                || {
                    let mut warm = log.clone();
                    warm.trim(SetId(2), |_| true);
                    warm
                },
                |log| send(log, &from, COUNT),
                BatchSize::LargeInput,
            );
        });
        group.bench_function("log_fresh", |b| {
            b.iter_batched(
                || PayloadLog::new(Fresh, LogLimits::default()),
                |mut log| {
                    send(&mut log, &from, COUNT);
                    log
                },
                BatchSize::PerIteration,
            );
        });
        let mut records = Vec::new();
        let mut log = PayloadLog::new(Fresh, LogLimits::default());
        for sequence in 0..COUNT {
            let entry = entry(sequence, bytes);
            records.extend(log.append(&entry, |into| into.copy_from_slice(&from)));
        }
        group.bench_function("payload", |b| {
            b.iter(|| records.iter().map(|&record| log.payload(record)[0] as u64).sum::<u64>());
        });
        group.bench_function("next", |b| {
            b.iter(|| {
                let mut at = None;
                while let Some((record, _)) = log.next(PeerId(3), at) {
                    at = Some(record);
                }
                at
            });
        });
        group.finish();
    }
}

criterion_group!(benches, large, rounds, small);
criterion_main!(benches);
