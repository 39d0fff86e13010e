//! The format of images; names of tests name the invariants of `image.rs`.

use super::block::{BLOCK_BYTES_MAX, BLOCK_ENTRY_BYTES};
use super::record::{self, Descriptor, Mapping, Process, Thread};
use super::*;
use proptest::prelude::*;

fn thread() -> Thread {
    Thread {
        tid: 7,
        role: 1,
        large_state: true,
        slot: 1,
        stack: 2,
        fs: 3,
        gs: 4,
        robust_head: 5,
        robust_bytes: 24,
        tid_address: 6,
        rseq: 7,
        rseq_bytes: 32,
        rseq_signature: 0x5305_3053,
        name: *b"checkpoint\0\0\0\0\0\0",
        schedule: 20 << 16,
        affinity: [0xff; 128],
    }
}

fn process() -> Process {
    Process {
        pid: 100,
        generation: 0,
        page_bytes: 4096,
        umask: 0o22,
        personality: 0,
        brk: 0x1000,
        state_permitted: 0,
        state_enabled: 7,
        resume_entry: 1,
        resume_context: 2,
        thread_entry: 3,
        restore_args: 4,
        restore_args_bytes: 5,
    }
}

fn descriptor(data: &[u8]) -> Descriptor<'_> {
    Descriptor {
        fd: 3,
        same_as: -1,
        kind: record::DESCRIPTOR_FILE,
        close_on_exec: true,
        flags: 2,
        device: 1,
        inode: 2,
        a: 3,
        b: 4,
        c: 5,
        data,
    }
}

/// A whole small file: header, two blocks, metadata, table.
fn file() -> Vec<u8> {
    let (mut buffer, mut bytes, mut table) = (Vec::new(), vec![0; HEADER_BYTES], Vec::new());
    let pages: [(u64, Vec<u8>); 2] =
        [(0x10000, vec![7; 8192]), (0x20000, (0..=255).cycle().take(4096).collect())];
    for (address, memory) in &pages {
        let (mut block, stored) = Block::pack((0, *address), memory, Compression::Lz4, &mut buffer);
        block.offset = bytes.len() as u64;
        bytes.extend_from_slice(stored);
        block.encode(&mut table);
    }
    let mut metadata = Vec::new();
    process().encode(&mut metadata);
    thread().encode(&mut metadata);
    descriptor(b"/tmp/x").encode(&mut metadata);
    let header = Header {
        metadata_offset: bytes.len() as u64,
        metadata_bytes: metadata.len() as u64,
        table_offset: (bytes.len() + metadata.len()) as u64,
        blocks: 2,
        metadata_checksum: checksum(&metadata),
        table_checksum: checksum(&table),
    };
    bytes.extend_from_slice(&metadata);
    bytes.extend_from_slice(&table);
    bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
    bytes
}

/// Reads everything, as a restore does; gives the sum of all memory.
fn read_all(bytes: &[u8]) -> Result<u64, ImageError> {
    let header = Header::decode(bytes, bytes.len() as u64)?;
    let part = |offset: u64, count: usize| &bytes[offset as usize..offset as usize + count];
    let metadata = part(header.metadata_offset, header.metadata_bytes as usize);
    header.check_metadata(metadata)?;
    for record in records(metadata) {
        record?;
    }
    let table = header.table(part(header.table_offset, header.table_bytes()))?;
    let mut buffer = Vec::new();
    let mut sum = 0;
    for block in table {
        let memory = block.unpack(part(block.offset, block.stored as usize), &mut buffer)?;
        sum += memory.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    }
    Ok(sum)
}

#[test]
fn golden_bytes_of_a_header() {
    let header = Header {
        metadata_offset: 0x1000,
        metadata_bytes: 0x20,
        table_offset: 0x1020,
        blocks: 1,
        metadata_checksum: 0x0102_0304,
        table_checksum: 0x0506_0708,
    };
    let expected = "5242544c494d470a03000000400000000010000000000000200000000000000020100000000000\
        00010000000000000004030201080706050000000068de4190";
    assert_eq!(hex(&header.encode()), expected);
    assert_eq!(Header::decode(&header.encode(), 1 << 20), Ok(header));
}

#[test]
fn golden_bytes_of_records_and_entries() {
    let mut bytes = Vec::new();
    descriptor(b"/x").encode(&mut bytes);
    let expected = "04003c000000\
        03000000ffffffff03010200000001000000000000000200000000000000\
        03000000000000000400000000000000\
        0500000000000000020000002f78";
    assert_eq!(hex(&bytes), expected);
    let mut buffer = Vec::new();
    let (block, _) = Block::pack((1, 0x2000), &[5; 4096], Compression::None, &mut buffer);
    let mut bytes = Vec::new();
    block.encode(&mut bytes);
    let expected = "00200000000000000000000000000000001000000010000078782c7b01000000";
    assert_eq!(hex(&bytes), expected);
}

#[test]
fn golden_bytes_of_an_entry_that_refers_to_another_image() {
    let elsewhere = Elsewhere { image: 2, block: 7, skip: 0x3000 };
    let block = Block::refer((1, 0x2000), (4096, checksum(&[5; 4096])), elsewhere);
    let mut bytes = Vec::new();
    block.encode(&mut bytes);
    let expected = "00200000000000000700000000300000001000000000000078782c7b01000002";
    assert_eq!(hex(&bytes), expected);
    assert_eq!(table_of(&bytes).unwrap(), [block]);
    assert_eq!(block.check_memory(&[5; 4096]), Ok(()));
    assert!(block.check_memory(&[6; 4096]).is_err());
}

