//! Where running jobs are found: private folders of the user on the host of mpirun, with a socket
//! for each job.
//!
//! ```text
//! XDG_RUNTIME_DIR/rustbtl/JOB.sock     where the system gives each user a folder of his own
//! /tmp/rustbtl-jobs-UID-RANDOM/JOB.sock   elsewhere: one for each job, whose name nobody can guess
//! ```
//! Who looks for jobs looks into all folders with such a name, and leaves out those of others.

use crate::os;
use std::env;
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Bytes of a job's name that nobody can guess, at its end.
pub const RANDOM_BYTES: usize = 6;
const SHARED: &str = "/tmp";

/// The folder for a job that starts now. It exists.
pub fn directory(job: &str) -> Result<PathBuf, String> {
    for path in of_user() {
        match os::private_directory(&path) {
            Ok(()) => return Ok(path),
            // Chosen for this job; otherwise the environment may be that of another user.
            Err(error) if env::var_os(ONLY).is_some() => {
                return Err(format!("{}: {error}", path.display()));
            }
            Err(_) => {}
        }
    }
    let random = job.rsplit('-').next().unwrap_or_default();
    let path = Path::new(SHARED).join(format!("{}{random}", prefix()));
    os::private_directory(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// Emulated clusters keep their jobs apart.
const ONLY: &str = "RUSTBTL_JOBS";

fn prefix() -> String {
    format!("rustbtl-jobs-{}-", os::euid())
}

/// Folders for all jobs of the user.
fn of_user() -> Vec<PathBuf> {
    if let Some(only) = env::var_os(ONLY).map(PathBuf::from).filter(|p| p.is_absolute()) {
        return vec![only];
    }
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|path| path.is_absolute() && path.is_dir());
    runtime.map(|path| path.join("rustbtl")).into_iter().collect()
}

/// All folders with jobs of the user. A batch system's environment is not that of the shell where
/// somebody looks for its job.
fn candidates() -> Vec<PathBuf> {
    let mut all = of_user();
    if env::var_os(ONLY).is_none() {
        all.extend(in_shared(Path::new(SHARED)));
    }
    all.retain(|path| os::is_private_directory(path));
    all
}

/// Those of single jobs in a folder that all write to.
fn in_shared(folder: &Path) -> Vec<PathBuf> {
    let prefix = prefix();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(&prefix);
    entries.filter(|entry| ours(&entry.file_name())).map(|entry| entry.path()).collect()
}

/// Socket of a job.
pub fn socket(directory: &Path, job: &str) -> PathBuf {
    directory.join(format!("{job}.sock"))
}

/// Removes a job's socket, and the folder that was made for it alone.
pub fn remove(socket: &Path) {
    let _ = fs::remove_file(socket);
    let single = socket.parent().filter(|folder| {
        folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix()))
    });
    if let Some(folder) = single {
        let _ = fs::remove_dir(folder);
    }
}

/// A running job: its name, and the connection to its coordinator.
pub type RunningJob = (String, UnixStream);

/// All running jobs of this user. Sockets of jobs that were killed are removed.
pub fn running() -> Vec<RunningJob> {
    let mut all = Vec::new();
    // Nobody else can have put anything into these.
    for directory in candidates() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(job) = name.strip_suffix(".sock") else { continue };
            match UnixStream::connect(entry.path()) {
                Ok(stream) if os::peer_uid(&stream).is_ok_and(|uid| uid == os::euid()) => {
                    all.push((job.to_owned(), stream));
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    remove(&entry.path());
                }
                _ => {}
            }
        }
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

/// The job with this name or a name that begins with it; without a name, the only one there is.
pub fn find(name: Option<&str>) -> Result<RunningJob, String> {
    let all = running();
    let names: Vec<String> = all.iter().map(|(job, _)| job.clone()).collect();
    let wanted = name.unwrap_or_default();
    let exact = all.iter().position(|(job, _)| job == wanted);
    let mut fitting: Vec<RunningJob> =
        all.into_iter().filter(|(job, _)| job.starts_with(wanted)).collect();
    if let Some(at) = exact {
        let job = &names[at];
        fitting.retain(|(other, _)| other == job);
    }
    match (fitting.len(), names.is_empty()) {
        (1, _) => Ok(fitting.remove(0)),
        (_, true) => {
            Err("no protected job of this user runs on this host. Jobs are found on the host of \
             mpirun, and are protected if mpirun is given --mca pml v --mca vprotocol correlated"
                .into())
        }
        (0, false) => Err(format!("no job named {wanted}; there are: {}", names.join(", "))),
        _ => Err(format!("which job? There are: {}", names.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn folders_that_others_have_put_there_are_left_out() {
        let base = env::temp_dir().join(format!("rustbtl-found-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let [mine, open, link, other] =
            ["a", "b", "c", "d"].map(|end| base.join(format!("{}{end}", prefix())));
        os::private_directory(&mine).unwrap();
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        symlink(&mine, &link).unwrap();
        os::private_directory(&other).unwrap();
        if os::euid() == 0 {
            std::os::unix::fs::chown(&other, Some(65534), None).unwrap();
        } else {
            eprintln!("SKIPPED: only root can make a folder of another user");
            fs::remove_dir(&other).unwrap();
        }
        os::private_directory(&base.join("rustbtl-jobs-none")).unwrap();
        let mut found = in_shared(&base);
        found.retain(|path| os::is_private_directory(path));
        assert_eq!(found, [mine]);
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn the_folder_of_a_single_job_goes_with_its_socket() {
        let folder = env::temp_dir().join(format!("{}test{}", prefix(), std::process::id()));
        os::private_directory(&folder).unwrap();
        let path = socket(&folder, "j");
        fs::write(&path, "").unwrap();
        remove(&path);
        assert!(!folder.exists());
    }
}
