//! Connecting to a peer: its addresses in turn, again after a pause, for a bounded time.

use crate::os::socket;
use crate::transports::tcp::config::TcpPeer;
use crate::transports::tcp::connection::wire::Wire;
use crate::transports::tcp::handshake::*;
use crate::transports::tcp::pending_connection::{Message, Read, write};
use rustbtl_coordination::sealed_records::Session;
use rustbtl_coordination::session_keys::KeyAgreement;
use std::net::{SocketAddr, TcpStream};

/// How long one address may take to answer the connect (not the handshake: the peer may compute).
const ADDRESS_MS_MAX: u64 = 3_000;
const PAUSE_MS_FIRST: u64 = 5;
const PAUSE_MS_MAX: u64 = 500;
/// How long to wait for the connection that the peer has promised (it reported a duplicate).
const PROMISE_MS: u64 = 1_000;

#[derive(Debug)]
enum DialState {
    /// The kernel connects.
    Connecting(TcpStream, u64),
    /// Hello is sent.
    Challenged(TcpStream, Message),
    /// Proof is sent.
    Proved(TcpStream, Message, Box<[u8; CHALLENGE]>, Names),
    /// Until then.
    Pause(u64),
}

/// An attempt to reach a peer.
#[derive(Debug)]
pub(super) struct Dial {
    addresses: Vec<SocketAddr>,
    at: usize,
    hello: Names,
    /// Our half of the keys, where connections are encrypted.
    agreement: Option<KeyAgreement>,
    secret: [u8; 32],
    state: DialState,
    pause_ms: u64,
    give_up_ms: u64,
    last: String,
}

/// What became of it.
#[derive(Debug)]
pub(super) enum Step {
    /// Goes on. True: its socket is new or waits for something else than before.
    Waiting(bool),
    /// Open.
    Open(Box<Wire>, SocketAddr, Names, u32),
    /// Never, and why. True: worth a notice of its own.
    Failed(String, bool),
}

impl Dial {
    /// Start. `addresses` in the order to be tried.
    pub(super) fn new(
        addresses: Vec<SocketAddr>,
        peer: &TcpPeer,
        (hello, agreement): (Names, Option<KeyAgreement>),
        now_ms: u64,
        connect_ms_max: u32,
    ) -> Self {
        Self {
            addresses,
            at: 0,
            hello,
            agreement,
            secret: peer.secret,
            state: DialState::Pause(now_ms),
            pause_ms: PAUSE_MS_FIRST,
            give_up_ms: now_ms + u64::from(connect_ms_max),
            last: "it has published no address".to_owned(),
        }
    }

    /// Is something under way, or is this a pause between attempts?
    pub(super) fn is_active(&self) -> bool {
        !matches!(self.state, DialState::Pause(_))
    }

    /// The socket, and whether it waits to be writable.
    pub(super) fn socket(&self) -> Option<(&TcpStream, bool)> {
        match &self.state {
            DialState::Connecting(stream, _) => Some((stream, true)),
            DialState::Challenged(stream, _) | DialState::Proved(stream, ..) => {
                Some((stream, false))
            }
            DialState::Pause(_) => None,
        }
    }

