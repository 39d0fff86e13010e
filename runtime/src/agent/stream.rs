//! Messages over a connection whose both ends wait for each other: for threads of their own.

use crate::os::Poll;
use rustbtl_coordination::control::{FrameBuffer, Message};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// Quiescence of the other end that is taken for its end.
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
        Self::over(stream, Some(SILENCE))
    }

    /// The same; `None`: the other end may be silent for as long as it likes.
    pub fn over(stream: TcpStream, silence: Option<Duration>) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(silence)?;
        stream.set_write_timeout(silence)?;
        Ok(Self { stream, incoming: FrameBuffer::new(), room: vec![0; 256 << 10] })
    }

    /// Waits until it is on its way.
    pub fn send(&mut self, message: &impl Message) -> Result<(), String> {
        let frame = message.encode().map_err(|error| error.to_string())?;
        self.stream.write_all(&frame).map_err(told)
    }

    /// To poll; what has come with an earlier message is not to be seen there.
    pub fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// What is here already, without waiting; the error: nothing will come any more.
    pub fn next<M: Message>(&mut self) -> Result<Option<M>, String> {
        self.incoming.next_message().map_err(|error| error.to_string())
    }

    /// Take in what has come: there is something, or it is over.
    pub fn take_in(&mut self) -> Result<(), String> {
        match self.stream.read(&mut self.room) {
            Ok(0) => Err("the connection has ended".into()),
            Ok(bytes) => {
                self.incoming.add(&self.room[..bytes]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(told(error)),
        }
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
            self.take_in()?;
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
