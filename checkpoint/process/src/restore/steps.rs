//! Restoring a process from an image: the order of steps.
//!
//! Source: FACTS-image §6 (RESTORE). Everything is done through [`RemoteSyscalls`]; the restored
//! threads run code of the image from the moment that they are started, and wait there for their
//! checkpoint thread, which releases them when the process is complete.

use super::folders;
use super::image_file::{ImageFile, ReadBuffers};
use super::plan::{self, Plan};
use super::remote_syscalls::{Mmap, RemoteSyscalls};
use super::restorer::{Start, span};
use super::shared_name::{NotNamed, SharedName};
use super::shared_object::{self, Kind, SHARED};
use super::threads::{self, PreparedThread};
use super::{Ids, RestoreOptions, RestoredChild};
use crate::error::ProcessImageError;
use crate::file_undo::{self, Rollback, RolledBack};
use crate::pages;
use crate::proc_files::{self, MapLine};
use crate::processor::LARGE_STATE;
use crate::restore_args::{MUTED_MAX, PAYLOAD_BYTES_MAX, RestoreArgs};
use crate::session_folders::{OWN_MEMORY, SERVER_MEMORY};
use rustbtl_checkpoint::image::record::{self, Mapping};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Makes a process from an image. It runs when this returns.
pub fn restore(path: &Path, options: RestoreOptions) -> Result<RestoredChild, ProcessImageError> {
    let start = Instant::now();
    let image = ImageFile::open(path)?;
    let mut plan = Plan::of(&image)?;
    folders::make_working_directory(plan.folder);
    plan.check_machine()?;
    // Before files are looked for: one may have another name since.
    let files = match plan.file_undo {
        Some((folder, epoch)) => {
            let folder = Path::new(OsStr::from_bytes(folder));
            file_undo::roll_back(&Rollback { folder, epoch, alone: options.alone })?
        }
        None => RolledBack::default(),
    };
    plan.note_removed(&files.shared);
    plan.await_all_files(options.alone)?;
    if options.payload.len() > PAYLOAD_BYTES_MAX {
        let what = format!("a payload of {} bytes", options.payload.len());
        return Err(ProcessImageError::Refused { what, reason: "64 KiB are the limit" });
    }
    let (objects, not_named) = make_objects(&image, &plan, &options)?;
    let mut restoring = Restoring::begin(&mut plan, &options, &objects)?;
    restoring.map_memory()?;
    let filled_bytes = restoring.fill(&image, options.threads)?;
    folders::make_temporary_folder(restoring.remote.pid(), &restoring.plan.fields);
    restoring.finish_memory()?;
    let muted = restoring.descriptors(&options)?;
    let ids = restoring.threads()?;
    restoring.thread_files(&ids)?;
    let same_ids = restoring.remote.has_pid() && ids.iter().all(|(was, is)| was == is);
    restoring.write_restore_args(same_ids, &muted, &options.payload)?;
    let pid = restoring.start()?;
    let restore_us = start.elapsed().as_micros() as u64;
    let shared = objects.into_values().map(Into::into).collect();
    Ok(RestoredChild {
        pid,
        same_ids,
        filled_bytes,
        restore_us,
        shared,
        not_named,
        not_put_back: files.not_put_back,
    })
}

/// Shared objects with their content, by device and inode.
type Objects = BTreeMap<(u64, u64), File>;

