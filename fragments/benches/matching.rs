//! Matching among many: the cost must not grow with what waits.
#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rustbtl_fragments::matching::{ANY_SOURCE, ANY_TAG, Key, Posted, Unexpected};

fn key(at: u32) -> Key {
    Key { context: 0, source: at % 64, tag: (at / 64) as i32 }
}

fn posted(c: &mut Criterion) {
    let mut group = c.benchmark_group("posted");
    for waiting in [1, 100, 10_000] {
        for wild in [false, true] {
            let name = if wild { "with a wildcard behind" } else { "exact" };
            group.bench_function(BenchmarkId::new(name, waiting), |b| {
                let mut posted = Posted::default();
                (0..waiting).for_each(|at| posted.insert(at, key(at)));
                if wild {
                    let any = Key { context: 0, source: ANY_SOURCE, tag: ANY_TAG };
                    posted.insert(waiting, any);
                }
                let mut at = 0;
                b.iter(|| {
                    let slot = posted.take(key(at));
                    posted.insert(at, key(at));
                    at = if at + 1 == waiting { 0 } else { at + 1 };
                    slot
                });
            });
        }
    }
    group.finish();
}

fn unexpected(c: &mut Criterion) {
    let mut group = c.benchmark_group("unexpected");
    for waiting in [1, 100, 10_000] {
        for wild in [false, true] {
            let name = if wild { "any source, any tag" } else { "exact" };
            group.bench_function(BenchmarkId::new(name, waiting), |b| {
                let mut unexpected = Unexpected::default();
                (0..waiting).for_each(|at| unexpected.insert(at, key(at)));
                let any = Key { context: 0, source: ANY_SOURCE, tag: ANY_TAG };
                let mut at = 0;
                b.iter(|| {
                    let pattern = if wild { any } else { key(at) };
                    let slot = unexpected.find(pattern);
                    if let Some(slot) = slot {
                        unexpected.remove(slot);
                        unexpected.insert(slot, key(slot));
                    }
                    at = if at + 1 == waiting { 0 } else { at + 1 };
                    slot
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, posted, unexpected);
criterion_main!(benches);
