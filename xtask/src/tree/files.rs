//! Files that are put into somebody else's tree: written only where they differ, so that make sees
//! what has changed, and taken away when they are no longer ours to give.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Context, Result};

/// Names what was written, so that the next time knows.
const MANIFEST: &str = "ompi/mca/vprotocol/correlated/.rustbtl-files";

/// A file to be.
pub struct File {
    bytes: Vec<u8>,
    mode: u32,
}

/// Files by their place in the tree.
#[derive(Default)]
pub struct Files(BTreeMap<PathBuf, File>);

impl Files {
    /// A text of our making.
    pub fn add_text(&mut self, place: impl Into<PathBuf>, text: String) {
        self.0.insert(place.into(), File { bytes: text.into_bytes(), mode: 0o644 });
    }

    /// A copy of a file.
    pub fn add_file(&mut self, place: impl Into<PathBuf>, from: &Path) -> Result<()> {
        let what = || from.display().to_string();
        let bytes = fs::read(from).context(what)?;
        let executable = fs::metadata(from).context(what)?.permissions().mode() & 0o111 != 0;
        let mode = if executable { 0o755 } else { 0o644 };
        self.0.insert(place.into(), File { bytes, mode });
        Ok(())
    }

    /// Copies of all files below a folder.
    pub fn add_folder(&mut self, place: &Path, from: &Path) -> Result<()> {
        let entries = fs::read_dir(from).context(|| from.display().to_string())?;
        for entry in entries.flatten() {
            let (path, place) = (entry.path(), place.join(entry.file_name()));
            if path.is_dir() {
                self.add_folder(&place, &path)?;
            } else {
                self.add_file(place, &path)?;
            }
        }
        Ok(())
    }

    /// Places of the files, in order.
    pub fn places(&self) -> impl Iterator<Item = &Path> {
        self.0.keys().map(PathBuf::as_path)
    }

    /// A number for names and contents of the files that are `wanted`.
    pub fn digest(&self, wanted: impl Fn(&Path) -> bool) -> String {
        let mut sum = Sha256::new();
        for (place, file) in self.0.iter().filter(|(place, _)| wanted(place)) {
            sum.update(place.as_os_str().as_encoded_bytes());
            sum.update([0]);
            sum.update((file.bytes.len() as u64).to_le_bytes());
            sum.update(&file.bytes);
        }
        hex(&sum.finalize())
    }

    /// Writes what differs and removes what an earlier call has written and this one has not; the
    /// number of files that were touched.
    pub fn write(&self, tree: &Path) -> Result<usize> {
        let touched = self.write_all(tree)? + self.remove_stale(tree)?;
        let manifest = tree.join(MANIFEST);
        let list: String = self.places().map(|place| format!("{}\n", place.display())).collect();
        fs::write(&manifest, list).context(|| manifest.display().to_string())?;
        Ok(touched)
    }

    /// Writes what differs.
    pub fn write_all(&self, tree: &Path) -> Result<usize> {
        let mut touched = 0;
        for (place, file) in &self.0 {
            let to = tree.join(place);
            if fs::read(&to).is_ok_and(|there| there == file.bytes) {
                continue;
            }
            let folder = to.parent().unwrap_or(tree);
            fs::create_dir_all(folder).context(|| folder.display().to_string())?;
            let what = || format!("writing {}", to.display());
            fs::write(&to, &file.bytes).context(what)?;
            fs::set_permissions(&to, fs::Permissions::from_mode(file.mode)).context(what)?;
            touched += 1;
        }
        Ok(touched)
    }

    fn remove_stale(&self, tree: &Path) -> Result<usize> {
        let before = fs::read_to_string(tree.join(MANIFEST)).unwrap_or_default();
        let mut removed = 0;
        for place in before.lines().map(Path::new) {
            let file = tree.join(place);
            // Only what could be ours, whatever the list says.
            if place.is_relative() && !self.0.contains_key(place) && file.is_file() {
                fs::remove_file(&file).context(|| format!("removing {}", file.display()))?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

/// Bytes as one writes them.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;

    #[test]
    fn only_what_differs_is_written_and_what_is_stale_goes() {
        let tree = env::temp_dir().join(format!("rustbtl-files-{}", std::process::id()));
        fs::create_dir_all(tree.join("ompi/mca/vprotocol/correlated")).unwrap();
        let mut files = Files::default();
        files.add_text("a", "1".into());
        files.add_text("b/c", "2".into());
        assert_eq!(files.write(&tree).unwrap(), 2);
        assert_eq!(files.write(&tree).unwrap(), 0);
        fs::write(tree.join("theirs"), "3").unwrap();
        let mut fewer = Files::default();
        fewer.add_text("a", "4".into());
        assert_eq!(fewer.write(&tree).unwrap(), 2);
        assert!(tree.join("theirs").exists() && !tree.join("b/c").exists());
        assert_ne!(files.digest(|_| true), fewer.digest(|_| true));
        assert_eq!(files.digest(|_| false), fewer.digest(|_| false));
        fs::remove_dir_all(&tree).unwrap();
    }
}
