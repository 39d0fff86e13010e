//! What is in an image, sorted by what a restore does with it; and whether this machine is
//! suitable.

use super::descriptors::Descriptors;
use super::image_file::ImageFile;
use crate::build_id::FileIdentity;
use crate::error::ProcessImageError;
use crate::pages;
use crate::proc_files::{self, MapLine};
use crate::processor::{self, enabled_state};
use rustbtl_checkpoint::image::ImageError;
use rustbtl_checkpoint::image::record::{
    self, Descriptor, Mapping, MemoryFields, Process, Record, SharedObject, Thread,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// First address where the restorer is tried, and the distance to the next.
const BASE_FIRST: u64 = 0x1000_0000_0000;
const BASE_STEP: u64 = 1 << 32;
/// Above it the kernel has put the stack and its own code.
const BASE_END: u64 = 0x7000_0000_0000;

/// Did the kernel map it into the process by itself, at an address of its own choice?
pub fn is_kernel_mapping(map: &MapLine<'_>) -> bool {
    map.path.starts_with(b"[v") && map.path != b"[vsyscall]"
}

/// See the head of this file.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The process.
    pub process: Process,
    /// The checkpoint thread and the suspended ones, in the order of the image.
    pub threads: Vec<Thread>,
    /// In the order of their addresses.
    pub mappings: Vec<Mapping<'a>>,
    /// Descriptors and what belongs to them.
    pub descriptors: Descriptors<'a>,
    /// Shared objects.
    pub objects: Vec<SharedObject<'a>>,
    /// For `PR_SET_MM_MAP`.
    pub fields: MemoryFields,
    /// For `PR_SET_MM_MAP`.
    pub auxiliary: &'a [u8],
    /// The kernel's code.
    pub kernel_code: &'a [u8],
    /// The machine: shared objects of two have nothing to do with each other.
    pub origin: &'a str,
    processor: &'a [u8],
    pub folder: &'a [u8],
    /// Folder of the journals of what it changes in files, and the epoch that began with the image.
    pub file_undo: Option<(&'a [u8], u64)>,
}

const IS_MISSING: &str = "the program had it open or mapped at the checkpoint, and it is not on \
    this node. If it was in a folder of its node (/tmp, /dev/shm), it is lost with that node: have \
    the program keep such files in a folder that all nodes share, or close them before a \
    checkpoint";
/// When all are rolled back, a file is put back by whoever has removed it: at the same time.
const PUT_BACK_MAX: Duration = Duration::from_secs(5);
/// Between two looks.
const PUT_BACK_STEP: Duration = Duration::from_millis(20);

/// A file that the process needs. It may be on a node that is lost.
fn is_missing(path: &Path) -> ProcessImageError {
    ProcessImageError::Machine { what: path.display().to_string(), reason: IS_MISSING }
}

impl Plan<'_> {
    /// Of these files, some may have been removed since the snapshot, and perhaps made again.
    pub fn note_removed(&mut self, shared: &BTreeSet<Vec<u8>>) {
        let is_removed = |open: &&Descriptor<'_>| {
            let path = Path::new(OsStr::from_bytes(open.data));
            open.kind == record::DESCRIPTOR_FILE
                && open.same_as < 0
                && shared.contains(open.data)
                && path.metadata().map_or(true, |now| now.ino() != open.inode)
        };
        let removed = self.descriptors.all.iter().filter(is_removed).map(|open| open.fd);
        self.descriptors.removed = removed.collect();
    }

    /// All files are there and what they were, or are so soon, if others put files back, too.
    pub fn await_all_files(&self, alone: bool) -> Result<(), ProcessImageError> {
        let until = Instant::now() + PUT_BACK_MAX;
        loop {
            match self.check_all_files() {
                Err(ProcessImageError::Machine { reason: IS_MISSING, .. })
                    if !alone && Instant::now() < until =>
                {
                    std::thread::sleep(PUT_BACK_STEP);
                }
                checked => return checked,
            }
        }
    }
}

