//! What users type: `rustbtl checkpoint`, `status`, `list`, `restart`, `report`.

pub(crate) mod events;
pub(crate) mod list;
pub(crate) mod recoveries;
pub(crate) mod report;
pub(crate) mod restart;
pub(crate) mod status;
pub(crate) mod timeline_svg;

use crate::jobs;
use rustbtl_coordination::control::{FrameBuffer, Message, Reply, Request};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

pub use crate::command::list::list;
pub use crate::command::report::report;
pub use crate::command::restart::{PLACEHOLDER, Restart, restart};
pub use crate::command::status::status;

/// How long the coordinator may take to answer what it can answer at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// Ask the coordinator.
fn ask(stream: &mut UnixStream, request: &Request, patient: bool) -> Result<Reply, String> {
    let what = |error: std::io::Error| format!("asking the job's coordinator: {error}");
    stream.set_read_timeout((!patient).then_some(PATIENCE)).map_err(what)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(what)?;
    let frame = request.encode().map_err(|error| error.to_string())?;
    stream.write_all(&frame).map_err(what)?;
    let mut buffer = FrameBuffer::new();
    let mut piece = [0; 16 << 10];
    loop {
        if let Some(reply) = buffer.next_message().map_err(|error| error.to_string())? {
            return Ok(reply);
        }
        match stream.read(&mut piece).map_err(what)? {
            0 => return Err("the job has ended".into()),
            bytes => buffer.add(&piece[..bytes]),
        }
    }
}

/// `rustbtl checkpoint`.
pub fn checkpoint(job: Option<&str>, all: bool, wait: bool, then_exit: bool) -> Result<(), String> {
    let (job, mut stream) = jobs::find(job)?;
    let wait = wait || then_exit;
    let request = Request::Checkpoint { all, wait, then_exit };
    match ask(&mut stream, &request, true)? {
        Reply::Complete { checkpoint } => println!("{job}: checkpoint {checkpoint} is complete"),
        Reply::Ordered { checkpoint } => println!("{job}: checkpoint {checkpoint} is ordered"),
        Reply::Refused { reason } => return Err(format!("{job}: {reason}")),
        Reply::Status { .. } => return Err(format!("{job}: an answer to another question")),
    }
    Ok(())
}

/// Bytes for people.
fn bytes(count: u64) -> String {
    let (mut value, mut unit) = (count as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if unit == "B" { format!("{count} B") } else { format!("{value:.1} {unit}") }
}

/// A duration for people.
fn time(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{:.0} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(3 << 20), "3.0 MiB");
        assert_eq!(time(1_500), "2 µs");
        assert_eq!(time(2_500_000_000), "2.50 s");
    }
}
