//! Arbitrary bytes as the entries of a journal, the checksum made right.
#![no_main]

use rustbtl_checkpoint::file_undo::{Entry, HEAD_BYTES, Head};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some((head, body)) = data.split_first_chunk::<HEAD_BYTES>()
        && let Some(head) = Head::decode(*head)
    {
        let _ = head.is_of(body);
    }
    if let Ok(entry) = Entry::decode(data) {
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        let (head, body) = bytes.split_first_chunk::<HEAD_BYTES>().unwrap();
        // Longer ones are no entries.
        assert!(Head::decode(*head).is_none_or(|head| head.is_of(body)));
        assert_eq!(body, data);
    }
});
