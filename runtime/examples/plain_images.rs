//! For tests: the `rustbtl` program with images that hold the rank's description, and no
//! memory. Restoring one starts the program that is named in it. Images begin with `PLAIN`; the
//! description `refuse` cannot be stored.

use rustbtl_runtime::cli;
use rustbtl_runtime::guardian::images::{ImageStore, RestartInfo, Source, Written};
use rustbtl_runtime::os::{self, Pid};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;

struct Plain;

fn written(text: &[u8]) -> Written {
    let bytes = text.len() as u64;
    let checksum = text.iter().fold(7u64, |sum, &byte| sum.wrapping_mul(31) + u64::from(byte));
    Written { bytes, raw_bytes: bytes, checksum }
}

impl ImageStore for Plain {
    fn write(&self, source: &Source<'_>, to: &Path) -> Result<Written, String> {
        if source.description.starts_with(b"refuse") {
            return Err("there is no room on the disk".into());
        }
        let text = [b"PLAIN\n", source.description].concat();
        let mut file = File::create_new(to).map_err(|error| error.to_string())?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(|error| error.to_string())?;
        Ok(written(&text))
    }

    fn restore(
        &self,
        image: &Path,
        _: RestartInfo,
        socket: RawFd,
        standard: [RawFd; 3],
    ) -> Result<Pid, String> {
        let text = fs::read_to_string(image).map_err(|error| error.to_string())?;
        let mut lines = text.lines().skip(1);
        let mut program = Command::new(lines.next().ok_or("it is damaged")?);
        // SAFETY: they are open while this runs.
        let [_, out, err] = standard.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
        let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(|e| e.to_string());
        program.stdout(copy(out)?).stderr(copy(err)?);
        program.args(lines).arg("restored").env("RUSTBTL_GUARDIAN_FD", socket.to_string());
        // SAFETY: between fork and exec only system calls are made.
        unsafe {
            program.pre_exec(move || {
                os::inherit(socket)?;
                os::die_with_parent(libc::SIGKILL)
            })
        };
        let child = program.spawn().map_err(|error| error.to_string())?;
        Ok(child.id() as Pid)
    }

    fn check(&self, image: &Path) -> Result<Written, String> {
        let text = fs::read(image).map_err(|error| error.to_string())?;
        if text.starts_with(b"PLAIN\n") { Ok(written(&text)) } else { Err("damaged".into()) }
    }
}

fn main() -> ExitCode {
    cli::main(Arc::new(Plain))
}
