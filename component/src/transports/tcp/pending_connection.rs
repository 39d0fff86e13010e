//! Connections that others opened and that have not proved anything yet.

use crate::os::socket;
use crate::os::socket::Io;
use crate::transports::tcp::handshake::*;
use rustbtl_coordination::sealed_records::Session;
use rustbtl_coordination::session_keys::KeyAgreement;
use std::io::IoSlice;
use std::net::{SocketAddr, TcpStream};

/// Bytes of a message of fixed size that arrive piece by piece; never reads past its end.
#[derive(Debug)]
pub(super) struct Message {
    bytes: [u8; MESSAGE_MAX],
    got: usize,
}

/// How far it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Read<const N: usize> {
    Whole([u8; N]),
    NotYet,
    Lost(String),
}

impl Message {
    pub(super) const fn new() -> Self {
        Self { bytes: [0; MESSAGE_MAX], got: 0 }
    }

    /// Anything at all?
    pub(super) fn begun(&self) -> bool {
        self.got > 0
    }

    /// Read on towards `N` bytes; starts anew after a whole message.
    pub(super) fn read<const N: usize>(&mut self, stream: &TcpStream) -> Read<N> {
        while self.got < N {
            match socket::receive(stream, &mut self.bytes[self.got..N]) {
                Io::Done(n) => self.got += n,
                Io::WouldBlock => return Read::NotYet,
                Io::End => return Read::Lost("it closed the connection".to_owned()),
                Io::Broken(code) => return Read::Lost(socket::broken(code)),
            }
        }
        self.got = 0;
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes[..N]);
        Read::Whole(out)
    }
}

/// Write a message to a connection that has nothing else to write: it fits or it is broken.
pub(super) fn write(stream: &TcpStream, message: &[u8]) -> Result<(), String> {
    match socket::send(stream, &[IoSlice::new(message)]) {
        Io::Done(n) if n == message.len() => Ok(()),
        Io::Broken(code) => Err(socket::broken(code)),
        _ => Err("it does not read".to_owned()),
    }
}

/// An accepted connection.
#[derive(Debug)]
pub(super) struct PendingConnection {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
    /// When it came.
    pub(super) since_ms: u64,
    /// Whether a peer is known to be at its address; found out when that matters.
    pub(super) is_known: Option<bool>,
    message: Message,
    /// Its Hello and our Challenge, once exchanged.
    asked: Option<([u8; HELLO], [u8; CHALLENGE])>,
    /// Our half of the keys, where the connection is to be encrypted.
    agreement: Option<KeyAgreement>,
}

/// What became of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// Not yet decided.
    Waiting,
    /// It has proved that it belongs to the job: what it says of itself.
    Verified(Names),
    /// To be closed; `None`: not worth a word.
    Refused(Option<String>),
}

impl PendingConnection {
    pub(super) fn new(stream: TcpStream, address: SocketAddr, since_ms: u64) -> Self {
        let (is_known, message) = (None, Message::new());
        Self { stream, address, since_ms, is_known, message, asked: None, agreement: None }
    }

    /// Did it send anything that makes sense so far?
    pub(super) fn is_plausible(&self) -> bool {
        self.asked.is_some() || !self.message.begun()
    }

    /// Go on. `mine`: our names for a Challenge, and our half of the keys.
    pub(super) fn drive(
        &mut self,
        secret: &[u8; 32],
        (mine, agreement): (Names, Option<KeyAgreement>),
    ) -> Progress {
        if self.asked.is_none() {
            let hello = match self.message.read::<HELLO>(&self.stream) {
                Read::Whole(hello) => hello,
                Read::NotYet => return Progress::Waiting,
                Read::Lost(why) => {
                    let begun = self.message.begun();
                    return Progress::Refused(begun.then(|| format!("not this job's: {why}")));
                }
            };
            let names = match Names::decode(&hello, mine.version) {
                Ok(names) => names,
                Err(refusal) => return self.refuse(refusal, &mine),
            };
            if names.to != mine.from {
                // Two hosts with the same address on a bridge: the peer tries its next address.
                return Progress::Refused(None);
            }
            let challenge = challenge(secret, &hello, &Names { to: names.from, ..mine });
            if write(&self.stream, &challenge).is_err() {
                return Progress::Refused(None);
            }
            self.asked = Some((hello, challenge));
            self.agreement = agreement;
        }
        let Some((hello, challenge)) = &self.asked else { return Progress::Waiting };
        match self.message.read::<PROOF>(&self.stream) {
            Read::Whole(proof) => match check_proof(secret, hello, challenge, &proof) {
                Ok(()) => match Names::decode(hello, mine.version) {
                    Ok(names) => Progress::Verified(names),
                    Err(_) => Progress::Refused(None),
                },
                Err(_) => Progress::Refused(Some("it has a wrong secret".to_owned())),
            },
            Read::NotYet => Progress::Waiting,
            // An abandoned attempt of a peer (both connected at the same time).
            Read::Lost(_) => Progress::Refused(None),
        }
    }

    /// What goes over it from now on. `None`: it is to be encrypted, and there are no keys.
    pub(super) fn session(&self, secret: &[u8; 32], theirs: &Names) -> Option<Option<Session>> {
        let Some(agreement) = &self.agreement else { return Some(None) };
        let (hello, challenge) = self.asked.as_ref()?;
        let keys = agreement.agree(&theirs.nonce, secret, hello, challenge)?;
        Some(Some(Session::of_target(&keys)))
    }

    fn refuse(&self, refusal: Refusal, mine: &Names) -> Progress {
        let why = match refusal {
            Refusal::Version(theirs) => {
                // So that it can name the mismatch, too; it proves nothing.
                let mut answer = [0; CHALLENGE];
                answer[..HELLO].copy_from_slice(&Names { nonce: [0; 32], ..*mine }.encode());
                let _ = write(&self.stream, &answer);
                format!(
                    "it runs another version of this component ({theirs:#x}, here {:#x}); \
                     install the same version on all nodes",
                    mine.version
                )
            }
            _ => "it is not a process of this job".to_owned(),
        };
        Progress::Refused(Some(why))
    }

    /// Tell it the verdict.
    pub(super) fn answer(&self, secret: &[u8; 32], verdict: Verdict) -> bool {
        let Some((hello, challenge)) = &self.asked else { return false };
        write(&self.stream, &welcome(secret, hello, challenge, verdict)).is_ok()
    }
}
