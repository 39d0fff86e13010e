//! Writing an image: the description that the process made, and its memory, read by this process.

use super::draft::Draft;
use super::history::{History, Unchanged};
use super::maps::{self, Usage};
use super::store::{Piece, Stored, store};
use super::{ImageStats, WriteOptions};
use crate::build_id::FileIdentity;
use crate::error::ProcessImageError;
use crate::freeze::memory_copies::READ_ONLY_BYTES_MAX;
use crate::pages::Memory;
use crate::proc_files::{self, MapLine};
use crate::processor;
use rustbtl_checkpoint::image::ImageError;
use rustbtl_checkpoint::image::record::{
    self, AuxiliaryVector, KernelCode, Mapping, MemoryFields, Origin, Processor, Record,
    SharedObject, SharedRun,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What an image is made of.
struct Gathered {
    metadata: Vec<u8>,
    pieces: Vec<Piece>,
    identities: BTreeMap<PathBuf, FileIdentity>,
    /// Device and inode of each space; (0, 0) is the memory itself.
    objects: Vec<(u64, u64)>,
    unchanged: Unchanged,
}

/// Writes the image of the process `pid` (a frozen child, or one that waits in `while_paused`).
pub fn write_image(
    pid: u32,
    description: &[u8],
    path: &Path,
    options: &WriteOptions,
) -> Result<ImageStats, ProcessImageError> {
    write_next_image(pid, description, path, path, options, &mut History::new(0))
}

/// Writes the next image of a process, of which older ones may have most pages already. It is
/// written to `path`; where that is a name for the time being only, `known_as` is the one that it
/// will have in the same folder, beside which it finds those that it refers to.
pub fn write_next_image(
    pid: u32,
    description: &[u8],
    path: &Path,
    known_as: &Path,
    options: &WriteOptions,
    history: &mut History,
) -> Result<ImageStats, ProcessImageError> {
    let start = Instant::now();
    let memory = Memory::of(pid)?;
    let mut gathered = Gathered::default();
    gathered.gather(pid, description, &memory)?;
    let is_whole = || {
        // A frozen child that ended meanwhile has left zeros where its memory was.
        let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
        let what = format!("process {pid} ({})", String::from_utf8_lossy(&stat));
        let reason = "it ended while its memory was read";
        if is_dead(&stat) { Err(ProcessImageError::Refused { what, reason }) } else { Ok(()) }
    };
    let mut stats =
        write_gathered(&memory, gathered, is_whole, (path, known_as), options, history)?;
    stats.write_us = start.elapsed().as_micros() as u64 - stats.sync_us;
    Ok(stats)
}

/// Writes what was gathered; `is_whole` checks the process when all is read.
fn write_gathered(
    memory: &Memory,
    mut gathered: Gathered,
    is_whole: impl FnOnce() -> Result<(), ProcessImageError>,
    (path, known_as): (&Path, &Path),
    options: &WriteOptions,
    history: &mut History,
) -> Result<ImageStats, ProcessImageError> {
    let draft = Draft::create(path)?;
    let Gathered { metadata, pieces, objects, unchanged, .. } = &mut gathered;
    let linked_bases = history.is_on().then(|| history.link_bases(known_as, objects, unchanged));
    let Stored { mut blocks, mut noted, end, mut stats } =
        store(memory, pieces, &draft, options, linked_bases.as_ref())?;
    blocks.sort_unstable_by_key(|block| (block.space, block.address));
    noted.sort_unstable_by_key(|noted| noted.at);
    let bases = linked_bases.map(|linked_bases| linked_bases.finish(&mut blocks, metadata));
    stats.blocks = blocks.len() as u64;
    let publish = || -> Result<_, ProcessImageError> {
        let finished = draft.finish(end, metadata, &blocks)?;
        is_whole()?;
        let start = Instant::now();
        draft.publish(options.sync)?;
        Ok((finished, start.elapsed().as_micros() as u64))
    };
    let published = publish().inspect_err(|_| {
        bases.iter().flatten().for_each(|link| drop(fs::remove_file(link)));
    });
    let (finished, sync_us) = published?;
    (stats.file_bytes, stats.sync_us) = (finished.1, sync_us);
    if let Some(bases) = &bases {
        let (written, found) = ((&finished.0, finished.1), (&blocks[..], &noted[..]));
        let of = (known_as, unchanged.snapshot);
        history.add(of, written, objects, found, bases);
    }
    Ok(stats)
}

fn is_dead(stat: &[u8]) -> bool {
    let after_name = stat.iter().rposition(|byte| *byte == b')').map_or(0, |at| at + 2);
    matches!(stat.get(after_name), Some(b'Z' | b'X') | None)
}

impl Default for Gathered {
    fn default() -> Self {
        let (metadata, pieces, identities) = (Vec::new(), Vec::new(), BTreeMap::new());
        let (objects, unchanged) = (vec![(0, 0)], Unchanged::default());
        Self { metadata, pieces, identities, objects, unchanged }
    }
}

impl Gathered {
    fn gather(
        &mut self,
        pid: u32,
        description: &[u8],
        memory: &Memory,
    ) -> Result<(), ProcessImageError> {
        let (mut holes, mut runs, mut not_forked, mut text) =
            (Vec::new(), Vec::new(), Vec::new(), &[][..]);
        for record in record::records(description) {
            let record = record?;
            match record {
                Record::Excluded(range) => holes.push((range.start, range.end)),
                Record::SharedRun(run) => runs.push(run),
                Record::NotForked(range) => not_forked.push(range),
                Record::Maps(maps) => text = maps.text,
                Record::Unchanged(record) => self.unchanged = Unchanged::of(&record),
                _ => {}
            }
            // What only the writer needs.
            if !matches!(record, Record::SharedRun(_) | Record::Maps(_) | Record::Unchanged(_)) {
                record.encode(&mut self.metadata);
            }
        }
        if text.is_empty() {
            return Err(ImageError::Value("description: no maps").into());
        }
        let spaces = self.shared_objects(&runs, text);
        let usage = maps::usage(pid)?;
        for map in proc_files::lines(text).filter_map(MapLine::parse) {
            let mut usage = usage.get(&map.start).cloned();
            if let Some(range) = not_forked.iter().find(|range| range.start == map.start) {
                let mut known = usage.unwrap_or_default();
                known.flags.push(if range.wiped { *b"wf" } else { *b"dc" });
                usage = Some(known);
            }
            for part in maps::without((map.start, map.end), &holes) {
                self.mapping(&map, part, usage.as_ref(), &spaces, memory)?;
            }
        }
        for run in runs {
            let key = (run.device, run.inode);
            let space = if key == (0, 0) { 0 } else { spaces[&key] };
            let (address, from, bytes) = (run.offset, run.copy, run.bytes);
            self.pieces.push(Piece { space, address, from, bytes });
        }
        self.pieces = disjoint(std::mem::take(&mut self.pieces));
        self.machine_records(pid, text, memory)
    }

    /// Names the objects: spaces from 1 on.
    fn shared_objects(&mut self, runs: &[SharedRun], maps: &[u8]) -> BTreeMap<(u64, u64), u16> {
        let mut objects: BTreeMap<(u64, u64), (u64, Vec<u8>)> = BTreeMap::new();
        for run in runs.iter().filter(|run| run.inode != 0 || run.device != 0) {
            let object = objects.entry((run.device, run.inode)).or_default();
            object.0 = object.0.max(run.offset + run.bytes);
        }
        for map in proc_files::lines(maps).filter_map(MapLine::parse).filter(MapLine::is_shared) {
            let object = objects.entry((map.device, map.inode)).or_default();
            object.0 = object.0.max(map.offset + map.end - map.start);
            object.1 = map.path.to_vec();
        }
        let mut spaces = BTreeMap::new();
        for (space, ((device, inode), (bytes, path))) in (1..).zip(&objects) {
            spaces.insert((*device, *inode), space);
            self.objects.push((*device, *inode));
            let (device, inode) = (*device, *inode);
            SharedObject { space: space.into(), device, inode, bytes: *bytes, path }
                .encode(&mut self.metadata);
        }
        spaces
    }

    fn mapping(
        &mut self,
        map: &MapLine<'_>,
        (start, end): (u64, u64),
        usage: Option<&Usage>,
        spaces: &BTreeMap<(u64, u64), u16>,
        memory: &Memory,
    ) -> Result<(), ProcessImageError> {
        if map.path == b"[vsyscall]" {
            return Ok(());
        }
        let mut record = Mapping {
            start,
            end,
            protection: protection(&map.access),
            kind: record::MAPPING_ANONYMOUS,
            flags: 0,
            offset: map.offset + (start - map.start),
            device: map.device,
            inode: map.inode,
            file_bytes: 0,
            changed_ns: 0,
            path: map.path,
            build_id: b"",
        };
        if map.path.starts_with(b"[v") {
            record.kind = record::MAPPING_KERNEL;
            record.encode(&mut self.metadata);
            return Ok(());
        }
        let shown = || {
            let path = String::from_utf8_lossy(map.path);
            format!("memory {start:x}-{end:x} {path}")
        };
        let Some(usage) = usage else {
            let reason = "the frozen copy does not have it: freeze again";
            return Err(ProcessImageError::Refused { what: shown(), reason });
        };
        record.flags = advice(usage);
        refuse(usage).map_err(|reason| ProcessImageError::Refused { what: shown(), reason })?;
        let mut identity = FileIdentity::default();
        let has_file = map.path.starts_with(b"/") && map.inode != 0;
        if map.is_shared() {
            let named = !map.is_deleted() && map.access[1] != b'w';
            let again = named && map.end - map.start > READ_ONLY_BYTES_MAX;
            record.kind = if again { record::MAPPING_SHARED_FILE } else { record::MAPPING_SHARED };
            if !spaces.contains_key(&(map.device, map.inode)) {
                return Err(ImageError::Value("description: a shared object is missing").into());
            }
        } else if has_file && !map.is_deleted() {
            record.kind = record::MAPPING_FILE;
        }
        if matches!(record.kind, record::MAPPING_FILE | record::MAPPING_SHARED_FILE) {
            identity = self.identity(map.path)?;
        }
        (record.file_bytes, record.changed_ns) = (identity.bytes, identity.changed_ns);
        record.build_id = &identity.build_id;
        if !map.is_shared() && !usage.has(b"dc") && !usage.has(b"wf") {
            let deleted = has_file && map.is_deleted();
            let runs = if deleted {
                // No file to take clean pages from, also those that nobody has touched yet.
                vec![(start, end)]
            } else if usage.own_kib > 0 {
                memory.own_pages((start, end))?
            } else {
                Vec::new()
            };
            if !runs.is_empty() {
                record.flags |= record::MAPPING_FLAG_FILLED;
            }
            for (from, end) in runs {
                let piece = Piece { space: 0, address: from, from, bytes: end - from };
                self.pieces.push(piece);
            }
        } else if !map.is_shared() {
            record.flags |= record::MAPPING_FLAG_FILLED;
        }
        record.encode(&mut self.metadata);
        Ok(())
    }

    fn identity(&mut self, path: &[u8]) -> Result<FileIdentity, ProcessImageError> {
        use std::os::unix::ffi::OsStrExt;
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        if let Some(identity) = self.identities.get(path) {
            return Ok(identity.clone());
        }
        let identity = FileIdentity::of(path)
            .map_err(ProcessImageError::system(path.display().to_string()))?;
        self.identities.insert(path.to_owned(), identity.clone());
        Ok(identity)
    }

    /// What a restore needs to know of the machine.
    fn machine_records(
        &mut self,
        pid: u32,
        maps: &[u8],
        memory: &Memory,
    ) -> Result<(), ProcessImageError> {
        let read = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            fs::read(&path).map_err(ProcessImageError::system(path))
        };
        AuxiliaryVector { bytes: &read("auxv")? }.encode(&mut self.metadata);
        memory_fields(&read("stat")?)
            .ok_or(ImageError::Value("/proc/PID/stat"))?
            .encode(&mut self.metadata);
        let code = proc_files::lines(maps).filter_map(MapLine::parse);
        for map in code.filter(|map| map.path == b"[vdso]") {
            let mut bytes = vec![0; (map.end - map.start) as usize];
            let reading = ProcessImageError::system("reading the kernel's code in the process");
            memory.read(map.start, &mut bytes).map_err(reading)?;
            KernelCode { start: map.start, bytes: &bytes }.encode(&mut self.metadata);
        }
        Processor { flags: processor::flags().as_bytes() }.encode(&mut self.metadata);
        let boot = proc_files::machine().map_err(ProcessImageError::system("boot_id in /proc"))?;
        Origin { boot: boot.as_bytes() }.encode(&mut self.metadata);
        Ok(())
    }
}

