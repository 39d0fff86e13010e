//! Transports: how frames get from one process to another.
//!
//! A transport moves whole frames, in order for each pair of processes, exactly once, while its
//! channel is up. It knows nothing of matching. One conformance suite (tests/conformance) runs
//! for each.

pub mod inproc;
pub mod set_memory;
pub mod shm;
pub mod tcp;
pub mod verbs;

use core::ops::Range;
use core::ptr::NonNull;
use rustbtl_fragments::ids::PeerId;
use rustbtl_fragments::wire::HEADER_BYTES;
use std::os::fd::RawFd;

/// Sizes that a transport asks the engine to keep to, in payload bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest payload of an eager fragment.
    pub eager_bytes_max: u32,
    /// Largest payload of a rendezvous data frame.
    pub chunk_bytes_max: u32,
}

/// Payload of an outgoing frame.
pub enum Payload<'a> {
    /// Contiguous bytes; they stay where they are until the frame is accepted.
    Bytes(&'a [u8]),
    /// This many bytes, written by the closure straight into the transport's memory. The closure
    /// is called at most once per offer, with room for exactly these bytes.
    Pack(usize, &'a mut dyn FnMut(*mut u8, usize)),
}

impl Payload<'_> {
    /// Bytes of payload.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Pack(len, _) => *len,
        }
    }

    /// No payload at all?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What became of an offered frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// All of it is accepted.
    Accepted,
    /// `0`: no room, nothing was taken. `n > 0`: the first n bytes (header + payload) are taken
    /// for good; the same frame must be offered again with `taken = n` before any other to that
    /// peer. A transport that cannot remember a half-packed payload takes all or nothing of
    /// `Payload::Pack`.
    Full(usize),
    /// No channel (see [`Event::Down`]).
    Down,
}

/// A frame that has arrived. It stays where it is until [`Transport::consume`].
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Who sent it.
    pub from: PeerId,
    /// Its first byte (of no particular alignment).
    pub start: *const u8,
    /// Bytes of the whole frame.
    pub len: usize,
}

/// Something happened to a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The channel to this peer is open (again), the peer runs in this incarnation.
    Up(PeerId, u16),
    /// The channel is lost. `said_goodbye`: the peer closed it in MPI_Finalize.
    Down {
        /// To whom.
        peer: PeerId,
        /// It had finished; nothing is wrong.
        said_goodbye: bool,
        /// What was seen, for the message to the user (address, errno text).
        reason: String,
    },
    /// Something that the user should know and that needs no action (an unauthenticated peer was
    /// refused).
    Notice(String),
}

/// Outcome of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// The bytes are there.
    Done,
    /// This transport, or this peer, or the kernel does not permit it.
    Refused,
    /// Started; [`Transport::pulled`] tells the end.
    Started,
}

/// A way for frames between this process and others.
pub trait Transport {
    /// Short name for reports: "shm", "tcp".
    fn name(&self) -> &'static str;

    /// Its limits.
    fn limits(&self) -> Limits;

    /// Offer a frame: `header` and payload (see [`Sent`]). `taken`: bytes of this frame that were
    /// accepted by earlier offers.
    fn send(&mut self, to: PeerId, header: &[u8], payload: Payload<'_>, taken: usize) -> Sent;

    /// The next frame, if one has arrived; peers are served in turn. The same frame is returned
    /// until it is consumed. Must be cheap when nothing is there.
    fn peek(&mut self) -> Option<Incoming>;

    /// The frame that `peek` returned last is done with; its memory may be reused.
    fn consume(&mut self, incoming: Incoming);

    /// The next change of a channel, if any.
    fn event(&mut self) -> Option<Event>;

    /// Push out what was accepted and is still held here. True: nothing is held.
    fn flush(&mut self) -> bool;

    /// Offer these bytes for [`Transport::pull`] under an id of the sender's choice (the low 32
    /// bits are small and dense: they index a table). The peer knows of it when the next frame to
    /// it arrives. `home`: memory around it of which more will be offered; it stays mapped until
    /// [`Network::forget_memory`]. False: not possible, the engine pushes.
    ///
    /// # Safety
    /// The bytes stay readable and unchanged until `withdraw`.
    unsafe fn expose(
        &mut self,
        to: PeerId,
        id: u64,
        bytes: Range<usize>,
        home: Option<Range<usize>>,
    ) -> bool {
        let _ = (to, id, bytes, home);
        false
    }

    /// The memory under this id is no longer on offer: its pulls are over, or the channel has been
    /// down since.
    fn withdraw(&mut self, to: PeerId, id: u64) {
        let _ = (to, id);
    }

    /// Fetch `len` bytes from `offset` of what `from` exposed under `id`.
    ///
    /// # Safety
    /// `into` is writable for `len` bytes until the pull is over, or the channel is down.
    unsafe fn pull(
        &mut self,
        from: PeerId,
        id: u64,
        offset: usize,
        into: *mut u8,
        len: usize,
    ) -> Pulled {
        let _ = (from, id, offset, into, len);
        Pulled::Refused
    }

    /// A pull that was started is over, and its bytes are there: from whom, which id. Those of a
    /// channel that is down are over without a word.
    fn pulled(&mut self) -> Option<(PeerId, u64)> {
        None
    }

    /// Say goodbye to every peer and close (MPI_Finalize). Call until it returns true.
    fn close(&mut self) -> bool;
}

/// Sender, and the header of the frame.
pub type PeerHeader = (PeerId, [u8; HEADER_BYTES]);

/// Outcome of [`Network::open`].
pub enum Opened<N> {
    /// It is open.
    Here(N),
    /// This node has no such network, or is not to use it: why, for reports.
    Absent(String),
    /// The job was to use it, but this process was restored where it cannot be had: it goes on
    /// without it, and the user is told why.
    Gone(String),
}

/// What `engine/transport_set.rs` asks of a transport between nodes in addition. What a transport
/// has no use for is already here.
pub trait Network: Transport + Sized {
    /// The name in endpoints and reports, and the topic of its messages in the help file.
    const NAME: &'static str;
    /// Does [`Transport::pull`] work? Then payloads on offer have to be where they are offered.
    const PULLS: bool = false;
    /// The parameters that it is opened with.
    type Config;

