//! The handshake of `rustbtl_coordination::handshake` between agents and the coordinator, and among
//! agents: nothing is parsed before both ends are authenticated with the job's secret, and what
//! follows is encrypted (`rustbtl_coordination::sealed_records`).

use rustbtl_coordination::handshake::{
    self, CHALLENGE, CLIENT, CONTROL, HELLO, Names, PROOF, Refusal, Verdict, WELCOME,
};
use rustbtl_coordination::sealed_records::Session;
use rustbtl_coordination::session_keys::{KEY, KeyAgreement, SessionKeys};
use rustbtl_fragments::ids::PeerId;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::os;

/// A job's secret.
pub type Secret = [u8; 32];

/// What a client connects to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Host {
    /// The job's coordinator.
    Coordinator,
    /// An agent's server for image replicas.
    ReplicaServer,
    /// A node without ranks, which takes those of lost ones.
    Spare,
}

impl Host {
    /// Its name in handshakes.
    const fn name(self) -> PeerId {
        match self {
            Self::Coordinator => handshake::COORDINATOR,
            Self::ReplicaServer => PeerId(0xFFFF_FFFC),
            Self::Spare => PeerId(0xFFFF_FFFB),
        }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// A system call failed, or took too long.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The other end runs another version.
    #[error(
        "it runs another version of rustbtl ({0:#x}, here {CONTROL:#x}): install the same version \
         on all nodes"
    )]
    Version(u32),
    /// The other end does not know the secret.
    #[error("it does not know this job's secret")]
    Secret,
    /// The other end is not what it should be.
    #[error("it is not a process of this job")]
    Refused(Refusal),
}

impl From<Refusal> for AuthError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Version(theirs) => Self::Version(theirs),
            Refusal::Secret => Self::Secret,
            other => Self::Refused(other),
        }
    }
}

impl AuthError {
    /// Nobody has answered, not even the kernel. (A read that takes too long is `WouldBlock`.)
    fn is_silence(&self) -> bool {
        let silence =
            [ErrorKind::TimedOut, ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable];
        matches!(self, Self::Io(error) if silence.contains(&error.kind()))
    }
}

fn names(from: PeerId, to: PeerId) -> io::Result<(Names, KeyAgreement)> {
    let agreement = KeyAgreement::new(os::random()?);
    let (version, nonce) = (CONTROL, agreement.nonce());
    Ok((Names { version, from, to, incarnation: 0, generation: 0, nonce }, agreement))
}

/// A connection whose other end is authenticated, and what encrypts it.
pub struct AuthenticatedStream {
    stream: TcpStream,
    session: Box<Session>,
}

impl AuthenticatedStream {
    /// For options and addresses; what is read and written goes through [`Self::into_parts`].
    pub const fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// The connection, and what has to seal and open all that goes over it.
    pub fn into_parts(self) -> (TcpStream, Box<Session>) {
        (self.stream, self.session)
    }
}

impl core::fmt::Debug for AuthenticatedStream {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("AuthenticatedStream").field(&self.stream).finish()
    }
}

/// The keys that both ends have agreed on.
fn agreed(keys: Option<SessionKeys>) -> Result<SessionKeys, Refusal> {
    keys.ok_or(Refusal::Garbage)
}

/// Why there is no connection to a host.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct NoConnection {
    /// For people: of each address.
    pub reason: String,
    /// Nothing answers at any of its addresses, and nothing refuses: it is off, or cut off.
    pub is_silence: bool,
}

impl From<NoConnection> for String {
    fn from(problem: NoConnection) -> Self {
        problem.reason
    }
}

impl NoConnection {
    /// For another reason than silence.
    pub fn of(reason: String) -> Self {
        Self { reason, is_silence: false }
    }
}

