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

/// Stands in front of libibverbs in programs that use it past MPI.
const SHADOW_VERBS_LIBRARY: &str = "librustbtl_verbs.so";

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
    rank: (u32, u32),
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
    if let Some(library) = env::var_os(settings::SHADOW_VERBS).filter(|wanted| !wanted.is_empty()) {
        load_shadow_verbs(&mut command, &library, rank)?;
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

/// Loads shadow verbs in front of libibverbs. `wanted`: 1, or the library. `rank`: which, of how
/// many.
fn load_shadow_verbs(command: &mut Command, wanted: &OsStr, rank: (u32, u32)) -> io::Result<()> {
    let here = env::current_exe()?.with_file_name(SHADOW_VERBS_LIBRARY);
    let places = match wanted.as_bytes() {
        b"1" => vec![here.clone(), here.with_file_name("../lib").join(SHADOW_VERBS_LIBRARY)],
        _ => vec![PathBuf::from(wanted)],
    };
    let Some(library) = places.iter().find(|place| place.is_file()) else {
        let problem = format!(
            "vprotocol_correlated_shadow_verbs: there is no {}; give the path of \
             {SHADOW_VERBS_LIBRARY}",
            places[0].display()
        );
        return Err(io::Error::new(io::ErrorKind::NotFound, problem));
    };
    let mut preload = library.clone().into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    command.env("LD_PRELOAD", preload).env(settings::SHADOW_VERBS_JOB, "1");
    command.env("RUSTBTL_VERBS_PROCESS", rank.0.to_string());
    command.env("RUSTBTL_VERBS_PROCESSES", rank.1.to_string());
    Ok(())
}

/// The number of the socket is part of images, so it is the same everywhere.
fn too_few_files(number: RawFd) -> String {
    let limit = os::limit_of_files().map_or("too low".into(), |limit| limit.rlim_max.to_string());
    format!(
        "the limit of open files (ulimit -Hn) is {limit}, and a protected rank needs descriptor \
         {number}, and more when it is restarted: raise it to 1024 or more, or run without \
         protection (--mca vprotocol_correlated_recover 0, and no \
         vprotocol_correlated_checkpoint_dir)"
    )
}
