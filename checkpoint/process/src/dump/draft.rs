//! An image that is being written: under another name until it is complete.

use crate::error::ProcessImageError;
use crate::private_files::Folder;
use rustbtl_checkpoint::image::{Block, Header};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A file that is being written.
#[derive(Debug)]
pub struct Draft {
    /// Where blocks go.
    pub file: File,
    folder: Folder,
    draft: OsString,
    name: OsString,
    done: bool,
}

impl Draft {
    /// Begins; only the same user may read it (it holds all the memory of a program). The folder is
    /// one that nobody else can write to: no link of others leads the image elsewhere.
    pub fn create(path: &Path) -> Result<Self, ProcessImageError> {
        let (folder, name) = Folder::of(path)?;
        let mut draft = name.to_owned();
        draft.push(".tmp");
        let file = folder.create_file_anew(&draft)?;
        Ok(Self { file, folder, draft, name: name.to_owned(), done: false })
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
        let what = || format!("writing {}", self.folder.path().join(&self.draft).display());
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| ProcessImageError::System { what: what(), error })
    }

    /// Gives it its name (invariant of `dump.rs`).
    pub fn publish(mut self, sync: bool) -> Result<(), ProcessImageError> {
        if sync {
            let what = self.folder.path().join(&self.name).display().to_string();
            self.file.sync_all().map_err(ProcessImageError::system(what))?;
        }
        self.folder.rename(&self.draft, &self.name)?;
        self.done = true;
        if sync {
            self.folder.sync()?;
        }
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.done {
            // Half an image is useless; if it cannot be removed, its name still ends with `.tmp`.
            let _ = self.folder.remove(&self.draft);
        }
    }
}