#[test]
fn invariant_6_references_that_cannot_be_are_refused() {
    let whole = BLOCK_BYTES_MAX as u32;
    let good = Elsewhere { image: 1, block: 0, skip: 0x3000 };
    let of = |elsewhere| Block::refer((0, 0x2000), (4096, checksum(&[5; 4096])), elsewhere);
    let refused = |block: Block| {
        let mut bytes = Vec::new();
        block.encode(&mut bytes);
        table_of(&bytes).unwrap_err()
    };
    let what = ImageError::Value("reference to another image");
    for skip in [whole, whole - 2048, 1, u32::MAX] {
        assert_eq!(refused(of(Elsewhere { skip, ..good })), what, "{skip:#x}");
    }
    assert_eq!(refused(Block { stored: 4096, ..of(good) }), what);
    assert_eq!(refused(Block { compression: Compression::Zstd, ..of(good) }), what);
}

/// What decoding a table of this one entry gives.
fn table_of(entry: &[u8]) -> Result<Vec<Block>, ImageError> {
    let header = Header {
        metadata_offset: 1 << 30,
        metadata_bytes: 0,
        table_offset: 1 << 30,
        blocks: 1,
        metadata_checksum: 0,
        table_checksum: checksum(entry),
    };
    header.table(entry)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_file_reads_back() {
    let sum = 8192 * 7 + (0..=255u64).sum::<u64>() * 16;
    assert_eq!(read_all(&file()), Ok(sum));
}

#[test]
fn invariant_1_every_flipped_bit_is_refused_with_a_reason() {
    let good = file();
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            let error = read_all(&bad).expect_err("a damaged image is not read");
            assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn invariant_2_every_truncation_is_refused() {
    let good = file();
    for length in 0..good.len() {
        assert!(read_all(&good[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn invariant_2_lengths_have_limits() {
    let of = |metadata_bytes, blocks| {
        let header = Header {
            metadata_offset: 64,
            metadata_bytes,
            table_offset: 64,
            blocks,
            metadata_checksum: 0,
            table_checksum: 0,
        };
        Header::decode(&header.encode(), u64::MAX).map(|_| ())
    };
    assert_eq!(of(1 << 40, 1), Err(ImageError::Limit("length of the metadata")));
    assert_eq!(of(1, 1 << 40), Err(ImageError::Limit("number of blocks")));
}

#[test]
fn invariant_5_blocks_out_of_order_are_refused() {
    let page = [1u8; 4096];
    let mut buffer = Vec::new();
    let table = |blocks: &[(u64, u64)], buffer: &mut Vec<u8>| {
        let mut table = Vec::new();
        for (address, offset) in blocks {
            let (mut block, _) = Block::pack((0, *address), &page, Compression::None, buffer);
            block.offset = *offset;
            block.encode(&mut table);
        }
        let header = Header {
            metadata_offset: 1 << 20,
            metadata_bytes: 0,
            table_offset: 1 << 20,
            blocks: blocks.len() as u64,
            metadata_checksum: 0,
            table_checksum: checksum(&table),
        };
        header.table(&table).map(|table| table.len())
    };
    assert_eq!(table(&[(0x1000, 64), (0x2000, 4160)], &mut buffer), Ok(2));
    assert_eq!(table(&[(0x1000, 4160), (0x2000, 64)], &mut buffer), Ok(2));
    let bad = [
        [(0x2000, 64), (0x1000, 4160)],
        [(0x1000, 64), (0x1000, 4160)],
        [(0x1000, 64), (0x2000, 100)],
        [(0x1000, 0), (0x2000, 4160)],
    ];
    for blocks in bad {
        assert_eq!(table(&blocks, &mut buffer), Err(ImageError::Order), "{blocks:?}");
    }
    assert_eq!(table(&[(0x1000, 1 << 20)], &mut buffer), Err(ImageError::Short));
}

proptest! {
    #[test]
    fn invariant_3_arbitrary_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..600)
    ) {
        let _ = Header::decode(&bytes, bytes.len() as u64);
        for record in records(&bytes) {
            let _ = record;
        }
        if let Some(entry) = bytes.get(..BLOCK_ENTRY_BYTES) {
            let _ = table_of(entry);
        }
    }

    #[test]
    fn invariant_4_what_is_decoded_encodes_to_the_same_bytes(
        start in any::<u64>(),
        flags in any::<u32>(),
        data in prop::collection::vec(any::<u8>(), 0..300)
    ) {
        let mapping = Mapping {
            start,
            end: start.wrapping_add(4096),
            protection: 3,
            kind: record::MAPPING_FILE,
            flags,
            offset: 1,
            device: 2,
            inode: 3,
            file_bytes: 4,
            changed_ns: -5,
            path: &data,
            build_id: &data[..data.len() / 2],
        };
        let mut bytes = Vec::new();
        mapping.encode(&mut bytes);
        let decoded = records(&bytes).next().unwrap().unwrap();
        prop_assert_eq!(decoded, Record::Mapping(mapping));
        let mut again = Vec::new();
        decoded.encode(&mut again);
        prop_assert_eq!(again, bytes);
    }

    #[test]
    fn blocks_come_back_as_they_were(
        pages in 1..4usize, seed in any::<u64>(), lz4 in any::<bool>(), runs in 1..5000usize
    ) {
        let mut state = seed;
        let memory: Vec<u8> = (0..pages * 4096).map(|at| {
            if at % runs == 0 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            }
            (state >> 56) as u8
        }).collect();
        let compression = if lz4 { Compression::Lz4 } else { Compression::None };
        let (mut buffer, mut back) = (Vec::new(), Vec::new());
        let (block, stored) = Block::pack((0, 4096), &memory, compression, &mut buffer);
        prop_assert!(memory.len() <= BLOCK_BYTES_MAX);
        prop_assert_eq!(block.unpack(stored, &mut back).unwrap(), &memory[..]);
    }
}
