//! The socket of an open connection, and what encrypts what goes over it, where that is wanted.

use crate::os::socket;
use crate::os::socket::Io;
use rustbtl_coordination::sealed_records::{OVERHEAD, RECORD_BYTES_MAX, Session};
use std::io::IoSlice;
use std::net::TcpStream;

/// Room for what is read must not be less than this: a whole record may be opened at a time.
pub(super) const ROOM_MIN: usize = RECORD_BYTES_MAX + OVERHEAD;
/// Bytes that are read at a time.
const READ_BYTES: usize = 128 << 10;
/// The error of a record that is refused.
pub(super) const FORGED: i32 = libc::EBADMSG;

/// See the module's documentation.
pub(in crate::transports::tcp) struct Wire {
    pub(in crate::transports::tcp) stream: TcpStream,
    sealed: Option<Box<Sealed>>,
}

struct Sealed {
    session: Session,
    /// Records that are not sent, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// What was read.
    read: Box<[u8]>,
}

impl core::fmt::Debug for Wire {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Wire").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Wire {
    /// `session`: what has been agreed on in the handshake, if it is to be encrypted.
    pub(in crate::transports::tcp) fn new(stream: TcpStream, session: Option<Session>) -> Self {
        let sealed = session.map(|session| {
            let read = vec![0; READ_BYTES].into();
            Box::new(Sealed { session, out: Vec::new(), sent: 0, read })
        });
        Self { stream, sealed }
    }

    /// Is it encrypted?
    #[inline]
    pub(super) const fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Bytes that were accepted, and that the kernel does not have.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.sealed.as_ref().map_or(0, |sealed| sealed.out.len() - sealed.sent)
    }

    /// Write as much as is taken now. Where it is encrypted that is all or nothing, and the kernel
    /// may not have it yet: [`Self::flush`].
    #[inline]
    pub(super) fn send(&mut self, from: &[IoSlice<'_>]) -> Io {
        if self.sealed.is_none() {
            return socket::send(&self.stream, from);
        }
        self.seal(from)
    }

    fn seal(&mut self, from: &[IoSlice<'_>]) -> Io {
        let flushed = self.flush();
        let Some(sealed) = self.sealed.as_mut().filter(|_| matches!(flushed, Io::Done(_))) else {
            return flushed;
        };
        let bytes = from.iter().map(|part| part.len()).sum();
        sealed.session.sealer.seal_parts(from, &mut sealed.out);
        match self.flush() {
            Io::Broken(code) => Io::Broken(code),
            _ => Io::Done(bytes),
        }
    }

    /// Write what waits. `Done`: nothing is left.
    pub(super) fn flush(&mut self) -> Io {
        let Some(sealed) = &mut self.sealed else { return Io::Done(0) };
        while sealed.sent < sealed.out.len() {
            match socket::send(&self.stream, &[IoSlice::new(&sealed.out[sealed.sent..])]) {
                Io::Done(bytes) => sealed.sent += bytes,
                other => return other,
            }
        }
        sealed.out.clear();
        sealed.sent = 0;
        Io::Done(0)
    }

    /// Read what is there. Where it is encrypted, `into` is [`ROOM_MIN`] long or longer, so that
    /// nothing of what was opened has to stay here: nobody would come for it.
    #[inline]
    pub(super) fn receive(&mut self, into: &mut [u8]) -> Io {
        match &mut self.sealed {
            None => socket::receive(&self.stream, into),
            Some(sealed) => sealed.receive(&self.stream, into),
        }
    }
}

impl Sealed {
    fn receive(&mut self, stream: &TcpStream, into: &mut [u8]) -> Io {
        loop {
            let opener = &mut self.session.opener;
            // Texts are shorter than their records.
            let room = into.len().saturating_sub(opener.waiting()).min(self.read.len());
            debug_assert!(room > 0, "room for a record");
            let bytes = match socket::receive(stream, &mut self.read[..room]) {
                Io::Done(bytes) => bytes,
                other => return other,
            };
            let mut opened = 0;
            let done = opener.open(&self.read[..bytes], |text| {
                into[opened..opened + text.len()].copy_from_slice(text);
                opened += text.len();
            });
            if done.is_err() {
                return Io::Broken(FORGED);
            }
            if opened > 0 {
                return Io::Done(opened);
            }
        }
    }
}