fn protection(access: &[u8; 4]) -> u32 {
    let bit = |at: usize, letter, bit: i32| if access[at] == letter { bit as u32 } else { 0 };
    bit(0, b'r', libc::PROT_READ) | bit(1, b'w', libc::PROT_WRITE) | bit(2, b'x', libc::PROT_EXEC)
}

fn advice(usage: &Usage) -> u32 {
    let table: [(&[u8; 2], u32); 8] = [
        (b"gd", record::MAPPING_FLAG_GROWS),
        (b"hg", record::MAPPING_FLAG_HUGE),
        (b"nh", record::MAPPING_FLAG_NOT_HUGE),
        (b"dc", record::MAPPING_FLAG_NO_FORK),
        (b"wf", record::MAPPING_FLAG_WIPE),
        (b"dd", record::MAPPING_FLAG_NO_DUMP),
        (b"lo", record::MAPPING_FLAG_LOCKED),
        (b"nr", record::MAPPING_FLAG_NO_RESERVE),
    ];
    table.iter().filter(|(flag, _)| usage.has(flag)).map(|(_, bit)| bit).sum()
}

fn refuse(usage: &Usage) -> Result<(), &'static str> {
    let table: [(&[u8; 2], &str); 6] = [
        (b"io", "it is memory of a device; close the device for the checkpoint"),
        (b"pf", "it is memory of a device; close the device for the checkpoint"),
        (b"ht", "huge pages of hugetlbfs are not supported; use transparent ones"),
        (b"um", "it is watched by a userfaultfd"),
        (b"uw", "it is watched by a userfaultfd"),
        (b"ss", "it is a shadow stack; start the program without"),
    ];
    if usage.key != 0 {
        return Err("it has a protection key");
    }
    table.iter().find(|(flag, _)| usage.has(flag)).map_or(Ok(()), |(_, reason)| Err(reason))
}