fn make_objects(
    image: &ImageFile,
    plan: &Plan<'_>,
    options: &RestoreOptions,
) -> Result<(Objects, Vec<NotNamed>), ProcessImageError> {
    let (mut made, mut not_named) = (Objects::new(), Vec::new());
    for shared in &plan.objects {
        let key = (shared.device, shared.inode);
        // Not those of mappings that the process has excluded.
        let mapped = plan
            .mappings
            .iter()
            .any(|map| map.kind == record::MAPPING_SHARED && (map.device, map.inode) == key);
        let unnamed = plan.descriptors.all.iter().any(|open| {
            open.kind == record::DESCRIPTOR_UNNAMED && (open.device, open.inode) == key
        });
        if !mapped && !unnamed {
            continue;
        }
        let writes = plan.mappings.iter().any(|map| {
            (map.device, map.inode) == key && map.protection & libc::PROT_WRITE as u32 != 0
        });
        let same = |device, inode| (device, inode) == key;
        // The exact size of a file that was open, else the pages that were mapped.
        let open = plan.descriptors.all.iter().find(|open| same(open.device, open.inode));
        let bytes = open.map_or(shared.bytes, |open| open.b);
        let named = match Kind::of(shared.path, writes, &options.detached) {
            Kind::File(path) => {
                made.insert(key, shared_object::write_back(image, shared, path)?);
                continue;
            }
            Kind::NamedMemory(path) => {
                let is_here = proc_files::machine().is_ok_and(|here| here == plan.origin);
                let device = is_here.then_some(shared.device);
                // What was open to be read the image has as a whole.
                let is_open = open.is_some_and(|open| {
                    open.kind == record::DESCRIPTOR_FILE
                        && open.flags & libc::O_ACCMODE as u32 != libc::O_WRONLY as u32
                });
                let whole = if is_open { u64::MAX } else { plan.mapped_from_beginning(key) };
                let together = options.together;
                (SHARED, Some(SharedName { path, whole, writes, device, together }))
            }
            Kind::Memory => (SHARED, None),
            Kind::Own => (OWN_MEMORY, None),
            Kind::OfServer => (SERVER_MEMORY, None),
        };
        let (named, registry) = ((named.0, named.1.as_ref()), options.shared.as_ref());
        let (file, failed) =
            shared_object::make(image, shared, plan.origin, named, bytes, registry)?;
        made.insert(key, file);
        not_named.extend(failed);
    }
    Ok((made, not_named))
}

struct Restoring<'a, 'b> {
    plan: &'b Plan<'a>,
    remote: RemoteSyscalls,
    /// Numbers of shared objects in the new process.
    objects: BTreeMap<(u64, u64), RawFd>,
    socket: RawFd,
    leader: Option<PreparedThread>,
    wanted_ids: bool,
}

impl<'a, 'b> Restoring<'a, 'b> {
    /// Starts the restorer, with the descriptors that it inherits.
    fn begin(
        plan: &'b mut Plan<'a>,
        options: &RestoreOptions,
        files: &Objects,
    ) -> Result<Self, ProcessImageError> {
        let threads_bytes = threads::descriptions_bytes(plan.threads.len());
        // Address space for moving the kernel's code out of the way, too.
        let bytes = span(threads_bytes) + (1 << 20);
        let base = plan.base_for(bytes)?;
        let mut descriptors: Vec<(RawFd, RawFd)> =
            options.supplied.iter().map(|(to, from)| (*to, from.as_raw_fd())).collect();
        let highest = descriptors.iter().map(|(to, _)| *to).max().unwrap_or(0);
        // The far ends of muted sockets and of pipes get the numbers behind these.
        let ends = 2 * plan.descriptors.all.len() as RawFd;
        let socket = plan.descriptors.highest().max(highest) + ends + 8;
        let mut objects = BTreeMap::new();
        for (number, (key, file)) in (socket + 1..).zip(files) {
            objects.insert(*key, number);
            descriptors.push((number, file.as_raw_fd()));
        }
        plan.descriptors.objects = objects.clone();
        plan.descriptors.alone = options.alone;
        let wanted_ids = options.ids == Ids::SameIfPermitted;
        let pid = wanted_ids.then_some(plan.process.pid);
        let mut remote =
            RemoteSyscalls::start(&Start { base, threads_bytes, descriptors, socket, pid })?;
        if options.dies_with_parent {
            remote.set_parent_death_signal(libc::SIGKILL)?;
        }
        Ok(Self { plan, remote, objects, socket, leader: None, wanted_ids })
    }

