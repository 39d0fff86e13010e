//! Incremental images: what is known of earlier images of a process, so that pages which have not
//! changed since are referred to instead of stored again.
//!
//! A page is the same when its 128-bit hash is. Where it lies is a block of an image that has it
//! itself, never one that refers to another: however long the history, a reader follows one
//! reference. An image lies beside all those that it needs: in its folder they have further names
//! (hard links), so that nobody has to count references, and a file is freed when the last image
//! that needs it is removed.
//!
//! Invariants:
//! 1. An image refers only to files that have a name in its own folder.
//! 2. Of any `full_every` images in a row, one refers to none.
//! 3. After an error the next image is a full one, never a wrong one.
//! 4. A page is taken as unchanged without being read only if the kernel has noted no write to it
//!    since the very snapshot that was added last, and the image that has it has a name beside the
//!    new one.

use crate::pages::PAGE;
use rustbtl_checkpoint::image::record::{self, Base};
use rustbtl_checkpoint::image::{Block, Elsewhere, Header, checksum};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use twox_hash::XxHash3_128;

/// An object, or the process's memory (0, 0).
type Object = (u64, u64);

/// See the head of this file.
#[derive(Debug)]
pub struct History {
    /// 0 and 1: every image is full.
    full_every: u32,
    /// Images since the last full one, that one included.
    chain: u32,
    /// Number of the next image.
    next: u64,
    /// Images that pages are in, the oldest first.
    files: Vec<BaseImage>,
    pages: BTreeMap<Object, Vec<KnownPage>>,
    /// Number of the snapshot of the last image, as the process has given it; 0: none.
    snapshot: u64,
}

/// An image that pages are in.
#[derive(Clone, Debug)]
struct BaseImage {
    number: u64,
    path: PathBuf,
    bytes: u64,
    metadata_checksum: u32,
    table_checksum: u32,
}

/// Where a page was found last. 40 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct KnownPage {
    number: u64,
    hash: [u64; 2],
    checksum: u32,
    block: u32,
    /// Index in `History::files`.
    file: u8,
    /// Pages of the block before it.
    skip: u8,
}

/// A page of the image that is being written, which is not zero.
#[derive(Clone, Copy, Debug)]
pub struct PageHash {
    /// Space and page number.
    pub at: (u16, u64),
    hash: [u64; 2],
    /// Of the page.
    pub checksum: u32,
    /// Where it is already. The image's number is that in `LinkedBases`.
    pub elsewhere: Option<Elsewhere>,
}

/// What a process says of memory that was not written: `record::Unchanged`.
#[derive(Clone, Debug, Default)]
pub struct Unchanged {
    /// Number of the snapshot since which; 0: none.
    pub since: u64,
    /// Number of this snapshot; 0: none.
    pub snapshot: u64,
    /// Runs in order: first page, one behind the last.
    pub runs: Vec<(u64, u64)>,
}

impl Unchanged {
    /// From the record. Runs that are not in order are none.
    pub fn of(record: &record::Unchanged<'_>) -> Self {
        let (mut runs, mut free) = (Vec::new(), 0);
        for run in record.runs.as_chunks::<8>().0.chunks_exact(2) {
            let [start, end] = [run[0], run[1]].map(|word| u64::from_le_bytes(word) / PAGE);
            if start < free || end <= start {
                return Self { since: 0, snapshot: record.snapshot, runs: Vec::new() };
            }
            free = end;
            runs.push((start, end));
        }
        Self { since: record.since, snapshot: record.snapshot, runs }
    }
}

/// Images that the next one may refer to: they have a name in its folder.
#[derive(Debug)]
pub struct LinkedBases<'a> {
    history: &'a History,
    links: Vec<Option<PathBuf>>,
    /// Pages of the process that were not written since the last image.
    unchanged: &'a [(u64, u64)],
    /// By space.
    objects: Vec<&'a [KnownPage]>,
}

