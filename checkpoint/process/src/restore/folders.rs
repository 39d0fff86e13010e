//! Folders that were on the node that a process had, and nowhere else: its working directory and
//! TMPDIR. They are made where it is restored, empty and for its user alone.

use crate::pages;
use rustbtl_checkpoint::image::record::MemoryFields;
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Where every node has folders of its own. Elsewhere one that is not there is more likely a file
/// system that is not mounted.
const OF_A_NODE: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];
/// Longer environments are not searched.
const ENVIRONMENT_BYTES_MAX: u64 = 4 << 20;

/// Makes the working directory, if it was one of the node. If it cannot be made, `check_machine`
/// reports it.
pub fn make_working_directory(path: &[u8]) {
    let path = Path::new(OsStr::from_bytes(path));
    if is_of_a_node(path) {
        make(path);
    }
}

/// Is it a folder that each node has for itself?
pub fn is_of_a_node(path: &Path) -> bool {
    OF_A_NODE.iter().any(|place| path.starts_with(place))
}

/// Makes the folder that TMPDIR names in the environment with which the process was started; its
/// memory is there, and no thread of it runs. If it cannot be made the program will find out.
pub fn make_temporary_folder(pid: u32, fields: &MemoryFields) {
    let bytes = fields.env_end.saturating_sub(fields.env_start).min(ENVIRONMENT_BYTES_MAX);
    let mut environment = vec![0; bytes as usize];
    if pages::read(pid, fields.env_start, &mut environment).is_ok()
        && let Some(path) = temporary_folder(&environment)
    {
        make(path);
    }
}

fn temporary_folder(environment: &[u8]) -> Option<&Path> {
    let mut variables = environment.split(|byte| *byte == 0);
    let path = variables.find_map(|variable| variable.strip_prefix(b"TMPDIR="))?;
    Some(Path::new(OsStr::from_bytes(path))).filter(|path| path.is_absolute())
}

fn make(path: &Path) {
    if !path.exists() {
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_temporary_folder_is_what_the_environment_says() {
        let found = |text: &'static [u8]| temporary_folder(text);
        assert_eq!(found(b"A=1\0TMPDIR=/scratch/7\0B=2\0"), Some(Path::new("/scratch/7")));
        assert_eq!(found(b"TMPDIR=\0"), None);
        assert_eq!(found(b"TMPDIR=here\0"), None);
        assert_eq!(found(b"MY_TMPDIR=/scratch/7\0"), None);
    }
}
