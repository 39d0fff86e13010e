//! An image file, read with all checks.

use crate::compression::Unpacker;
use crate::error::ProcessImageError;
use crate::private_files::Folder;
use rustbtl_checkpoint::image::record::{self, Base, Process, Record};
use rustbtl_checkpoint::image::{Block, Elsewhere, HEADER_BYTES, Header, ImageError};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// An image that is open, with header, metadata and table checked, and those that it refers to.
#[derive(Debug)]
pub struct ImageFile {
    path: PathBuf,
    file: File,
    header: Header,
    /// Its records.
    pub metadata: Vec<u8>,
    /// Its blocks.
    pub blocks: Vec<Block>,
    /// The whole file.
    pub file_bytes: u64,
    bases: Vec<ImageFile>,
}

/// Buffers for blocks, reused for each.
#[derive(Default)]
pub struct ReadBuffers {
    stored: Vec<u8>,
    /// Large blocks of other images that were unpacked last: entries near each other are often of
    /// the same ones. The oldest is evicted first.
    held: VecDeque<((u8, u32), Vec<u8>)>,
    unpacker: Unpacker,
}

/// Blocks that are held.
const HELD_MAX: usize = 3;
/// Smaller ones are as quickly unpacked again.
const HELD_BYTES_MIN: u32 = 128 << 10;

impl ImageFile {
    /// Opens and checks.
    pub fn open(path: &Path) -> Result<Self, ProcessImageError> {
        let (folder, name) = Folder::of(path)?;
        let mut image = Self::open_alone(&folder, name)?;
        let mut bases = Vec::new();
        for record in image.records() {
            if let Record::Base(base) = record {
                bases.push(image.open_base(&folder, &base)?);
            }
        }
        image.bases = bases;
        for block in &image.blocks {
            if let Some(elsewhere) = block.elsewhere {
                image.source(block, elsewhere)?;
            }
        }
        Ok(image)
    }

    /// What is in it becomes a process: only files that nobody else can have written are opened.
    fn open_alone(folder: &Folder, name: &OsStr) -> Result<Self, ProcessImageError> {
        let path = folder.path().join(name);
        let shown = path.display().to_string();
        let file = folder.file(name)?;
        let stat = file.metadata().map_err(ProcessImageError::system(shown.clone()))?;
        let read = |offset: u64, bytes: usize| {
            let mut buffer = vec![0; bytes];
            let done = file.read_exact_at(&mut buffer, offset);
            done.map(|()| buffer).map_err(ProcessImageError::system(shown.clone()))
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
        let file_bytes = stat.len();
        Ok(Self { path, file, header, metadata, blocks, file_bytes, bases: Vec::new() })
    }

    /// Invariant 6 of `image.rs`.
    fn open_base(&self, folder: &Folder, base: &Base<'_>) -> Result<Self, ProcessImageError> {
        let name = Path::new(OsStr::from_bytes(base.name));
        if name.file_name() != Some(name.as_os_str()) {
            return Err(ImageError::Value("name of another image").into());
        }
        let path = self.path.with_file_name(name);
        let found = Self::open_alone(folder, name.as_os_str());
        let found = found.map_err(|error| self.base_error(&path, &error))?;
        let is_meant = found.file_bytes == base.bytes
            && found.header.metadata_checksum == base.metadata_checksum
            && found.header.table_checksum == base.table_checksum;
        if !is_meant {
            return Err(self.base_error(&path, &"it is not the image that was meant"));
        }
        Ok(found)
    }

    fn base_error(&self, base: &Path, problem: &dyn core::fmt::Display) -> ProcessImageError {
        ProcessImageError::Base {
            image: self.path.display().to_string(),
            base: base.display().to_string(),
            problem: problem.to_string(),
        }
    }

    /// The image and the block in it that an entry refers to.
    fn source(
        &self,
        block: &Block,
        elsewhere: Elsewhere,
    ) -> Result<(&ImageFile, &Block), ProcessImageError> {
        let wrong = ImageError::Value("reference to another image");
        let image = self.bases.get(usize::from(elsewhere.image) - 1).ok_or(wrong)?;
        let source = image.blocks.get(elsewhere.block as usize).ok_or(wrong)?;
        let end = u64::from(elsewhere.skip) + u64::from(block.bytes);
        let fits = source.elsewhere.is_none() && end <= u64::from(source.bytes);
        if fits { Ok((image, source)) } else { Err(wrong.into()) }
    }

    /// The records; all of them were decoded once.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        record::records(&self.metadata).filter_map(Result::ok)
    }