    /// Go on, as far as it goes now.
    pub(super) fn drive(&mut self, now_ms: u64) -> Step {
        let mut changed = false;
        loop {
            let pause = DialState::Pause(now_ms);
            let next = match std::mem::replace(&mut self.state, pause) {
                DialState::Pause(until) if until > now_ms => {
                    self.state = DialState::Pause(until);
                    return Step::Waiting(changed);
                }
                DialState::Pause(_) => match self.addresses.get(self.at) {
                    None => return Step::Failed(self.last.clone(), false),
                    Some(&address) => match socket::connect(address) {
                        Ok(stream) => DialState::Connecting(stream, now_ms + ADDRESS_MS_MAX),
                        Err(error) => self.missed(error.to_string(), now_ms),
                    },
                },
                DialState::Connecting(stream, until) => {
                    match socket::connected(&stream, self.addresses[self.at]) {
                        Ok(true) => match write(&stream, &self.hello.encode()) {
                            Ok(()) => DialState::Challenged(stream, Message::new()),
                            Err(why) => self.missed(self.name(&why), now_ms),
                        },
                        Ok(false) if now_ms < until => {
                            self.state = DialState::Connecting(stream, until);
                            return Step::Waiting(changed);
                        }
                        Ok(false) => {
                            let why = format!("no answer within {ADDRESS_MS_MAX} ms");
                            self.missed(self.name(&why), now_ms)
                        }
                        Err(error) => self.missed(error.to_string(), now_ms),
                    }
                }
                DialState::Challenged(stream, mut message) => {
                    match message.read::<CHALLENGE>(&stream) {
                        Read::NotYet => {
                            self.state = DialState::Challenged(stream, message);
                            return Step::Waiting(changed);
                        }
                        Read::Lost(why) => self.missed(self.name(&why), now_ms),
                        Read::Whole(challenge) => match self.answer(&stream, &challenge) {
                            Ok(names) => {
                                DialState::Proved(stream, message, Box::new(challenge), names)
                            }
                            Err(Refusal::Version(theirs)) => {
                                let why = self.name(&format!(
                                    "it runs another version of this component ({theirs:#x}, \
                                     here {:#x}); install the same version on all nodes",
                                    self.hello.version
                                ));
                                return Step::Failed(why, true);
                            }
                            Err(refusal) => {
                                let why = match refusal {
                                    Refusal::Secret => "it does not know the job's secret",
                                    _ => "it is another process",
                                };
                                self.missed(self.name(why), now_ms)
                            }
                        },
                    }
                }
                DialState::Proved(stream, mut message, challenge, names) => {
                    match message.read::<WELCOME>(&stream) {
                        Read::NotYet => {
                            self.state = DialState::Proved(stream, message, challenge, names);
                            return Step::Waiting(changed);
                        }
                        Read::Lost(why) => self.missed(self.name(&why), now_ms),
                        Read::Whole(welcome) => {
                            let hello = self.hello.encode();
                            match check_welcome(&self.secret, &hello, &challenge, &welcome) {
                                Ok(Verdict::Accepted(generation)) => {
                                    let address = self.addresses[self.at];
                                    match self.session(&names, &hello, &challenge) {
                                        Some(session) => {
                                            let wire = Box::new(Wire::new(stream, session));
                                            return Step::Open(wire, address, names, generation);
                                        }
                                        None => {
                                            let why = self.name("it has no key");
                                            self.missed(why, now_ms)
                                        }
                                    }
                                }
                                Ok(Verdict::Duplicate) => DialState::Pause(now_ms + PROMISE_MS),
                                Err(_) => {
                                    let why = self.name("it does not know the job's secret");
                                    self.missed(why, now_ms)
                                }
                            }
                        }
                    }
                }
            };
            self.state = next;
            changed = true;
            if now_ms >= self.give_up_ms && !self.is_active() {
                return Step::Failed(self.last.clone(), false);
            }
        }
    }

    /// What goes over it from now on. `None`: it is to be encrypted, and there are no keys.
    fn session(
        &self,
        theirs: &Names,
        hello: &[u8; HELLO],
        challenge: &[u8; CHALLENGE],
    ) -> Option<Option<Session>> {
        let Some(agreement) = &self.agreement else { return Some(None) };
        let keys = agreement.agree(&theirs.nonce, &self.secret, hello, challenge)?;
        Some(Some(Session::of_initiator(&keys)))
    }

    /// Check a Challenge and send the Proof.
    fn answer(&self, stream: &TcpStream, challenge: &[u8; CHALLENGE]) -> Result<Names, Refusal> {
        let names = check_challenge(&self.secret, &self.hello, challenge)?;
        let proof = proof(&self.secret, &self.hello.encode(), challenge);
        // A failure shows at the next read.
        let _ = write(stream, &proof);
        Ok(names)
    }

    fn name(&self, why: &str) -> String {
        format!("{}: {why}", self.addresses[self.at])
    }

    /// This address did not work: the next one, or all of them again after a pause.
    fn missed(&mut self, why: String, now_ms: u64) -> DialState {
        self.last = why;
        self.at += 1;
        if self.at < self.addresses.len() {
            return DialState::Pause(now_ms);
        }
        self.at = 0;
        let pause = self.pause_ms;
        self.pause_ms = (2 * pause).min(PAUSE_MS_MAX);
        DialState::Pause(now_ms + pause)
    }
}
