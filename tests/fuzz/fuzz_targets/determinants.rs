//! Determinants and batches of them that decode are the same when they are encoded and decoded
//! again; a process that replays anything at all reads dates and clocks that do not decrease.
#![no_main]

use rustbtl_coordination::determinants::{
    CLOCKS, ClockReadings, Determinant, DeterminantBatch, Piggybacked, ProgramTime, Ticks, decode,
    encode, rank_batch,
};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    while let Ok(determinant) = decode(&mut rest) {
        let mut bytes = Vec::new();
        encode(&determinant, &mut bytes);
        assert_eq!(decode(&mut bytes.as_slice()), Ok(determinant));
    }
    if let Ok(batch) = DeterminantBatch::decode(data) {
        assert_eq!(DeterminantBatch::decode(&batch.encode()), Ok(batch));
    }
    if let Ok(piggybacked) = Piggybacked::decode(data) {
        assert_eq!(Piggybacked::decode(&piggybacked.encode()), Ok(piggybacked));
    }
    let _ = rank_batch::read_recorded(data);
    let all = rank_batch::read(data).unwrap_or_default();
    let mut clock = ClockReadings::default();
    let kept = all.into_iter().filter_map(|(_, determinant)| match determinant {
        Determinant::ProgramTime(date) => Some(date),
        Determinant::Readings(readings) => {
            assert!(usize::from(readings.clock) < CLOCKS);
            clock.force(*readings);
            None
        }
        _ => None,
    });
    let mut dates = ProgramTime::default();
    dates.restored(kept);
    let given: Vec<u64> = (0..100).map(|now| dates.read(now).0).collect();
    assert!(given.is_sorted());
    let read = |now| clock.read(0, now, Ticks { now, per_us: 1 }).0;
    let given: Vec<u64> = (0..100).map(read).collect();
    assert!(given.is_sorted());
});