    /// Empties the address space, brings the kernel's code to its place, maps everything.
    fn map_memory(&mut self) -> Result<(), ProcessImageError> {
        // Its first answer proves that it runs: before, the maps are those of a copy of us.
        self.remote.getpid()?;
        let path = format!("/proc/{}/maps", self.remote.pid());
        let text = fs::read(&path).map_err(ProcessImageError::system(path))?;
        let own = self.remote.range();
        let mut kernel: Vec<MapLine<'_>> = Vec::new();
        for map in proc_files::lines(&text).filter_map(MapLine::parse) {
            if map.path == b"[vsyscall]" || map.start < own.1 && own.0 < map.end {
                continue;
            }
            if plan::is_kernel_mapping(&map) {
                kernel.push(map);
            } else {
                self.remote.queue_munmap(map.start, map.end - map.start)?;
            }
        }
        self.remote.flush()?;
        self.kernel_code(&kernel, own.1)?;
        let mut file: Option<(&[u8], RawFd)> = None;
        for mapping in &self.plan.mappings {
            self.map(mapping, &mut file)?;
        }
        if let Some((_, fd)) = file {
            self.remote.close(fd)?;
        }
        self.remote.flush()
    }

    fn kernel_code(&mut self, here: &[MapLine<'_>], free_at: u64) -> Result<(), ProcessImageError> {
        self.plan.check_kernel(self.remote.pid(), here)?;
        let wanted: Vec<&Mapping<'_>> = self.plan.kernel_mappings().collect();
        // By way of a free place: old and new places may overlap.
        let first = here.first().map_or(0, |map| map.start);
        let moves = here.iter().map(|map| (map.start, free_at + (map.start - first), map));
        let there = wanted.iter().zip(here);
        let back = there.map(|(was, map)| (free_at + (map.start - first), was.start, map));
        for (from, to, map) in moves.chain(back) {
            let bytes = map.end - map.start;
            self.remote.move_mapping(from, bytes, to).map_err(|_| {
                let reason = "the kernel does not let its code be moved (sealed mappings); start \
                    and restore the program with setarch --addr-no-randomize";
                ProcessImageError::Machine { what: "the place of the vdso".into(), reason }
            })?;
        }
        Ok(())
    }

    /// Maps one range, writable where it is going to be filled.
    fn map(
        &mut self,
        mapping: &Mapping<'a>,
        file: &mut Option<(&'a [u8], RawFd)>,
    ) -> Result<(), ProcessImageError> {
        let bytes = mapping.end - mapping.start;
        let filled = mapping.flags & record::MAPPING_FLAG_FILLED != 0;
        let writable = (libc::PROT_READ | libc::PROT_WRITE) as u32;
        let protection = if filled { writable } else { mapping.protection };
        let fixed = libc::MAP_FIXED_NOREPLACE;
        let mut flags = fixed | libc::MAP_PRIVATE;
        if mapping.flags & record::MAPPING_FLAG_NO_RESERVE != 0 {
            flags |= libc::MAP_NORESERVE;
        }
        let (fd, offset) = match mapping.kind {
            record::MAPPING_KERNEL => return Ok(()),
            record::MAPPING_ANONYMOUS => {
                flags |= libc::MAP_ANONYMOUS;
                if mapping.flags & record::MAPPING_FLAG_GROWS != 0 {
                    flags |= libc::MAP_GROWSDOWN;
                }
                (-1, 0)
            }
            record::MAPPING_SHARED => {
                flags = fixed | libc::MAP_SHARED;
                let number = self.objects.get(&(mapping.device, mapping.inode));
                let missing = || {
                    let what = String::from_utf8_lossy(mapping.path).into_owned();
                    ProcessImageError::Refused { what, reason: "its content is not in the image" }
                };
                (*number.ok_or_else(missing)?, mapping.offset)
            }
            _ => {
                let shared = mapping.kind == record::MAPPING_SHARED_FILE;
                if shared {
                    flags = fixed | libc::MAP_SHARED;
                }
                (self.file(mapping.path, file)?, mapping.offset)
            }
        };
        let start = mapping.start;
        self.remote.queue_mmap(&Mmap { start, bytes, protection, flags, fd, offset })?;
        for (flag, advice) in ADVICE_BEFORE {
            if mapping.flags & flag != 0 {
                self.remote.queue_madvise(start, bytes, advice)?;
            }
        }
        Ok(())
    }

    /// A file that is mapped; neighbours are of the same one.
    fn file(
        &mut self,
        path: &'a [u8],
        last: &mut Option<(&'a [u8], RawFd)>,
    ) -> Result<RawFd, ProcessImageError> {
        if let Some((open, fd)) = last {
            if *open == path {
                return Ok(*fd);
            }
            let fd = *fd;
            self.remote.close(fd)?;
        }
        let mut text = path.to_vec();
        text.push(0);
        let fd = self.remote.open(&text, (libc::O_RDONLY | libc::O_CLOEXEC) as u64)?;
        *last = Some((path, fd));
        Ok(fd)
    }

    /// Fills the memory, by several threads.
    fn fill(&self, image: &ImageFile, threads: usize) -> Result<u64, ProcessImageError> {
        let pid = self.remote.pid();
        let blocks: Vec<_> = image.blocks.iter().filter(|block| block.space == 0).collect();
        let next = AtomicUsize::new(0);
        let worker = || -> Result<(), ProcessImageError> {
            let mut buffers = ReadBuffers::default();
            while let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) {
                let data = image.block(block, &mut buffers)?;
                let writing = ProcessImageError::system("writing the memory of the new process");
                pages::write(pid, block.address, data).map_err(writing)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(worker)).collect();
            let mut outcome = worker();
            for other in others {
                outcome = outcome.and(other.join().unwrap_or(Ok(())));
            }
            outcome
        })?;
        Ok(blocks.iter().map(|block| u64::from(block.bytes)).sum())
    }

    /// Protections, advice, and what the kernel knows of the address space.
    fn finish_memory(&mut self) -> Result<(), ProcessImageError> {
        for mapping in &self.plan.mappings {
            let bytes = mapping.end - mapping.start;
            let writable = (libc::PROT_READ | libc::PROT_WRITE) as u32;
            let filled = mapping.flags & record::MAPPING_FLAG_FILLED != 0;
            if filled && mapping.protection != writable {
                self.remote.queue_mprotect(mapping.start, bytes, mapping.protection)?;
            }
            for (flag, advice) in ADVICE_AFTER {
                if mapping.flags & flag != 0 {
                    self.remote.queue_madvise(mapping.start, bytes, advice)?;
                }
            }
            if mapping.flags & record::MAPPING_FLAG_LOCKED != 0 {
                self.remote.queue_mlock(mapping.start, bytes)?;
            }
        }
        self.remote.flush()?;
        if self.plan.process.state_permitted & LARGE_STATE != 0 {
            self.remote.permit_tile_data()?;
        }
        self.memory_fields()
    }

    /// `struct prctl_mm_map`, so that the heap grows and /proc shows the command line.
    fn memory_fields(&mut self) -> Result<(), ProcessImageError> {
        let fields = &self.plan.fields;
        let auxiliary = self.remote.threads_at();
        self.remote.write_memory(auxiliary, self.plan.auxiliary)?;
        let mut data = Vec::new();
        for word in [
            fields.start_code,
            fields.end_code,
            fields.start_data,
            fields.end_data,
            fields.start_brk,
            self.plan.process.brk,
            fields.start_stack,
            fields.arg_start,
            fields.arg_end,
            fields.env_start,
            fields.env_end,
            auxiliary,
        ] {
            data.extend_from_slice(&word.to_le_bytes());
        }
        data.extend_from_slice(&(self.plan.auxiliary.len() as u32).to_le_bytes());
        data.extend_from_slice(&u32::MAX.to_le_bytes()); // the executable stays
        self.remote.set_memory_map(&data)
    }

    fn descriptors(
        &mut self,
        options: &RestoreOptions,
    ) -> Result<Vec<(RawFd, RawFd)>, ProcessImageError> {
        let supplied: Vec<RawFd> = options.supplied.iter().map(|(to, _)| *to).collect();
        let muted = self.plan.descriptors.make(&mut self.remote, &supplied)?;
        // Numbers that the image does not have would appear in the program from nowhere.
        let known = |fd: &&RawFd| self.plan.descriptors.all.iter().any(|open| open.fd == **fd);
        for fd in supplied.iter().filter(|fd| !known(fd)) {
            self.remote.close(*fd)?;
        }
        for fd in self.objects.values() {
            self.remote.close(*fd)?;
        }
        self.remote.flush()?;
        Ok(muted)
    }

    /// Starts all threads but the leader. What their ids are now, by what they were.
    fn threads(&mut self) -> Result<BTreeMap<u32, u32>, ProcessImageError> {
        let leader = self.plan.leader()?.tid;
        let mut ids = BTreeMap::from([(leader, self.remote.pid())]);
        let mut at = self.remote.threads_at();
        for thread in &self.plan.threads {
            threads::clear_rseq(&self.remote, thread)?;
            let is_leader = thread.tid == leader;
            let socket = is_leader.then_some(self.socket);
            let born = PreparedThread::write(&self.remote, thread, &self.plan.process, at, socket)?;
            at = born.end;
            if is_leader {
                self.leader = Some(born);
            } else {
                let wanted = self.wanted_ids.then_some(thread.tid);
                ids.insert(thread.tid, born.spawn(&mut self.remote, thread, wanted)?);
            }
        }
        Ok(ids)
    }

    /// Descriptors of files that exist only when the threads do.
    fn thread_files(&mut self, ids: &BTreeMap<u32, u32>) -> Result<(), ProcessImageError> {
        self.plan.descriptors.make_thread_files(&mut self.remote, ids)?;
        self.remote.flush()
    }

    fn write_restore_args(
        &mut self,
        same_ids: bool,
        pairs: &[(RawFd, RawFd)],
        payload: &[u8],
    ) -> Result<(), ProcessImageError> {
        let (start, end) = self.remote.range();
        let mut muted = [(-1, -1); MUTED_MAX];
        muted[..pairs.len()].copy_from_slice(pairs);
        let restore_args = RestoreArgs {
            restorer: start..end,
            same_ids,
            generation: self.plan.process.generation + 1,
            muted,
            muted_count: pairs.len(),
            payload,
        };
        self.remote.write_memory(self.plan.process.restore_args, &restore_args.encode())
    }

    /// The last step: the restorer becomes the leader thread.
    fn start(self) -> Result<u32, ProcessImageError> {
        let Some(leader) = self.leader else {
            let what = "the leader thread".into();
            return Err(ProcessImageError::Refused { what, reason: "it is not in the image" });
        };
        self.remote.become_leader(leader.at)
    }
}

/// Before the memory is filled.
const ADVICE_BEFORE: [(u32, i32); 2] = [
    (record::MAPPING_FLAG_HUGE, libc::MADV_HUGEPAGE),
    (record::MAPPING_FLAG_NOT_HUGE, libc::MADV_NOHUGEPAGE),
];
/// When it is filled.
const ADVICE_AFTER: [(u32, i32); 3] = [
    (record::MAPPING_FLAG_NO_FORK, libc::MADV_DONTFORK),
    (record::MAPPING_FLAG_WIPE, libc::MADV_WIPEONFORK),
    (record::MAPPING_FLAG_NO_DUMP, libc::MADV_DONTDUMP),
];
