//! An image file: read with all checks, written under another name until it is complete.

use super::OutsideError;
use rustbtl_checkpoint::image::record::{self, Process, Record};
use rustbtl_checkpoint::image::{Block, HEADER_BYTES, Header, ImageError};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An image that is open, with header, metadata and table checked.
#[derive(Debug)]
pub struct ImageFile {
    file: File,
    /// Its records.
    pub metadata: Vec<u8>,
    /// Its blocks.
    pub blocks: Vec<Block>,
    /// The whole file.
    pub file_bytes: u64,
}

impl ImageFile {
    /// Opens and checks.
    pub fn open(path: &Path) -> Result<Self, OutsideError> {
        let shown = path.display().to_string();
        let file = File::open(path).map_err(OutsideError::system(shown.clone()))?;
        let stat = file.metadata().map_err(OutsideError::system(shown.clone()))?;
        let read = |offset: u64, bytes: usize| {
            let mut room = vec![0; bytes];
            let done = file.read_exact_at(&mut room, offset);
            done.map(|()| room).map_err(OutsideError::system(shown.clone()))
        };
        if stat.len() < HEADER_BYTES as u64 {
            return Err(ImageError::Short.into());
        }
        let header = Header::decode(&read(0, HEADER_BYTES)?, stat.len())?;
        let metadata = read(header.metadata_offset, header.metadata_bytes as usize)?;
        header.check_metadata(&metadata)?;
        let table = read(header.table_offset, header.table_bytes())?;
        let blocks = header.table(&table)?;
        for record in record::records(&metadata) {
            record?;
        }
        Ok(Self { file, metadata, blocks, file_bytes: stat.len() })
    }

    /// The records; all of them were decoded once.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        record::records(&self.metadata).filter_map(Result::ok)
    }

    /// The record of the process.
    pub fn process(&self) -> Result<Process, OutsideError> {
        let mut records = self.records();
        let found = records.find_map(|record| match record {
            Record::Process(process) => Some(process),
            _ => None,
        });
        found.ok_or(OutsideError::Image(ImageError::Value("metadata: no process")))
    }

    /// The memory of a block, checked; the rooms are used again.
    pub fn block<'a>(
        &self,
        block: &Block,
        stored: &'a mut Vec<u8>,
        unpacked: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], OutsideError> {
        stored.resize(block.stored as usize, 0);
        let reading = OutsideError::system("reading the image");
        self.file.read_exact_at(stored, block.offset).map_err(reading)?;
        Ok(block.unpack(stored, unpacked)?)
    }
}

/// A file that is being written.
#[derive(Debug)]
pub struct Draft {
    /// Where blocks go.
    pub file: File,
    draft: PathBuf,
    path: PathBuf,
    done: bool,
}

impl Draft {
    /// Begins; only the same user may read it (it holds all the memory of a program).
    pub fn create(path: &Path) -> Result<Self, OutsideError> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".tmp");
        let draft = path.with_file_name(name);
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let file = options
            .open(&draft)
            .map_err(OutsideError::system(format!("creating {}", draft.display())))?;
        Ok(Self { file, draft, path: path.to_owned(), done: false })
    }

    /// Writes metadata, table and header.
    pub fn finish(&self, end: u64, metadata: &[u8], blocks: &[Block]) -> Result<u64, OutsideError> {
        let mut table = Vec::new();
        for block in blocks {
            block.encode(&mut table);
        }
        let header = Header {
            metadata_offset: end,
            metadata_bytes: metadata.len() as u64,
            table_offset: end + metadata.len() as u64,
            blocks: blocks.len() as u64,
            metadata_checksum: rustbtl_checkpoint::image::checksum(metadata),
            table_checksum: rustbtl_checkpoint::image::checksum(&table),
        };
        self.write(metadata, header.metadata_offset)?;
        self.write(&table, header.table_offset)?;
        self.write(&header.encode(), 0)?;
        Ok(header.table_offset + table.len() as u64)
    }

    /// Writes a piece.
    pub fn write(&self, bytes: &[u8], offset: u64) -> Result<(), OutsideError> {
        let what = || format!("writing {}", self.draft.display());
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| OutsideError::System { what: what(), error })
    }

    /// Gives it its name (invariant 1 of `outside.rs`).
    pub fn publish(mut self, sync: bool) -> Result<(), OutsideError> {
        let what = self.path.display().to_string();
        let failed = || OutsideError::system(what.clone());
        if sync {
            self.file.sync_all().map_err(failed())?;
        }
        fs::rename(&self.draft, &self.path).map_err(failed())?;
        self.done = true;
        if sync {
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = File::open(folder.unwrap_or(Path::new("."))).map_err(failed())?;
            folder.sync_all().map_err(failed())?;
        }
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.done {
            // Half an image is worth nothing; if it cannot be removed, the name still says so.
            let _ = fs::remove_file(&self.draft);
        }
    }
}
