//! Messages over a blocking connection between nodes: each end may wait for the other, in a thread
//! of its own. It is encrypted.

use crate::auth::AuthenticatedStream;
use crate::os::Poll;
use rustbtl_coordination::control::{FrameBuffer, Message};
use rustbtl_coordination::sealed_records::Session;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

/// The other end has failed if nothing moves for so long.
const TIMEOUT: Duration = Duration::from_secs(20);

/// See the module's documentation.
pub struct BlockingStream {
    stream: TcpStream,
    session: Box<Session>,
    incoming: FrameBuffer,
    buffer: Vec<u8>,
    /// Records that are sent.
    sealed: Vec<u8>,
}

impl BlockingStream {
    /// Over a connection whose other end is authenticated.
    pub fn new(stream: AuthenticatedStream) -> io::Result<Self> {
        Self::with_timeout(stream, Some(TIMEOUT))
    }

    /// The same; `None`: without a limit.
    pub fn with_timeout(
        stream: AuthenticatedStream,
        timeout: Option<Duration>,
    ) -> io::Result<Self> {
        let (stream, session) = stream.into_parts();
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(timeout)?;
        stream.set_write_timeout(timeout)?;
        let (incoming, buffer) = (FrameBuffer::new(), vec![0; 256 << 10]);
        Ok(Self { stream, session, incoming, buffer, sealed: Vec::new() })
    }

    /// Waits until the kernel has it.
    pub fn send(&mut self, message: &impl Message) -> Result<(), String> {
        let frame = message.encode().map_err(|error| error.to_string())?;
        self.sealed.clear();
        self.session.sealer.seal(&frame, &mut self.sealed);
        self.stream.write_all(&self.sealed).map_err(describe)
    }

    /// To poll. It does not show what was received together with an earlier message.
    pub fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// The next message that was received already, without waiting. After an error none will come.
    pub fn next<M: Message>(&mut self) -> Result<Option<M>, String> {
        self.incoming.next_message().map_err(|error| error.to_string())
    }

    /// Reads once, where polling has shown that something has arrived or the connection has ended.
    pub fn read(&mut self) -> Result<(), String> {
        match self.stream.read(&mut self.buffer) {
            Ok(0) => Err("the connection has ended".into()),
            Ok(bytes) => {
                let (opener, incoming) = (&mut self.session.opener, &mut self.incoming);
                let opened = opener.open(&self.buffer[..bytes], |text| incoming.add(text));
                opened.map_err(|error| error.to_string())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(describe(error)),
        }
    }

    /// Has the other end sent something, or closed the connection?
    pub fn has_input(&self) -> bool {
        let mut poll = Poll::default();
        let slot = poll.add(self.stream.as_raw_fd(), false);
        poll.wait(Some(Instant::now())).is_ok() && poll.is_ready(slot)
    }

    /// Sends no more, and lets the other end finish: if it wrote to a closed connection, an answer
    /// that it has not read yet would be lost.
    pub fn drain(mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        while self.stream.read(&mut self.buffer).is_ok_and(|bytes| bytes > 0) {}
    }

    /// Waits for the next message.
    pub fn receive<M: Message>(&mut self) -> Result<M, String> {
        loop {
            if let Some(message) = self.incoming.next_message().map_err(|e| e.to_string())? {
                return Ok(message);
            }
            self.read()?;
        }
    }
}

fn describe(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("nothing was received for {} s", TIMEOUT.as_secs())
        }
        _ => error.to_string(),
    }
}