    /// Open it for this incarnation of the process.
    ///
    /// # Errors
    /// Why it cannot be opened, for the user.
    fn open(config: &Self::Config, incarnation: u16) -> Result<Opened<Self>, String>;

    /// What was chosen, for reports.
    fn description(&self) -> String {
        Self::NAME.to_owned()
    }

    /// What peers need to connect to this process, as it is published.
    fn address(&self) -> Vec<u8>;

    /// How a peer is reached. Nothing is sent or connected by this.
    ///
    /// # Errors
    /// The address cannot be read; the text is for the user.
    fn add_peer(&mut self, peer: PeerId, address: &[u8]) -> Result<(), String>;

    /// The peer was restarted: a channel to its earlier incarnation is closed without an event.
    fn renew_peer(&mut self, peer: PeerId, address: &[u8]);

    /// After [`Event::Down`]: try again. [`Event::Up`] or another `Down` follows.
    fn reconnect(&mut self, peer: PeerId) {
        let _ = peer;
    }

    /// Nobody is reached by it, and nobody is about to be: it may be looked at seldom.
    fn is_unused(&self) -> bool {
        false
    }

    /// Is anything accepted and not yet written?
    fn holds(&self) -> bool;

    /// Have bytes come since the last call, if only a part of a frame?
    fn take_received(&mut self) -> bool {
        false
    }

    /// Descriptor to sleep on while nothing is held and nothing is offered: readable when a poll
    /// may bring something. `None`: not now.
    fn wait_descriptor(&self) -> Option<RawFd>;

    /// Every open descriptor: none of them is part of an image.
    fn descriptors(&self) -> Vec<RawFd>;

    /// Memory that is not part of an image (registered with a network card, or mapped from it).
    fn memory(&self) -> Vec<Range<usize>> {
        Vec::new()
    }

    /// This memory, in which payloads were exposed, is given back to the system.
    fn forget_memory(&mut self, memory: &Range<usize>) {
        let _ = memory;
    }

    /// The process is about to be copied for a snapshot.
    fn before_freeze(&mut self) {}

    /// A frame whose header is here and most of its payload is not. [`Network::place`] is to be
    /// called next.
    fn unplaced(&mut self) -> Option<PeerHeader> {
        None
    }

    /// The payload of the frame that [`Network::unplaced`] has named goes to `into`, and
    /// [`Network::placed`] says when it is there. `None`: it comes as a frame.
    ///
    /// # Safety
    /// `into` is writable for all of the payload, and nobody else touches it, until then or until
    /// the channel is down.
    unsafe fn place(&mut self, into: Option<NonNull<u8>>) {
        let _ = into;
    }

    /// A frame whose payload is in its place.
    fn placed(&mut self) -> Option<PeerHeader> {
        None
    }
}

/// A network that another transport runs beside: it authenticates, notices dead peers, and carries
/// everything while the other one does not.
pub trait Carrier: Network {
    /// End the channel to this peer; [`Event::Down`] follows.
    fn disconnect(&mut self, peer: PeerId, reason: String);

    /// Is the channel to this peer open?
    fn is_up(&self, peer: PeerId) -> bool;
}