impl History {
    /// Of these images one in `full_every` is full: all with 0 and 1.
    pub fn new(full_every: u32) -> Self {
        // Images are numbered by a byte.
        let full_every = full_every.min(u32::from(u8::MAX));
        let (files, pages) = (Vec::new(), BTreeMap::new());
        Self { full_every, chain: 0, next: 1, files, pages, snapshot: 0 }
    }

    /// Are images incremental at all?
    pub fn is_on(&self) -> bool {
        self.full_every > 1
    }

    /// Gives the images that pages are in names beside `image`. `objects`: in the order of spaces,
    /// from 0 on. `unchanged`: what the process says.
    pub fn link_bases<'a>(
        &'a self,
        image: &Path,
        objects: &[Object],
        unchanged: &'a Unchanged,
    ) -> LinkedBases<'a> {
        // Invariant 2.
        let next_is_full = self.chain == 0 || self.chain >= self.full_every;
        let files = if next_is_full { &[][..] } else { &self.files[..] };
        let links = files.iter().map(|file| {
            let to = link_name(image, file.number);
            // Invariant 3: without the name (the file was removed, or the file system has no
            // links), its pages are stored again.
            link(&file.path, &to).ok().map(|()| to)
        });
        let links = links.collect();
        let pages = |object| self.pages.get(object).map_or(&[][..], Vec::as_slice);
        // Invariant 4.
        let known = unchanged.since != 0 && unchanged.since == self.snapshot;
        let unchanged = if known { &unchanged.runs[..] } else { &[] };
        let objects = objects.iter().map(pages).collect();
        LinkedBases { history: self, links, unchanged, objects }
    }

    /// An image of this snapshot was written that is known as `path`: its pages, and where they
    /// are.
    pub fn add(
        &mut self,
        (path, snapshot): (&Path, u64),
        (header, bytes): (&Header, u64),
        objects: &[Object],
        (blocks, noted): (&[Block], &[PageHash]),
        bases: &[PathBuf],
    ) {
        let refers = blocks.iter().any(|block| block.elsewhere.is_some());
        self.chain = if refers { self.chain + 1 } else { 1 };
        let mut files: Vec<BaseImage> = Vec::new();
        for link in bases {
            // The newer name: the older one is removed with its checkpoint.
            let of = self.files.iter().find(|file| link_name(path, file.number) == *link);
            files.extend(of.map(|file| BaseImage { path: link.clone(), ..file.clone() }));
        }
        let (metadata_checksum, table_checksum) = (header.metadata_checksum, header.table_checksum);
        let (number, path) = (self.next, path.to_owned());
        files.push(BaseImage { number, path, bytes, metadata_checksum, table_checksum });
        let own = (files.len() - 1) as u8;
        let mut pages: BTreeMap<Object, Vec<KnownPage>> = BTreeMap::new();
        let mut at = 0;
        for page in noted {
            let (space, number) = page.at;
            let address = number * PAGE;
            while blocks.get(at).is_some_and(|b| (b.space, b.end()) <= (space, address)) {
                at += 1;
            }
            let (Some(block), Some(object)) = (blocks.get(at), objects.get(space as usize)) else {
                continue;
            };
            let within = ((address - block.address) / PAGE) as u32;
            let (file, of, skip) = block.elsewhere.map_or((own, at as u32, within), |e| {
                (e.image - 1, e.block, e.skip / PAGE as u32 + within)
            });
            let PageHash { hash, checksum, .. } = *page;
            let note = KnownPage { number, hash, checksum, block: of, file, skip: skip as u8 };
            pages.entry(*object).or_default().push(note);
        }
        self.next += 1;
        (self.files, self.pages, self.snapshot) = (files, pages, snapshot);
    }
}

