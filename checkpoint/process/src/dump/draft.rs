//! An image that is being written: under another name until it is complete.

use crate::error::ProcessImageError;
use rustbtl_checkpoint::image::{Block, Header};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

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
    pub fn create(path: &Path) -> Result<Self, ProcessImageError> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".tmp");
        let draft = path.with_file_name(name);
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let file = options
            .open(&draft)
            .map_err(ProcessImageError::system(format!("creating {}", draft.display())))?;
        Ok(Self { file, draft, path: path.to_owned(), done: false })
    }

    /// Writes metadata, table and header; gives the header and the size.
    pub fn finish(
        &self,
        end: u64,
        metadata: &[u8],
        blocks: &[Block],
    ) -> Result<(Header, u64), ProcessImageError> {
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
        Ok((header, header.table_offset + table.len() as u64))
    }

    /// Writes a piece.
    pub fn write(&self, bytes: &[u8], offset: u64) -> Result<(), ProcessImageError> {
        let what = || format!("writing {}", self.draft.display());
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| ProcessImageError::System { what: what(), error })
    }

    /// Gives it its name (invariant of `dump.rs`).
    pub fn publish(mut self, sync: bool) -> Result<(), ProcessImageError> {
        let what = self.path.display().to_string();
        let failed = || ProcessImageError::system(what.clone());
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
            // Half an image is useless; if it cannot be removed, its name still ends with `.tmp`.
            let _ = fs::remove_file(&self.draft);
        }
    }
}