/// Connects to a host at one of its addresses; each may take `timeout`.
pub fn connect(
    host: Host,
    addresses: &[SocketAddr],
    secret: &Secret,
    timeout: Duration,
) -> Result<AuthenticatedStream, NoConnection> {
    let (mut problems, mut is_silence) = (Vec::new(), !addresses.is_empty());
    for address in addresses {
        match connect_to(host, address, secret, timeout) {
            Ok(stream) => return Ok(stream),
            Err(problem) => {
                is_silence &= problem.is_silence();
                problems.push(format!("{address}: {problem}"));
            }
        }
    }
    Err(NoConnection { reason: problems.join("; "), is_silence })
}

fn connect_to(
    host: Host,
    address: &SocketAddr,
    secret: &Secret,
    timeout: Duration,
) -> Result<AuthenticatedStream, AuthError> {
    let mut stream = TcpStream::connect_timeout(address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let (hello, agreement) = names(CLIENT, host.name())?;
    let sent = hello.encode();
    stream.write_all(&sent)?;
    let mut challenge = [0; CHALLENGE];
    stream.read_exact(&mut challenge)?;
    let theirs = handshake::check_challenge(secret, &hello, &challenge)?;
    stream.write_all(&handshake::proof(secret, &sent, &challenge))?;
    let mut welcome = [0; WELCOME];
    stream.read_exact(&mut welcome)?;
    match handshake::check_welcome(secret, &sent, &challenge, &welcome)? {
        Verdict::Accepted(_) => {
            let keys = agreement.agree(&theirs.nonce, secret, &sent, &challenge);
            let session = Box::new(Session::of_initiator(&agreed(keys)?));
            Ok(AuthenticatedStream { stream, session })
        }
        Verdict::Duplicate => Err(Refusal::Garbage.into()),
    }
}

/// A connection that was accepted and is not authenticated yet.
pub struct UnauthenticatedPeer {
    host: Host,
    stream: TcpStream,
    /// When its time is over.
    pub until: Instant,
    bytes: [u8; HELLO],
    got: usize,
    challenged: Option<Challenged>,
}

/// What was said before the peer has proved that it knows the secret.
struct Challenged {
    hello: [u8; HELLO],
    challenge: [u8; CHALLENGE],
    /// Its public key.
    theirs: [u8; KEY],
    agreement: KeyAgreement,
}

/// What became of it.
pub enum Progress {
    /// Undecided: more has to arrive.
    Waiting,
    /// It knows the secret: its connection is to be sealed with this.
    Authenticated(Box<Session>),
    /// It is refused, for this reason.
    Refused(String),
}

impl UnauthenticatedPeer {
    /// A client of `host`, which may take `timeout` to authenticate itself.
    pub fn new(host: Host, stream: TcpStream, timeout: Duration) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let until = Instant::now() + timeout;
        Ok(Self { host, stream, until, bytes: [0; HELLO], got: 0, challenged: None })
    }

    /// To poll.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Goes on with what has arrived.
    pub fn advance(&mut self, secret: &Secret) -> Progress {
        match self.step(secret) {
            Ok(Some(session)) => Progress::Authenticated(session),
            Ok(None) => Progress::Waiting,
            Err(error) => Progress::Refused(error.to_string()),
        }
    }

    /// The connection of a peer that is authenticated.
    pub fn into_stream(self, session: Box<Session>) -> AuthenticatedStream {
        AuthenticatedStream { stream: self.stream, session }
    }

    /// Never reads past the end of a message.
    fn read<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        while self.got < N {
            match self.stream.read(&mut self.bytes[self.got..N]) {
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "it has closed the connection",
                    ));
                }
                Ok(bytes) => self.got += bytes,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(None),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        self.got = 0;
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes[..N]);
        Ok(Some(out))
    }

    /// Messages are small: the socket's buffer has room for them, or the peer is refused.
    fn write(&mut self, message: &[u8]) -> io::Result<()> {
        self.stream.write_all(message)
    }

    fn step(&mut self, secret: &Secret) -> Result<Option<Box<Session>>, AuthError> {
        if self.challenged.is_none() {
            let Some(hello) = self.read::<HELLO>()? else { return Ok(None) };
            let theirs = Names::decode(&hello, CONTROL)?;
            if theirs.to != self.host.name() || theirs.from != CLIENT {
                return Err(Refusal::NotForMe(theirs.to).into());
            }
            let (mine, agreement) = names(self.host.name(), CLIENT)?;
            let challenge = handshake::challenge(secret, &hello, &mine);
            self.write(&challenge)?;
            let theirs = theirs.nonce;
            self.challenged = Some(Challenged { hello, challenge, theirs, agreement });
        }
        let Some(proof) = self.read::<PROOF>()? else { return Ok(None) };
        let Some(Challenged { hello, challenge, theirs, agreement }) = self.challenged.take()
        else {
            return Ok(None);
        };
        handshake::check_proof(secret, &hello, &challenge, &proof)?;
        let keys = agreed(agreement.agree(&theirs, secret, &hello, &challenge))?;
        let verdict = Verdict::Accepted(0);
        self.write(&handshake::welcome(secret, &hello, &challenge, verdict))?;
        Ok(Some(Box::new(Session::of_target(&keys))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    const TIMEOUT: Duration = Duration::from_secs(5);

    fn serve(listener: TcpListener, secret: Secret) -> Result<(), String> {
        let (stream, _) = listener.accept().unwrap();
        let mut peer = UnauthenticatedPeer::new(Host::ReplicaServer, stream, TIMEOUT).unwrap();
        loop {
            match peer.advance(&secret) {
                Progress::Waiting => thread::sleep(Duration::from_millis(1)),
                Progress::Authenticated(_) => return Ok(()),
                Progress::Refused(why) => return Err(why),
            }
        }
    }

    fn connect_both(ours: Secret, theirs: Secret) -> (Result<(), String>, Result<(), String>) {
        connect_both_as(Host::ReplicaServer, ours, theirs)
    }

    fn connect_both_as(
        host: Host,
        ours: Secret,
        theirs: Secret,
    ) -> (Result<(), String>, Result<(), String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || serve(listener, ours));
        let client = connect(host, &[address], &theirs, TIMEOUT).map(drop);
        (server.join().unwrap(), client.map_err(String::from))
    }

    #[test]
    fn a_refusal_names_its_cause() {
        let text = |refusal: Refusal| AuthError::from(refusal).to_string();
        let version = format!(
            "it runs another version of rustbtl (0x63, here {CONTROL:#x}): install the same \
             version on all nodes"
        );
        assert_eq!(text(Refusal::Version(0x63)), version);
        assert_eq!(text(Refusal::Secret), "it does not know this job's secret");
        assert_eq!(text(Refusal::Garbage), "it is not a process of this job");
    }

    #[test]
    fn only_a_client_that_knows_the_secret_is_accepted() {
        assert_eq!(connect_both([1; 32], [1; 32]), (Ok(()), Ok(())));
        let (server, client) = connect_both([1; 32], [2; 32]);
        assert!(server.is_err());
        assert!(client.unwrap_err().contains("does not know this job's secret"));
    }

    #[test]
    fn a_client_of_another_host_is_refused() {
        let (server, client) = connect_both_as(Host::Coordinator, [1; 32], [1; 32]);
        assert!(server.is_err() && client.is_err());
    }

    #[test]
    fn a_peer_that_sends_garbage_is_refused_at_its_first_message() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || serve(listener, [1; 32]));
        let mut peer = TcpStream::connect(address).unwrap();
        peer.write_all(&[b'G'; HELLO]).unwrap();
        assert!(server.join().unwrap().is_err());
        let mut answer = Vec::new();
        let _ = peer.read_to_end(&mut answer);
        assert!(answer.is_empty(), "unauthenticated peers are answered nothing");
    }
}