impl<'a> Plan<'a> {
    /// Sorts the records.
    pub fn of(image: &'a ImageFile) -> Result<Self, ProcessImageError> {
        let process = image.process()?;
        let mut fields = None;
        let (mut threads, mut mappings, mut objects) = (Vec::new(), Vec::new(), Vec::new());
        let (mut auxiliary, mut kernel_code) = (&[][..], &[][..]);
        let (mut processor, mut folder) = (&[][..], &[][..]);
        let (mut origin, mut file_undo) = ("", None);
        let mut descriptors = Descriptors::default();
        for record in image.records() {
            match record {
                Record::Thread(thread) => threads.push(thread),
                Record::Mapping(mapping) => mappings.push(mapping),
                Record::Descriptor(descriptor) => descriptors.all.push(descriptor),
                Record::EpollWatch(watch) => descriptors.watches.push(watch),
                Record::PipeContent(pipe) => descriptors.pipes.push(pipe),
                Record::SharedObject(object) => objects.push(object),
                Record::MemoryFields(found) => fields = Some(found),
                Record::AuxiliaryVector(vector) => auxiliary = vector.bytes,
                Record::KernelCode(code) => kernel_code = code.bytes,
                Record::Processor(found) => processor = found.flags,
                Record::Origin(found) => {
                    let fine = found.boot.iter().all(|byte| byte.is_ascii_hexdigit());
                    let text = std::str::from_utf8(found.boot).ok().filter(|_| fine);
                    origin = text.ok_or(ImageError::Value("name of the machine"))?;
                }
                Record::FileUndo(found) => file_undo = Some((found.folder, found.epoch)),
                Record::WorkingDirectory(found) => folder = found.path,
                _ => {}
            }
        }
        mappings.sort_by_key(|mapping| mapping.start);
        let fields = fields.ok_or(ImageError::Value("metadata: no memory fields"))?;
        let plan = Self {
            process,
            threads,
            mappings,
            descriptors,
            objects,
            fields,
            auxiliary,
            kernel_code,
            origin,
            processor,
            folder,
            file_undo,
        };
        plan.leader()?;
        Ok(plan)
    }

