//! A connection for control messages that never blocks. Over the network it is encrypted.

use crate::auth::AuthenticatedStream;
use rustbtl_coordination::control::{ControlError, FrameBuffer, Message};
use rustbtl_coordination::sealed_records::{SealError, Session};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

/// Bytes that may wait for a reader who does not read.
const WAITING_BYTES_MAX: usize = 256 << 20;
/// Bytes that are read first: most messages are short, and room for more would have to be cleared.
const SHORT_BYTES: usize = 2 << 10;
/// Bytes that are read at a time when there are more.
const READ_BYTES: usize = 64 << 10;

/// Why a connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The other end has closed it, or it broke.
    #[error(transparent)]
    Closed(io::Error),
    /// What was received is no valid message.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// What was received is not what was sent.
    #[error(transparent)]
    Sealed(#[from] SealError),
    /// The other end does not read.
    #[error("the other end does not read")]
    Full,
}

/// A stream of either kind.
trait Stream: Read + Write + AsRawFd + Send {
    /// Makes it non-blocking.
    fn make_nonblocking(&self) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn make_nonblocking(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }
}

impl Stream for TcpStream {
    fn make_nonblocking(&self) -> io::Result<()> {
        // A hint: without it messages are late, not lost.
        let _ = self.set_nodelay(true);
        self.set_nonblocking(true)
    }
}

/// The connection.
pub struct Link {
    stream: Box<dyn Stream>,
    /// What encrypts it, between nodes.
    session: Option<Box<Session>>,
    incoming: FrameBuffer,
    outgoing: Vec<u8>,
    /// Bytes of `outgoing` that are sent.
    sent: usize,
}

impl Link {
    /// Inside a node, to a process of the same user.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        Self::over(stream, None)
    }

    /// Between nodes.
    pub fn over_network(stream: AuthenticatedStream) -> io::Result<Self> {
        let (stream, session) = stream.into_parts();
        Self::over(stream, Some(session))
    }

    fn over(stream: impl Stream + 'static, session: Option<Box<Session>>) -> io::Result<Self> {
        stream.make_nonblocking()?;
        let incoming = FrameBuffer::new();
        Ok(Self { stream: Box::new(stream), session, incoming, outgoing: Vec::new(), sent: 0 })
    }

    /// To poll.
    pub fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Is something waiting to be sent?
    pub fn wants_to_write(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// Send a message, now or as soon as there is room.
    pub fn send<M: Message>(&mut self, message: &M) -> Result<(), LinkError> {
        self.send_frame(&message.encode()?)
    }

    /// Sends a frame that is encoded already.
    pub fn send_frame(&mut self, frame: &[u8]) -> Result<(), LinkError> {
        if self.outgoing.len() - self.sent + frame.len() > WAITING_BYTES_MAX {
            return Err(LinkError::Full);
        }
        match &mut self.session {
            Some(session) => session.sealer.seal(frame, &mut self.outgoing),
            None => self.outgoing.extend_from_slice(frame),
        }
        self.flush()
    }

    /// Send what is waiting, as far as there is room.
    pub fn flush(&mut self) -> Result<(), LinkError> {
        while self.wants_to_write() {
            match self.stream.write(&self.outgoing[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => break,
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(LinkError::Closed(error)),
                },
            }
        }
        if self.sent == self.outgoing.len() || self.sent > WAITING_BYTES_MAX / 4 {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// Reads what has arrived; the end of the connection is an error, but comes after everything
    /// that was sent before it.
    pub fn read(&mut self) -> Result<(), LinkError> {
        let mut piece = [0; SHORT_BYTES];
        match self.read_into(&mut piece)? {
            0 => Ok(()),
            SHORT_BYTES => self.read_on(),
            _ => self.read_into(&mut piece).map(drop),
        }
    }

    /// The short piece was full.
    #[cold]
    #[inline(never)]
    fn read_on(&mut self) -> Result<(), LinkError> {
        let mut piece = [0; READ_BYTES];
        // Not for ever: others wait, too.
        for _ in 0..16 {
            if self.read_into(&mut piece)? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Read once; 0: there is nothing.
    fn read_into(&mut self, piece: &mut [u8]) -> Result<usize, LinkError> {
        loop {
            match self.stream.read(piece) {
                Ok(0) => {
                    let end = io::Error::new(io::ErrorKind::UnexpectedEof, "connection closed");
                    return Err(LinkError::Closed(end));
                }
                Ok(bytes) => {
                    self.take_in(&piece[..bytes])?;
                    return Ok(bytes);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(0),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(LinkError::Closed(error)),
                },
            }
        }
    }

    fn take_in(&mut self, bytes: &[u8]) -> Result<(), SealError> {
        let incoming = &mut self.incoming;
        match &mut self.session {
            Some(session) => session.opener.open(bytes, |text| incoming.add(text)),
            None => {
                incoming.add(bytes);
                Ok(())
            }
        }
    }

    /// The next message that has arrived completely.
    pub fn next_message<M: Message>(&mut self) -> Result<Option<M>, LinkError> {
        Ok(self.incoming.next_message()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustbtl_coordination::control::{FromNode, Request};

    #[test]
    fn everything_that_was_sent_comes_before_the_end() {
        let (one, two) = UnixStream::pair().unwrap();
        let (mut one, mut two) = (Link::new(one).unwrap(), Link::new(two).unwrap());
        for count in 0..3 {
            one.send(&FromNode::Heartbeat { count }).unwrap();
        }
        drop(one);
        assert!(matches!(two.read(), Err(LinkError::Closed(_))));
        for count in 0..3 {
            assert_eq!(two.next_message().unwrap(), Some(FromNode::Heartbeat { count }));
        }
        assert_eq!(two.next_message::<FromNode>().unwrap(), None);
    }

    #[test]
    fn a_message_of_another_protocol_is_refused() {
        let (one, two) = UnixStream::pair().unwrap();
        let (mut one, mut two) = (Link::new(one).unwrap(), Link::new(two).unwrap());
        one.send(&Request::Status {}).unwrap();
        two.read().unwrap();
        let got = two.next_message::<FromNode>();
        assert!(matches!(got, Err(LinkError::Control(ControlError::Class(5)))));
    }

    #[test]
    fn a_reader_that_does_not_read_does_not_stop_the_writer() {
        let (one, _two) = UnixStream::pair().unwrap();
        let mut one = Link::new(one).unwrap();
        for count in 0..100_000 {
            one.send(&FromNode::Heartbeat { count }).unwrap();
        }
        assert!(one.wants_to_write());
    }
}
