//! Images as another machine would have written them: the same file, one record changed, all
//! checksums right.

use rustbtl_checkpoint::image::record::{self, Mapping};
use rustbtl_checkpoint::image::{HEADER_BYTES, Header, Record, checksum, records};
use std::path::Path;

/// How the other machine differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Difference {
    /// Its kernel has other code in the vdso.
    Kernel,
    /// Its kernel maps a page more of its own.
    KernelMappings,
    /// Its processor has more features.
    Processor,
    /// Its registers are larger.
    State,
    /// Its C library was built from something else.
    Library,
    /// It has a folder that is not here, where the program worked.
    Folder,
    /// It has a file that is not here, which the program had open.
    OpenFile,
}

impl Difference {
    /// All of them, their names on a command line, and the message of a refusal.
    pub const ALL: [(Difference, &'static str, &'static str); 7] = [
        (Difference::Kernel, "kernel", "the kernel's code (vdso)"),
        (Difference::KernelMappings, "kernel-mappings", "the kernel's own mappings"),
        (Difference::Processor, "processor", "the processor, which lacks avx_of_the_future"),
        (Difference::State, "state", "extended processor state (0x4000000000000000 is missing"),
        (Difference::Library, "library", "libc.so.6: the program had mapped another version"),
        (Difference::Folder, "folder", "/not/here: the program's working directory"),
        (Difference::OpenFile, "open-file", "/not/here: the program had it open"),
    ];

    /// The changed record, or nothing if it is not concerned.
    fn change(self, found: Record<'_>, out: &mut Vec<u8>) -> bool {
        const NOT_HERE: &[u8] = b"/not/here";
        match (self, found) {
            (Difference::Kernel, Record::KernelCode(mut code)) => {
                let mut bytes = code.bytes.to_vec();
                bytes[code.bytes.len() / 2] ^= 1;
                code.bytes = &bytes;
                code.encode(out);
            }
            (Difference::KernelMappings, Record::Mapping(mut map))
                if map.kind == record::MAPPING_KERNEL =>
            {
                map.end += 4096;
                map.encode(out);
            }
            (Difference::Processor, Record::Processor(mut can)) => {
                let flags = [can.flags, b" avx_of_the_future"].concat();
                can.flags = &flags;
                can.encode(out);
            }
            (Difference::State, Record::Process(mut process)) => {
                process.state_enabled |= 1 << 62;
                process.encode(out);
            }
            (Difference::Library, Record::Mapping(map)) if map.path.ends_with(b"/libc.so.6") => {
                Mapping { build_id: b"of another distribution", ..map }.encode(out);
            }
            (Difference::Folder, Record::WorkingDirectory(mut folder)) => {
                folder.path = NOT_HERE;
                folder.encode(out);
            }
            (Difference::OpenFile, Record::Descriptor(mut open))
                if open.kind == record::DESCRIPTOR_FILE =>
            {
                open.data = NOT_HERE;
                open.encode(out);
            }
            _ => return false,
        }
        true
    }

    /// Changes the image; panics if it has nothing of the kind.
    pub fn doctor(self, image: &Path) {
        let mut bytes = std::fs::read(image).unwrap();
        let header = Header::decode(&bytes, bytes.len() as u64).unwrap();
        let part = |from: u64, length: usize| &bytes[from as usize..from as usize + length];
        let (mut metadata, mut changed) = (Vec::new(), false);
        for found in records(part(header.metadata_offset, header.metadata_bytes as usize)) {
            let found = found.unwrap();
            if self.change(found, &mut metadata) {
                changed = true;
            } else {
                found.encode(&mut metadata);
            }
        }
        assert!(changed, "{self:?}: the image has no such record");
        let table = part(header.table_offset, header.table_bytes()).to_vec();
        let end = bytes.len() as u64;
        let header = Header {
            metadata_offset: end,
            metadata_bytes: metadata.len() as u64,
            table_offset: end + metadata.len() as u64,
            metadata_checksum: checksum(&metadata),
            ..header
        };
        bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
        bytes.extend_from_slice(&metadata);
        bytes.extend_from_slice(&table);
        std::fs::write(image, bytes).unwrap();
    }
}
