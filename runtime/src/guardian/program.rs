//! The program of a rank: starting it as orted would have done.

use crate::guardian::output::Ends;
use crate::os;
use crate::settings::{self, Images};
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The command with the environment of a program, without the variables for guardians.
fn command(words: &[OsString]) -> io::Result<Command> {
    let Some((name, arguments)) = words.split_first() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no program is named"));
    };
    let mut command = Command::new(find(name)?);
    command.arg0(name).args(arguments);
    for variable in settings::ALL {
        command.env_remove(variable);
    }
    Ok(command)
}

/// As Open MPI looks for programs: in PATH, then in the current folder.
fn find(name: &OsStr) -> io::Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let here = [PathBuf::from(".")];
    let found = env::split_paths(&path).chain(here).map(|folder| folder.join(name));
    let mut found = found.filter(|file| is_program(file));
    found.next().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "it is not in PATH"))
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Becomes the program, unprotected. Returns only if it cannot be started.
pub fn become_it(words: &[OsString]) -> io::Error {
    match command(words) {
        Ok(mut command) => command.exec(),
        Err(error) => error,
    }
}

/// Starts the program. It dies with this process; `socket` connects the two; in `undo` it records
/// what it changes in files; `ends` are its standard descriptors.
pub fn start(
    words: &[OsString],
    (socket, undo): (OwnedFd, Option<PathBuf>),
    ends: Ends,
    mask: libc::sigset_t,
) -> io::Result<std::process::Child> {
    let mut command = command(words)?;
    let fd: RawFd = socket.as_raw_fd();
    let number = settings::GUARDIAN_FD_NUMBER;
    command.env(settings::GUARDIAN_FD, number.to_string());
    if let Some(undo) = undo {
        command.env(settings::UNDO, undo);
    }
    let images = env::var(settings::IMAGES).ok().and_then(|text| text.parse::<Images>().ok());
    if images.is_some_and(|images| images.full_every > 1) {
        command.env(settings::TRACK_CHANGES, "1");
    }
    let Ends([out, err], input) = ends;
    if let Some(input) = input {
        command.stdin(input);
    }
    if let Some(out) = out {
        command.stdout(out);
    }
    if let Some(err) = err {
        command.stderr(err);
    }
    let guardian = std::process::id();
    let prepare = move || {
        os::inherit_as(fd, number)?;
        os::die_with_parent(libc::SIGKILL)?;
        if os::parent() as u32 != guardian {
            return Err(io::Error::other("the guardian has ended"));
        }
        os::set_mask(&mask)
    };
    // SAFETY: between fork and exec only system calls are made; nothing allocates in the good case.
    unsafe { command.pre_exec(prepare) };
    command.spawn().map_err(|error| match error.raw_os_error() {
        Some(libc::EMFILE) => io::Error::other(too_few_files(number)),
        _ => error,
    })
}

/// The number of the socket is part of images, so it is the same everywhere.
fn too_few_files(number: RawFd) -> String {
    let limit = os::limit_of_files().map_or("too low".into(), |limit| limit.rlim_max.to_string());
    format!(
        "the limit of open files (ulimit -Hn) is {limit}, and a protected rank needs descriptor \
         {number}, and more when it is restarted: raise it to 1024 or more, or run without \
         protection (--mca \
         vprotocol_correlated_recover 0)"
    )
}
