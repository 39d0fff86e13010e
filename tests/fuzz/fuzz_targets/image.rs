//! Arbitrary bytes as an image: header, records, and a table whose checksum is made right.
#![no_main]

use rustbtl_checkpoint::image::{Header, Record, checksum, records};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = Header::decode(data, data.len() as u64);
    for record in records(data).map_while(Result::ok) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(Record::decode(&mut rustbtl_checkpoint::image::Reader::new(&bytes)), Ok(record));
    }
    let header = Header {
        metadata_offset: 1 << 30,
        metadata_bytes: 0,
        table_offset: 1 << 30,
        blocks: data.len() as u64 / 32,
        metadata_checksum: 0,
        table_checksum: checksum(&data[..data.len() / 32 * 32]),
    };
    for block in header.table(&data[..data.len() / 32 * 32]).unwrap_or_default() {
        let _ = block.unpack(data, &mut Vec::new());
    }
});