/// Fields 26 to 28 and 45 to 51 of /proc/PID/stat.
fn memory_fields(stat: &[u8]) -> Option<MemoryFields> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let text = std::str::from_utf8(stat.get(after_name..)?).ok()?;
    let words: Vec<&str> = text.split_whitespace().collect();
    // The first word after the name is field 3.
    let field = |number: usize| words.get(number - 3)?.parse().ok();
    Some(MemoryFields {
        start_code: field(26)?,
        end_code: field(27)?,
        start_stack: field(28)?,
        start_data: field(45)?,
        end_data: field(46)?,
        start_brk: field(47)?,
        arg_start: field(48)?,
        arg_end: field(49)?,
        env_start: field(50)?,
        env_end: field(51)?,
    })
}

/// In order, and each page once: an object may be mapped at several places.
fn disjoint(mut pieces: Vec<Piece>) -> Vec<Piece> {
    pieces.sort_unstable_by_key(|piece| (piece.space, piece.address));
    let mut free = (0, 0);
    for piece in &mut pieces {
        let end = piece.address + piece.bytes;
        let start = if piece.space == free.0 { piece.address.max(free.1) } else { piece.address };
        let start = start.min(end);
        (piece.from, piece.bytes) = (piece.from + (start - piece.address), end - start);
        piece.address = start;
        let before = if piece.space == free.0 { free.1 } else { 0 };
        free = (piece.space, end.max(before));
    }
    pieces.retain(|piece| piece.bytes > 0);
    pieces
}

#[cfg(test)]
mod incremental_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_mapped_twice_are_stored_once() {
        let piece = |space, address, from, bytes| Piece { space, address, from, bytes };
        let pieces = vec![
            piece(1, 0x2000, 0x92000, 0x3000),
            piece(0, 0x9000, 0x9000, 0x1000),
            piece(1, 0x1000, 0x51000, 0x2000),
            piece(1, 0x3000, 0x33000, 0x1000),
            piece(2, 0, 0x70000, 0x1000),
        ];
        let found: Vec<_> = disjoint(pieces)
            .iter()
            .map(|piece| (piece.space, piece.address, piece.from, piece.bytes))
            .collect();
        let expected = [
            (0, 0x9000, 0x9000, 0x1000),
            (1, 0x1000, 0x51000, 0x2000),
            (1, 0x3000, 0x93000, 0x2000),
            (2, 0, 0x70000, 0x1000),
        ];
        assert_eq!(found, expected);
    }
}
