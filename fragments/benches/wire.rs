//! How long it takes to encode and to decode a header.
#![allow(missing_docs)]

use criterion::{Criterion, criterion_group, criterion_main};
use rustbtl_fragments::ids::Incarnation;
use rustbtl_fragments::payload_digest::PayloadDigest;
use rustbtl_fragments::wire::{FrameType, Header};
use std::hint::black_box;

fn header(c: &mut Criterion) {
    let header = Header {
        length: 32,
        kind: FrameType::Eager,
        flags: 0,
        context: 3,
        source: 5,
        tag: 9,
        from: Incarnation(0),
        to: Incarnation(0),
        sequence: 77,
        digest: PayloadDigest::NONE,
    };
    c.bench_function("encode", |b| b.iter(|| black_box(&header).encode()));
    let frame = header.encode();
    c.bench_function("decode", |b| b.iter(|| Header::decode(black_box(&frame))));
}

criterion_group!(benches, header);
criterion_main!(benches);
