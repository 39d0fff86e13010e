//! The handshake of `rustbtl_coordination::handshake` between agents and the coordinator, and among
//! agents: nothing is parsed before both ends have proved that they know the job's secret.

use rustbtl_coordination::handshake::{
    self, CHALLENGE, CLIENT, CONTROL, HELLO, Names, PROOF, Refusal, Verdict, WELCOME,
};
use rustbtl_fragments::ids::PeerId;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::os;

/// A job's secret.
pub type Secret = [u8; 32];

/// Who is connected to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Host {
    /// The job's coordinator.
    Coordinator,
    /// An agent that takes copies of images.
    Shelf,
    /// A node without ranks, which takes those of lost ones.
    Spare,
}

impl Host {
    /// Its name in handshakes.
    const fn name(self) -> PeerId {
        match self {
            Self::Coordinator => handshake::COORDINATOR,
            Self::Shelf => PeerId(0xFFFF_FFFC),
            Self::Spare => PeerId(0xFFFF_FFFB),
        }
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub enum ProofError {
    /// A system call failed, or took too long.
    Io(io::Error),
    /// The other end is not what it should be.
    Refused(Refusal),
}

impl fmt::Display for ProofError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Refused(Refusal::Version(theirs)) => write!(
                f,
                "it runs another version of rustbtl ({theirs:#x}, here {CONTROL:#x}): \
                 install the same version on all nodes"
            ),
            Self::Refused(Refusal::Secret) => f.write_str("it does not know this job's secret"),
            Self::Refused(_) => f.write_str("it is not a process of this job"),
        }
    }
}

impl std::error::Error for ProofError {}

impl From<io::Error> for ProofError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Refusal> for ProofError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

fn names(from: PeerId, to: PeerId) -> io::Result<Names> {
    let (version, nonce) = (CONTROL, os::random()?);
    Ok(Names { version, from, to, incarnation: 0, generation: 0, nonce })
}

/// Connect to a host at one of its addresses; each may take `patience`.
pub fn connect(
    host: Host,
    addresses: &[SocketAddr],
    secret: &Secret,
    patience: Duration,
) -> Result<TcpStream, String> {
    let mut problems = Vec::new();
    for address in addresses {
        match connect_to(host, address, secret, patience) {
            Ok(stream) => return Ok(stream),
            Err(problem) => problems.push(format!("{address}: {problem}")),
        }
    }
    Err(problems.join("; "))
}

fn connect_to(
    host: Host,
    address: &SocketAddr,
    secret: &Secret,
    patience: Duration,
) -> Result<TcpStream, ProofError> {
    let mut stream = TcpStream::connect_timeout(address, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let hello = names(CLIENT, host.name())?;
    let sent = hello.encode();
    stream.write_all(&sent)?;
    let mut challenge = [0; CHALLENGE];
    stream.read_exact(&mut challenge)?;
    handshake::check_challenge(secret, &hello, &challenge)?;
    stream.write_all(&handshake::proof(secret, &sent, &challenge))?;
    let mut welcome = [0; WELCOME];
    stream.read_exact(&mut welcome)?;
    match handshake::check_welcome(secret, &sent, &challenge, &welcome)? {
        Verdict::Accepted(_) => Ok(stream),
        Verdict::Duplicate => Err(Refusal::Garbage.into()),
    }
}

/// A connection that was accepted and has proved nothing yet.
pub struct Stranger {
    host: Host,
    stream: TcpStream,
    /// When its time is over.
    pub until: Instant,
    bytes: [u8; HELLO],
    got: usize,
    asked: Option<([u8; HELLO], [u8; CHALLENGE])>,
}

/// What became of it.
pub enum Progress {
    /// Undecided: it stays a stranger.
    Waiting,
    /// It knows the secret: [`Stranger::into_stream`].
    Proved,
    /// It was sent away.
    Refused(String),
}

impl Stranger {
    /// One that has `patience` to prove itself to us, who are this host.
    pub fn new(host: Host, stream: TcpStream, patience: Duration) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let until = Instant::now() + patience;
        Ok(Self { host, stream, until, bytes: [0; HELLO], got: 0, asked: None })
    }

    /// To poll.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Go on with what has arrived.
    pub fn drive(&mut self, secret: &Secret) -> Progress {
        match self.go_on(secret) {
            Ok(true) => Progress::Proved,
            Ok(false) => Progress::Waiting,
            Err(error) => Progress::Refused(error.to_string()),
        }
    }

    /// The connection of one that has proved itself.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Never reads past the end of a message.
    fn read<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        while self.got < N {
            match self.stream.read(&mut self.bytes[self.got..N]) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has gone")),
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

    /// Messages are small: they fit into the socket of somebody who has sent us one, or else.
    fn write(&mut self, message: &[u8]) -> io::Result<()> {
        self.stream.write_all(message)
    }

    fn go_on(&mut self, secret: &Secret) -> Result<bool, ProofError> {
        if self.asked.is_none() {
            let Some(hello) = self.read::<HELLO>()? else { return Ok(false) };
            let theirs = Names::decode(&hello, CONTROL)?;
            if theirs.to != self.host.name() || theirs.from != CLIENT {
                return Err(Refusal::NotForMe(theirs.to).into());
            }
            let mine = names(self.host.name(), CLIENT)?;
            let challenge = handshake::challenge(secret, &hello, &mine);
            self.write(&challenge)?;
            self.asked = Some((hello, challenge));
        }
        let Some((hello, challenge)) = self.asked else { return Ok(false) };
        let Some(proof) = self.read::<PROOF>()? else { return Ok(false) };
        handshake::check_proof(secret, &hello, &challenge, &proof)?;
        let verdict = Verdict::Accepted(0);
        self.write(&handshake::welcome(secret, &hello, &challenge, verdict))?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn serve(listener: TcpListener, secret: Secret) -> Result<(), String> {
        let (stream, _) = listener.accept().unwrap();
        let mut stranger = Stranger::new(Host::Shelf, stream, PATIENCE).unwrap();
        loop {
            match stranger.drive(&secret) {
                Progress::Waiting => thread::sleep(Duration::from_millis(1)),
                Progress::Proved => return Ok(()),
                Progress::Refused(why) => return Err(why),
            }
        }
    }

    fn meet(ours: Secret, theirs: Secret) -> (Result<(), String>, Result<(), String>) {
        meet_as(Host::Shelf, ours, theirs)
    }

    fn meet_as(
        host: Host,
        ours: Secret,
        theirs: Secret,
    ) -> (Result<(), String>, Result<(), String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || serve(listener, ours));
        let client = connect(host, &[address], &theirs, PATIENCE).map(drop);
        (server.join().unwrap(), client)
    }

    #[test]
    fn who_knows_the_secret_gets_in_and_nobody_else() {
        assert_eq!(meet([1; 32], [1; 32]), (Ok(()), Ok(())));
        let (server, client) = meet([1; 32], [2; 32]);
        assert!(server.is_err());
        assert!(client.unwrap_err().contains("does not know this job's secret"));
    }

    #[test]
    fn who_has_come_to_the_wrong_host_is_sent_away() {
        let (server, client) = meet_as(Host::Coordinator, [1; 32], [1; 32]);
        assert!(server.is_err() && client.is_err());
    }

    #[test]
    fn a_stranger_is_sent_away_at_its_first_message() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || serve(listener, [1; 32]));
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(&[b'G'; HELLO]).unwrap();
        assert!(server.join().unwrap().is_err());
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty(), "strangers get nothing");
    }
}
