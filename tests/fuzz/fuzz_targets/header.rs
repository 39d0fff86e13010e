//! What decodes encodes to the same bytes.
#![no_main]

use rustbtl_fragments::wire::{FrameType, HEADER_BYTES, Header};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(header) = Header::decode(data) {
        let mut again = header.encode();
        if !matches!(header.kind, FrameType::Eager | FrameType::Announce) {
            again[7] = data[7];
        }
        assert_eq!(again, data[..HEADER_BYTES]);
    }
});