    /// The record of the process.
    pub fn process(&self) -> Result<Process, ProcessImageError> {
        let mut records = self.records();
        let found = records.find_map(|record| match record {
            Record::Process(process) => Some(process),
            _ => None,
        });
        found.ok_or(ProcessImageError::Image(ImageError::Value("metadata: no process")))
    }

    /// The memory of a block, checked, wherever it is.
    pub fn block<'a>(
        &self,
        block: &Block,
        buffers: &'a mut ReadBuffers,
    ) -> Result<&'a [u8], ProcessImageError> {
        let ReadBuffers { stored, held, unpacker } = buffers;
        let Some(elsewhere) = block.elsewhere else {
            self.read(block.offset, block.stored, stored)?;
            return unpacker.unpack(block, stored);
        };
        let (image, source) = self.source(block, elsewhere)?;
        let failed = |error: &dyn core::fmt::Display| self.base_error(&image.path, error);
        let memory = if source.stored == source.bytes {
            // Not compressed: no more than the part is needed.
            let offset = source.offset + u64::from(elsewhere.skip);
            image.read(offset, block.bytes, stored).map_err(|error| failed(&error))?;
            &stored[..]
        } else {
            let key = (elsewhere.image, elsewhere.block);
            let part = elsewhere.skip as usize..(elsewhere.skip + block.bytes) as usize;
            let known = held.iter().position(|(of, _)| *of == key);
            if known.is_none() {
                image.read(source.offset, source.stored, stored).map_err(|e| failed(&e))?;
            }
            match known {
                Some(at) => &held[at].1[part],
                None if source.bytes < HELD_BYTES_MIN => {
                    &unpacker.unpack(source, stored).map_err(|error| failed(&error))?[part]
                }
                None => {
                    let memory = unpacker.unpack(source, stored).map_err(|e| failed(&e))?;
                    let mut buffer = match held.len() {
                        HELD_MAX => held.pop_front().unwrap_or_default().1,
                        _ => Vec::new(),
                    };
                    buffer.clear();
                    buffer.extend_from_slice(memory);
                    held.push_back((key, buffer));
                    held.back().map_or(&[][..], |(_, memory)| &memory[part])
                }
            }
        };
        block.check_memory(memory).map_err(|error| failed(&error))?;
        Ok(memory)
    }

    fn read(&self, offset: u64, bytes: u32, buffer: &mut Vec<u8>) -> Result<(), ProcessImageError> {
        buffer.resize(bytes as usize, 0);
        let what = || format!("reading {}", self.path.display());
        let done = self.file.read_exact_at(buffer, offset);
        done.map_err(|error| ProcessImageError::System { what: what(), error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::draft::Draft;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn an_image_that_others_could_have_written_is_not_opened() {
        let folder = std::env::temp_dir().join(format!("rustbtl-image-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Folder::create(&folder).unwrap();
        let [image, base, link] = ["image", "base", "link"].map(|name| folder.join(name));
        let write = |path: &Path, metadata: &[u8]| {
            let draft = Draft::create(path).unwrap();
            let (header, bytes) = draft.finish(HEADER_BYTES as u64, metadata, &[]).unwrap();
            draft.publish(true).unwrap();
            (header, bytes)
        };
        let (header, bytes) = write(&base, &[]);
        let Header { metadata_checksum, table_checksum, .. } = header;
        let mut metadata = Vec::new();
        Base { name: b"base", bytes, metadata_checksum, table_checksum }.encode(&mut metadata);
        write(&image, &metadata);
        assert!(ImageFile::open(&image).is_ok());
        symlink(&image, &link).unwrap();
        let why = ImageFile::open(&link).unwrap_err().to_string();
        assert!(why.contains("symbolic link"), "{why}");
        for path in [&image, &base, &folder] {
            let before = path.metadata().unwrap().permissions();
            fs::set_permissions(path, Permissions::from_mode(before.mode() | 0o022)).unwrap();
            let why = ImageFile::open(&image).unwrap_err().to_string();
            assert!(why.contains(&format!("chmod go-w {}", path.display())), "{why}");
            assert!(Draft::create(&image).is_ok() || path == &folder, "nor is one written there");
            fs::set_permissions(path, before).unwrap();
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
