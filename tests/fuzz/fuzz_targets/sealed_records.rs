//! Whatever arrives, in whatever pieces: nothing is opened that was not sealed, and nothing after a
//! refusal.
#![no_main]

use rustbtl_coordination::sealed_records::{Opener, RECORD_BYTES_MAX, Sealer};

const KEY: [u8; 32] = [7; 32];

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [first, rest @ ..] = data else { return };
    // A good record, some bits of which are changed, or the bytes as they are.
    let mut bytes = Vec::new();
    Sealer::new(&KEY).seal(b"the text of a record", &mut bytes);
    let good = bytes.clone();
    for (byte, change) in bytes.iter_mut().zip(rest) {
        *byte ^= change;
    }
    let arrives = if first % 2 == 0 { &bytes[..] } else { rest };
    let is_good = arrives.starts_with(&good);
    let mut opener = Opener::new(&KEY);
    let (mut opened, mut refused) = (0, false);
    for piece in arrives.chunks(usize::from(first / 2).max(1)) {
        opener.add(piece);
        loop {
            match opener.next_text() {
                Ok(Some(text)) => {
                    assert!(!refused && is_good && opened == 0 && text.len() <= RECORD_BYTES_MAX);
                    assert_eq!(text, b"the text of a record");
                    opened += 1;
                }
                Ok(None) => break assert!(!refused),
                Err(_) => break refused = true,
            }
        }
    }
});