    /// Bytes of a shared object, from its beginning, that the process has mapped without a gap.
    pub fn mapped_from_beginning(&self, key: (u64, u64)) -> u64 {
        let of_it = |map: &&Mapping<'_>| {
            map.kind == record::MAPPING_SHARED && (map.device, map.inode) == key
        };
        let range = |map: &Mapping<'_>| (map.offset, map.offset + (map.end - map.start));
        let mut ranges: Vec<_> = self.mappings.iter().filter(of_it).map(range).collect();
        ranges.sort_unstable();
        let longer = |so_far: u64, &(from, to): &(u64, u64)| {
            if from <= so_far { so_far.max(to) } else { so_far }
        };
        ranges.iter().fold(0, longer)
    }

    /// The leader thread.
    pub fn leader(&self) -> Result<&Thread, ProcessImageError> {
        let leader = self.threads.iter().find(|thread| thread.tid == self.process.pid);
        let one = self.threads.iter().filter(|thread| thread.role == 1).count() == 1;
        let leader = leader.filter(|leader| one && leader.role == 0);
        leader.ok_or(ProcessImageError::Image(ImageError::Value("threads")))
    }

    /// Invariant 2 of `restore.rs`: what can be known before there is a process.
    pub fn check_machine(&self) -> Result<(), ProcessImageError> {
        // The kernel's code is the same in every process: here as in the one to come.
        let path = "/proc/self/maps";
        let text = fs::read(path).map_err(ProcessImageError::system(path))?;
        let maps = proc_files::lines(&text).filter_map(MapLine::parse);
        let kernel: Vec<MapLine<'_>> = maps.filter(is_kernel_mapping).collect();
        self.check_kernel(std::process::id(), &kernel)?;
        let missing_state = self.process.state_enabled & !enabled_state();
        if missing_state != 0 {
            let what = format!("extended processor state ({missing_state:#x} is missing here)");
            let reason = "registers would be lost; restore on a processor of the same kind";
            return Err(ProcessImageError::Machine { what, reason });
        }
        let here = processor::flags();
        let has = |word: &str| here.split(' ').any(|own| own == word);
        let wanted = String::from_utf8_lossy(self.processor);
        let missing: Vec<&str> =
            wanted.split(' ').filter(|word| !word.is_empty() && !has(word)).collect();
        if !missing.is_empty() {
            let what = format!("the processor, which lacks {}", missing.join(" "));
            let reason = "the program has chosen its code by these; use a processor that has them";
            return Err(ProcessImageError::Machine { what, reason });
        }
        if !Path::new(OsStr::from_bytes(self.folder)).is_dir() {
            let what = String::from_utf8_lossy(self.folder).into_owned();
            let reason = "the program's working directory does not exist here";
            return Err(ProcessImageError::Machine { what, reason });
        }
        Ok(())
    }

    /// The same for files, when those that the program changed have been put back.
    pub fn check_all_files(&self) -> Result<(), ProcessImageError> {
        self.check_open_files()?;
        self.check_files()
    }

    /// Is what the kernel has mapped into a process, in the order of addresses, what it had mapped
    /// into this one?
    pub fn check_kernel(&self, pid: u32, here: &[MapLine<'_>]) -> Result<(), ProcessImageError> {
        let wanted: Vec<&Mapping<'_>> = self.kernel_mappings().collect();
        let same = wanted.len() == here.len()
            && wanted
                .iter()
                .zip(here)
                .all(|(was, is)| was.path == is.path && was.end - was.start == is.end - is.start);
        let reason = "the C library has noted addresses in it; restore under the same kernel";
        let differs = |what: &str| ProcessImageError::Machine { what: what.into(), reason };
        if !same {
            return Err(differs("the kernel's own mappings"));
        }
        for code in here.iter().filter(|map| map.path == b"[vdso]") {
            let mut bytes = vec![0; (code.end - code.start) as usize];
            let reading = ProcessImageError::system("reading the kernel's code");
            pages::read(pid, code.start, &mut bytes).map_err(reading)?;
            if bytes != self.kernel_code {
                return Err(differs("the kernel's code (vdso)"));
            }
        }
        Ok(())
    }

    /// What the kernel had mapped.
    pub fn kernel_mappings(&self) -> impl Iterator<Item = &Mapping<'a>> {
        self.mappings.iter().filter(|map| map.kind == record::MAPPING_KERNEL)
    }

    /// Files that the process had open are reopened, some truncated to their size: none before all
    /// are there.
    fn check_open_files(&self) -> Result<(), ProcessImageError> {
        let opened = [record::DESCRIPTOR_FILE, record::DESCRIPTOR_PATH];
        let is_opened = |open: &&Descriptor<'_>| open.same_as < 0 && opened.contains(&open.kind);
        let needs = |open: &&Descriptor<'_>| !self.descriptors.removed.contains(&open.fd);
        for open in self.descriptors.all.iter().filter(is_opened).filter(needs) {
            let mapped = |object: &SharedObject<'_>| {
                (object.device, object.inode) == (open.device, open.inode)
            };
            let path = Path::new(OsStr::from_bytes(open.data));
            // What is in /proc is there when the process is.
            let comes = path.starts_with("/proc") || self.objects.iter().any(mapped);
            if !comes && !path.exists() {
                return Err(is_missing(path));
            }
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), ProcessImageError> {
        let mut identities: BTreeMap<&[u8], FileIdentity> = BTreeMap::new();
        for mapping in &self.mappings {
            if !matches!(mapping.kind, record::MAPPING_FILE | record::MAPPING_SHARED_FILE) {
                continue;
            }
            let path = Path::new(OsStr::from_bytes(mapping.path));
            let shown = path.display().to_string();
            if !identities.contains_key(mapping.path) {
                let identity = FileIdentity::of(path).map_err(|error| match error.kind() {
                    ErrorKind::NotFound => is_missing(path),
                    _ => ProcessImageError::System { what: shown.clone(), error },
                })?;
                identities.insert(mapping.path, identity);
            }
            let was = FileIdentity {
                bytes: mapping.file_bytes,
                changed_ns: mapping.changed_ns,
                build_id: mapping.build_id.to_vec(),
            };
            if !identities.get(mapping.path).is_some_and(|identity| identity.is_same(&was)) {
                let reason = "the program had mapped another version of it; install that version";
                return Err(ProcessImageError::Machine { what: shown, reason });
            }
        }
        Ok(())
    }

    /// An address where `bytes` are free in the image, and where the kernel puts nothing.
    pub fn base_for(&self, bytes: u64) -> Result<u64, ProcessImageError> {
        let mut base = BASE_FIRST;
        while base < BASE_END {
            let overlaps =
                self.mappings.iter().any(|map| map.start < base + bytes && base < map.end);
            if !overlaps {
                return Ok(base);
            }
            base += BASE_STEP;
        }
        let what = "the address space of the image".into();
        Err(ProcessImageError::Refused { what, reason: "there is no room for the restorer" })
    }
}
