//! Looking into images.

use super::image_file::{ImageFile, ReadBuffers};
use crate::error::ProcessImageError;
use rustbtl_checkpoint::image::record::Record;
use std::collections::BTreeSet;
use std::path::Path;

/// What an image holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Its id when it was frozen.
    pub pid: u32,
    /// How often it had been restored before.
    pub generation: u32,
    /// Names of its threads, the checkpoint thread last.
    pub threads: Vec<String>,
    /// Open descriptors.
    pub descriptors: Vec<i32>,
    /// Mappings.
    pub mappings: usize,
    /// Files whose pages are not in the image.
    pub files: BTreeSet<String>,
    /// Memory in blocks.
    pub memory_bytes: u64,
    /// Blocks as stored in this file.
    pub stored_bytes: u64,
    /// Memory that is in other files, which must be beside this one.
    pub elsewhere_bytes: u64,
    /// Their names.
    pub bases: Vec<String>,
    /// The whole file.
    pub file_bytes: u64,
}

/// Header, metadata, table: checked and summed up.
pub fn inspect(path: &Path) -> Result<Summary, ProcessImageError> {
    summary(&ImageFile::open(path)?)
}

/// The same, and every block's checksum.
pub fn verify(path: &Path) -> Result<Summary, ProcessImageError> {
    let image = ImageFile::open(path)?;
    let mut buffers = ReadBuffers::default();
    for block in &image.blocks {
        image.block(block, &mut buffers)?;
    }
    summary(&image)
}

fn summary(image: &ImageFile) -> Result<Summary, ProcessImageError> {
    let process = image.process()?;
    let elsewhere = image.blocks.iter().filter(|block| block.elsewhere.is_some());
    let mut summary = Summary {
        pid: process.pid,
        generation: process.generation,
        file_bytes: image.file_bytes,
        memory_bytes: image.blocks.iter().map(|block| u64::from(block.bytes)).sum(),
        stored_bytes: image.blocks.iter().map(|block| u64::from(block.stored)).sum(),
        elsewhere_bytes: elsewhere.map(|block| u64::from(block.bytes)).sum(),
        ..Summary::default()
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    for record in image.records() {
        match record {
            Record::Thread(thread) => summary.threads.push(text(&thread.name)),
            Record::Descriptor(descriptor) => summary.descriptors.push(descriptor.fd),
            Record::Base(base) => summary.bases.push(text(base.name)),
            Record::Mapping(mapping) => {
                summary.mappings += 1;
                if mapping.path.starts_with(b"/") {
                    summary.files.insert(text(mapping.path));
                }
            }
            _ => {}
        }
    }
    Ok(summary)
}

impl core::fmt::Display for Summary {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        writeln!(f, "process {}, restored {} times before", self.pid, self.generation)?;
        writeln!(f, "{} threads: {}", self.threads.len(), self.threads.join(", "))?;
        writeln!(f, "{} descriptors: {:?}", self.descriptors.len(), self.descriptors)?;
        writeln!(
            f,
            "{} mappings, {} bytes of memory in {} bytes, file of {} bytes",
            self.mappings, self.memory_bytes, self.stored_bytes, self.file_bytes
        )?;
        if !self.bases.is_empty() {
            let (bytes, names) = (self.elsewhere_bytes, self.bases.join(", "));
            writeln!(f, "{bytes} bytes of the memory in {names}")?;
        }
        self.files.iter().try_for_each(|file| writeln!(f, "  {file}"))
    }
}