impl LinkedBases<'_> {
    /// Hash of a page that is not zero, and where it is already.
    pub fn note(&self, space: u16, address: u64, memory: &[u8]) -> PageHash {
        let (number, hash) = (address / PAGE, XxHash3_128::oneshot(memory));
        let hash = [hash as u64, (hash >> 64) as u64];
        let pages = self.pages_of(space);
        let found = pages.binary_search_by_key(&number, |page| page.number).ok();
        let same = found.map(|at| pages[at]).filter(|page| page.hash == hash);
        let checksum = same.map_or_else(|| checksum(memory), |page| page.checksum);
        let elsewhere = same.and_then(|page| self.place(&page));
        PageHash { at: (space, number), hash, checksum, elsewhere }
    }

    /// Of pages of the process in a row, those that need not be read.
    pub fn unchanged(&self, address: u64, pages: usize) -> Vec<Option<PageHash>> {
        let (first, behind) = (address / PAGE, address / PAGE + pages as u64);
        let known = self.pages_of(0);
        let mut at = known.partition_point(|page| page.number < first);
        let from = self.unchanged.partition_point(|run| run.1 <= first);
        let mut all = Vec::new();
        for &(start, end) in self.unchanged[from..].iter().take_while(|run| run.0 < behind) {
            at += known[at..].partition_point(|page| page.number < start);
            let of_run = known[at..].iter().take_while(|page| page.number < end.min(behind));
            for page in of_run {
                at += 1;
                let Some(elsewhere) = self.place(page) else { continue };
                let KnownPage { number, hash, checksum, .. } = *page;
                all.resize(pages, None);
                let note = PageHash { at: (0, number), hash, checksum, elsewhere: Some(elsewhere) };
                all[(number - first) as usize] = Some(note);
            }
        }
        all
    }

    fn pages_of(&self, space: u16) -> &[KnownPage] {
        self.objects.get(usize::from(space)).copied().unwrap_or_default()
    }

    /// Where a page is, if that image has a name beside the new one.
    fn place(&self, page: &KnownPage) -> Option<Elsewhere> {
        self.links.get(usize::from(page.file))?.as_ref()?;
        let (image, skip) = (page.file + 1, u32::from(page.skip) * PAGE as u32);
        Some(Elsewhere { image, block: page.block, skip })
    }

    /// Renumbers the images that blocks do refer to, and writes their records; the other names are
    /// removed. Returns the names that stay.
    pub fn finish(mut self, blocks: &mut [Block], metadata: &mut Vec<u8>) -> Vec<PathBuf> {
        let mut used = vec![0u8; self.links.len() + 1];
        for elsewhere in blocks.iter().filter_map(|block| block.elsewhere) {
            used[usize::from(elsewhere.image)] = 1;
        }
        let mut bases = Vec::new();
        for (index, link) in self.links.iter_mut().enumerate() {
            if used[index + 1] == 0 {
                continue;
            }
            // Every block that refers to it was found through its name.
            let Some(link) = link.take() else { continue };
            let file = &self.history.files[index];
            let name = link.file_name().unwrap_or_default().as_bytes();
            let BaseImage { bytes, metadata_checksum, table_checksum, .. } = *file;
            Base { name, bytes, metadata_checksum, table_checksum }.encode(metadata);
            bases.push(link);
            used[index + 1] = bases.len() as u8;
        }
        for block in blocks {
            if let Some(elsewhere) = &mut block.elsewhere {
                elsewhere.image = used[usize::from(elsewhere.image)];
            }
        }
        bases
    }
}

impl PageHash {
    /// Is it a page with this content?
    pub fn is_of(&self, memory: &[u8]) -> bool {
        let hash = XxHash3_128::oneshot(memory);
        self.hash == [hash as u64, (hash >> 64) as u64]
    }
}

impl Drop for LinkedBases<'_> {
    fn drop(&mut self) {
        // The names that are left are not needed.
        self.links.iter().flatten().for_each(|link| drop(fs::remove_file(link)));
    }
}

/// The name of an older image beside a newer one.
fn link_name(image: &Path, number: u64) -> PathBuf {
    let mut name: OsString = image.file_name().unwrap_or_default().to_owned();
    name.push(format!(".base-{number}"));
    image.with_file_name(name)
}

/// Is this the name of an image that `image` needs?
pub fn is_base_of(name: &str, image: &str) -> bool {
    let number = name.strip_prefix(image).and_then(|rest| rest.strip_prefix(".base-"));
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

fn link(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        // Of an image that was not finished.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(to)?;
            fs::hard_link(from, to)
        }
        result => result,
    }
}
