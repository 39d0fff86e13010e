//! Where running jobs are found: a private directory of the user on the host of mpirun, with one
//! socket per job.

use crate::os;
use std::env;
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The directory for jobs that start now. It exists.
pub fn directory() -> Result<PathBuf, String> {
    let path = candidates().swap_remove(0);
    os::private_directory(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// A batch system's environment is not that of the shell where somebody looks for its job.
fn candidates() -> Vec<PathBuf> {
    // Emulated clusters keep their jobs apart.
    if let Some(only) = env::var_os("RUSTBTL_JOBS").map(PathBuf::from).filter(|p| p.is_absolute()) {
        return vec![only];
    }
    let mut all = Vec::new();
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    if let Some(runtime) = runtime.filter(|path| path.is_absolute() && path.is_dir()) {
        all.push(runtime.join("rustbtl"));
    }
    all.push(PathBuf::from(format!("/tmp/rustbtl-{}", os::euid())));
    all
}

/// Socket of a job.
pub fn socket(directory: &Path, job: &str) -> PathBuf {
    directory.join(format!("{job}.sock"))
}

/// A running job: its name, and the connection to its coordinator.
pub type RunningJob = (String, UnixStream);

/// All running jobs of this user. Sockets of jobs that were killed are removed.
pub fn running() -> Vec<RunningJob> {
    let mut all = Vec::new();
    for directory in candidates() {
        // Nobody else can have put anything into it.
        if !directory.exists() || os::private_directory(&directory).is_err() {
            continue;
        }
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(job) = name.strip_suffix(".sock") else { continue };
            match UnixStream::connect(entry.path()) {
                Ok(stream) if os::peer_uid(&stream).is_ok_and(|uid| uid == os::euid()) => {
                    all.push((job.to_owned(), stream));
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    let _ = fs::remove_file(entry.path());
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
             mpirun, and are protected if mpirun is given --mca \
             vprotocol_correlated_checkpoint_dir DIR"
                .into())
        }
        (0, false) => Err(format!("no job named {wanted}; there are: {}", names.join(", "))),
        _ => Err(format!("which job? There are: {}", names.join(", "))),
    }
}
