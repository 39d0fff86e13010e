//! Messages over a connection whose both ends wait for each other: for threads of their own.

use crate::os::Poll;
use rustbtl_coordination::control::{FrameBuffer, Message};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Silence of the other end that is taken for its end.
const SILENCE: Duration = Duration::from_secs(20);

/// See the module's documentation.
pub struct Patient {
    stream: TcpStream,
    incoming: FrameBuffer,
    room: Vec<u8>,
}

impl Patient {
    /// Over a connection whose other end has proved itself.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        Ok(Self { stream, incoming: FrameBuffer::new(), room: vec![0; 256 << 10] })
    }

    /// Waits until it is on its way.
    pub fn send(&mut self, message: &impl Message) -> Result<(), String> {
        let frame = message.encode().map_err(|error| error.to_string())?;
        self.stream.write_all(&frame).map_err(told)
    }

    /// Has the other end said something, or gone?
    pub fn has_news(&self) -> bool {
        let mut poll = Poll::default();
        let place = poll.add(self.stream.as_raw_fd(), false);
        poll.wait(Some(Instant::now())).is_ok() && poll.is_ready(place)
    }

    /// Say no more, and let the other end finish: an answer that it has not read yet would be lost
    /// if it wrote to somebody who has gone.
    pub fn drain(mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        while self.stream.read(&mut self.room).is_ok_and(|bytes| bytes > 0) {}
    }

    /// Waits for the next message.
    pub fn receive<M: Message>(&mut self) -> Result<M, String> {
        loop {
            if let Some(message) = self.incoming.next_message().map_err(|e| e.to_string())? {
                return Ok(message);
            }
            match self.stream.read(&mut self.room) {
                Ok(0) => return Err("the connection has ended".into()),
                Ok(bytes) => self.incoming.add(&self.room[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(told(error)),
            }
        }
    }
}

fn told(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("nothing was heard for {} s", SILENCE.as_secs())
        }
        _ => error.to_string(),
    }
}
