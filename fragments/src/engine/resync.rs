//! Repair of a channel to another set that was lost: by a reset connection, or because one of the
//! two processes went back to its line.
//!
//! Source: DESIGN §7.3; paper §3 (recovery). Each side tells how many messages of each stream it
//! has accepted, and which of them are open: their payload or the news of their match is still
//! missing. The other side sends what was not accepted again from its log, in order, and
//! announces the open ones again, which finds the receive or the unexpected message that waits.
//! A process that went back repeats its sends: those that the peer has are complete at once.
//!
//! Only channels between sets are repaired: messages inside a set are in no log, its processes go
//! back together and their channels are as they were at the line.

use super::queue::queued;
use super::send::Outbound;
use super::state::{Ahead, Announced, Body, Counted, Link, Origin, Progress};
use super::{Engine, FrameError, Host, PeerId, Sent};
use crate::gate::Recorded;
use crate::host::{LogEntry, PeerInfo, Status};
use crate::ids::{ContextId, Incarnation, LogRecord, SendId};
use crate::matching::Key;
use crate::streams::{LaneRun, Lanes};
use crate::wire::{FLAG_REANNOUNCE, FLAG_LAST, HEADER_BYTES, Header, Kind, StreamKey};
use std::collections::BTreeMap;

/// Bytes of one entry of a resync frame: u32 what, u32 context, i32 lane, u32 lanes, u64 number.
const ENTRY_BYTES: usize = 24;
const ARRIVED: u32 = 1;
const OPEN: u32 = 2;
/// Entries in one frame at most.
const ENTRIES_MAX: usize = 100;

fn entry(what: u32, context: u32, lane: i32, lanes: u32, number: u64) -> [u8; ENTRY_BYTES] {
    let mut out = [0; ENTRY_BYTES];
    out[0..4].copy_from_slice(&what.to_le_bytes());
    out[4..8].copy_from_slice(&context.to_le_bytes());
    out[8..12].copy_from_slice(&lane.to_le_bytes());
    out[12..16].copy_from_slice(&lanes.to_le_bytes());
    out[16..24].copy_from_slice(&number.to_le_bytes());
    out
}

/// What names a message of a channel for ever: context id, lane, number.
type Name = (u32, i32, u64);

fn name_of(context: u32, tag: i32, sequence: u64) -> Name {
    let stream = StreamKey::of(ContextId(context), tag);
    (stream.context.number(), stream.lane, sequence)
}

fn open((context, lane, sequence): Name) -> [u8; ENTRY_BYTES] {
    entry(OPEN, context, lane, 1, sequence)
}

impl Counted {
    fn accepted(&self, (context, lane, sequence): Name) -> bool {
        self.lanes.get(&context).is_some_and(|lanes| sequence < lanes.get(lane))
    }

    /// Read one frame's entries.
    fn read(&mut self, body: &[u8]) -> Result<(), FrameError> {
        if !body.len().is_multiple_of(ENTRY_BYTES) {
            return Err(FrameError::Unexpected("resync frame with half an entry"));
        }
        for raw in body.chunks_exact(ENTRY_BYTES) {
            let word =
                |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
            let (what, context, lane, lanes) = (word(0), word(4), word(8) as i32, word(12));
            let number = u64::from(word(16)) | (u64::from(word(20)) << 32);
            let span = i64::from(lane) - i64::from(lanes) + 1;
            if lane > 0 || lanes == 0 || span < i64::from(i32::MIN) || (lane == 0 && lanes > 1) {
                return Err(FrameError::Unexpected("resync entry outside of the tags"));
            }
            match what {
                ARRIVED => {
                    let run = LaneRun { lane, lanes, count: number };
                    self.lanes.entry(context).or_default().set_run(run);
                }
                OPEN => {
                    self.open.insert((context, lane, number));
                }
                _ => return Err(FrameError::Unexpected("resync entry of an unknown kind")),
            }
        }
        Ok(())
    }
}

/// What a process holds of the messages of a peer (of a line: the messages that it covers).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held(Counted);

/// First bytes of an encoded [`Held`]: name and version.
const HELD_MAGIC: [u8; 4] = *b"Hld1";

/// An encoded [`Held`] that cannot be one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceivedVectorError {
    /// It does not begin as one of this version does.
    Magic,
    /// Its length is not what it says.
    Length,
    /// An entry that makes no sense.
    Entry(&'static str),
}

impl core::fmt::Display for ReceivedVectorError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Magic => write!(f, "not an account of held messages of this version"),
            Self::Length => write!(f, "account of held messages is damaged: wrong length"),
            Self::Entry(what) => write!(f, "account of held messages is damaged: {what}"),
        }
    }
}

impl Held {
    /// Is this message of the peer's log accepted and complete? Then the log may drop it once
    /// the line is stored: a restart from the line does not ask for it again.
    pub fn covers(&self, entry: &LogEntry) -> bool {
        let name = name_of(entry.stream.context.0, entry.stream.lane, entry.sequence.0);
        self.0.accepted(name) && !self.0.open.contains(&name)
    }

    /// For the way to the peer: magic, u32 number of entries, then the entries of a resync.
    pub fn encode(&self) -> Vec<u8> {
        let mut entries = Vec::new();
        for (&context, lanes) in &self.0.lanes {
            for run in lanes.runs() {
                entries.push(entry(ARRIVED, context, run.lane, run.lanes, run.count));
            }
        }
        entries.extend(self.0.open.iter().map(|&name| open(name)));
        let mut out = Vec::with_capacity(8 + entries.len() * ENTRY_BYTES);
        out.extend_from_slice(&HELD_MAGIC);
        out.extend_from_slice(&(entries.len() as u32).to_le_bytes());
        entries.iter().for_each(|entry| out.extend_from_slice(entry));
        out
    }

    /// Read what `encode` wrote.
    ///
    /// # Errors
    /// The bytes are damaged or of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, ReceivedVectorError> {
        let Some((magic, rest)) = bytes.split_first_chunk::<4>() else {
            return Err(ReceivedVectorError::Length);
        };
        if *magic != HELD_MAGIC {
            return Err(ReceivedVectorError::Magic);
        }
        let Some((count, body)) = rest.split_first_chunk::<4>() else {
            return Err(ReceivedVectorError::Length);
        };
        let count = u64::from(u32::from_le_bytes(*count));
        if body.len() as u64 != count * ENTRY_BYTES as u64 {
            return Err(ReceivedVectorError::Length);
        }
        let mut counted = Counted::default();
        match counted.read(body) {
            Ok(()) => Ok(Self(counted)),
            Err(FrameError::Unexpected(what)) => Err(ReceivedVectorError::Entry(what)),
            Err(_) => Err(ReceivedVectorError::Entry("it cannot be read")),
        }
    }
}

impl<H: Host> Engine<H> {
    /// What this process holds of the messages of `peer`.
    pub fn received_from(&self, peer: PeerId) -> Held {
        let mut counted = Counted::default();
        for entry in self.counted_from(peer) {
            let read = counted.read(&entry);
            debug_assert!(read.is_ok(), "own entries can be read");
        }
        Held(counted)
    }

    /// The channel to `peer` is lost (connection reset, process gone); what was in flight is lost.
    /// Pulls from it that `Host::pull` had started must be over: they write no more, and
    /// `pull_finished` is not called for them.
    pub fn peer_down(&mut self, host: &mut H, id: PeerId) {
        self.ensure_peer(host, id);
        let peer = self.peer(id);
        peer.link = Link::Down;
        peer.direct = false;
        peer.queue.clear();
        peer.later.clear();
        peer.told = false;
        peer.streams.clear();
        peer.taken = 0;
        peer.ahead = None;
        *peer.resync = Counted::default();
        (peer.keeps, peer.carried) = (false, Recorded(0));
        let mut over = Vec::new();
        for (index, generation, send) in self.sends.iter_mut() {
            if send.peer == id && matches!(send.origin, Origin::Log(_)) {
                let send_id = SendId::new(index, generation);
                send.granted = false;
                send.inline = 0;
                if core::mem::take(&mut send.exposed) {
                    host.withdraw(id, send_id);
                }
                if send.token.is_none() || !send.synchronous {
                    over.push(send_id);
                }
            }
        }
        for send in over {
            // The log has it if the peer asks again: the program has not to wait for that.
            self.finish_send(host, send);
        }
        let outgoing = self.peer(id).outgoing;
        for (_, _, receive) in self.receives.iter_mut() {
            if receive.progress.is_matched() && receive.peer == id {
                self.under_way -= u32::from(!outgoing && receive.progress.is_under_way());
                receive.progress = Progress::Stale;
            }
        }
        for (_, _, message) in self.messages.iter_mut() {
            if let Some(announced) = &mut message.announced
                && message.peer == id
            {
                announced.stale = true;
            }
        }
    }

    /// Is this a process of another set, with which lost channels can be repaired?
    pub fn is_outgoing_peer(&self, peer: PeerId) -> bool {
        let peer = self.peers.get(peer.0 as usize).and_then(Option::as_ref);
        peer.is_some_and(|peer| peer.outgoing)
    }

    /// Has anything gone to or come from this process?
    pub fn knows(&self, peer: PeerId) -> bool {
        self.peers.get(peer.0 as usize).is_some_and(Option::is_some)
    }

    /// Is this the life of `peer` that its channel is to?
    pub fn is_current_incarnation(&self, peer: PeerId, incarnation: Incarnation) -> bool {
        let peer = self.peers.get(peer.0 as usize).and_then(Option::as_ref);
        peer.is_some_and(|peer| peer.info.incarnation == incarnation)
    }

    /// Is the channel to `peer` open and repaired, or was it never used?
    pub fn is_open(&self, peer: PeerId) -> bool {
        let peer = self.peers.get(peer.0 as usize).and_then(Option::as_ref);
        peer.is_none_or(|peer| peer.link == Link::Open)
    }

    /// There is a channel to `peer` again, in its `incarnation`: exchange stream counters, then
    /// repair (DESIGN §7.3). Call it before any frame that came over the new channel is handed in.
    ///
    /// It is enough that one end reports that a channel was lost: its account, the first frame on
    /// the new one, tells the other. The first channel of a pair needs no call, unless the peer
    /// runs in another incarnation than `Host::peer_info` says. Without effect on a channel of
    /// this incarnation that is not down. The size limits of the peer are asked for again.
    pub fn peer_up(&mut self, host: &mut H, id: PeerId, incarnation: Incarnation) {
        self.ensure_peer(host, id);
        let peer = self.peer(id);
        if !peer.outgoing {
            // Inside the set nothing is repaired: it goes back as a whole.
            return;
        }
        if peer.link != Link::Down && peer.info.incarnation == incarnation {
            return;
        }
        if peer.link != Link::Down {
            self.peer_down(host, id);
        }
        let info = host.peer_info(id);
        let peer = self.peer(id);
        peer.info = PeerInfo { incarnation, ..info };
        peer.link = Link::Resync;
        self.tell_account(host, id);
        self.flush(host);
    }

    /// What was accepted from the peer, as the first frames of a channel.
    pub(super) fn tell_account(&mut self, host: &mut H, id: PeerId) {
        let mine = self.incarnation;
        let incarnation = self.peer(id).info.incarnation;
        let entries = self.counted_from(id);
        let frames = entries.len().div_ceil(ENTRIES_MAX).max(1);
        for (number, part) in (1..=frames)
            .zip(entries.chunks(ENTRIES_MAX).map(<[_]>::to_vec).chain(core::iter::once(Vec::new())))
        {
            let body: Vec<u8> = part.into_iter().flatten().collect();
            let mut header = Header::control(FrameType::Resync, mine, incarnation, 0, 0);
            header.length = (HEADER_BYTES + body.len()) as u32;
            header.flags = if number == frames { FLAG_LAST } else { 0 };
            self.enqueue(host, id, queued(&header.encode(), Body::Owned(body)), 0);
        }
    }

    /// What has been accepted from a peer, and what of it is open.
    fn counted_from(&self, id: PeerId) -> Vec<[u8; ENTRY_BYTES]> {
        let mut entries = Vec::new();
        for channel in self.channels.iter().filter(|channel| channel.peer == id) {
            for run in channel.arrived.runs() {
                entries.push(entry(ARRIVED, channel.context, run.lane, run.lanes, run.count));
            }
        }
        for (_, _, receive) in self.receives.iter() {
            if receive.progress.is_matched() && receive.peer == id {
                entries.push(open(name_of(receive.key.context, receive.key.tag, receive.sequence)));
            }
        }
        for (_, _, message) in self.messages.iter() {
            if message.announced.is_some() && message.peer == id {
                entries.push(open(name_of(message.key.context, message.key.tag, message.sequence)));
            }
        }
        entries
    }

    /// Part of what the peer has accepted; with the last part the repair begins.
    pub(super) fn on_resync(
        &mut self,
        host: &mut H,
        from: PeerId,
        flags: u8,
        body: &[u8],
    ) -> Result<(), FrameError> {
        if self.peer(from).link == Link::Open {
            // The peer has lost a channel of which we saw nothing: so have we.
            let incarnation = self.peer(from).info.incarnation;
            self.peer_down(host, from);
            self.peer_up(host, from, incarnation);
        }
        let peer = self.peer(from);
        peer.resync.read(body)?;
        if flags & FLAG_LAST != 0 {
            let counted = core::mem::take(&mut *peer.resync);
            peer.link = Link::Open;
            peer.direct = !peer.listed && !peer.held;
            if self.keeps {
                self.say_that_it_keeps(host, from);
            }
            self.repair(host, from, counted);
        }
        Ok(())
    }

    fn repair(&mut self, host: &mut H, id: PeerId, mut counted: Counted) {
        // Synchronous sends that wait for news of their match keep their identity.
        let mut waiting: BTreeMap<Name, SendId> = BTreeMap::new();
        for (index, generation, send) in self.sends.iter() {
            if send.peer == id && matches!(send.origin, Origin::Log(_)) {
                let name = name_of(send.context, send.tag, send.sequence);
                waiting.insert(name, SendId::new(index, generation));
            }
        }
        let mut after = None;
        while let Some((record, entry)) = host.log_next(id, after) {
            after = Some(record);
            let name = name_of(entry.stream.context.0, entry.stream.lane, entry.sequence.0);
            let send = waiting.remove(&name);
            if counted.accepted(name) {
                self.tell_logged_content(host, record, &entry);
            }
            if !counted.accepted(name) {
                self.counters.resent_messages += 1;
                self.send_again(host, record, &entry, send, 0);
            } else if counted.open.remove(&name) {
                self.send_again(host, record, &entry, send, FLAG_REANNOUNCE);
            } else if let Some(send) = send {
                // Accepted and not open: it was matched.
                self.finish_send(host, send);
            }
        }
        for send in waiting.into_values() {
            // Trimmed from the log: a line of the peer's set covers it, so it was matched.
            self.finish_send(host, send);
        }
        counted.lanes.retain(|&context, lanes| match self.by_peer.get(&(context, id)) {
            Some(&at) => lanes.any_above(&self.channels[at as usize].sent),
            None => lanes.any_above(&Lanes::default()),
        });
        let ahead = !counted.lanes.is_empty();
        self.peer(id).ahead = ahead.then(|| Box::new(Ahead { counted }));
        self.flush(host);
    }

    /// Send a logged message (again).
    fn send_again(
        &mut self,
        host: &mut H,
        record: LogRecord,
        entry: &LogEntry,
        send: Option<SendId>,
        flags: u8,
    ) {
        // Those that are complete for the program went with the channel.
        let old = send.and_then(|id| self.sends.remove(id.index(), id.generation()));
        let message = Outbound {
            peer: entry.to,
            context: entry.stream.context.0,
            rank: entry.source.0,
            tag: entry.tag,
            sequence: entry.sequence.0,
            bytes: entry.bytes,
            origin: Origin::Log(record),
            synchronous: old.is_some(),
            token: old.and_then(|send| send.token),
        };
        let eager_max = u64::from(self.peer(entry.to).info.eager_bytes_max);
        if flags == 0 && entry.bytes <= eager_max && !message.synchronous {
            self.send_eager(host, message);
        } else {
            self.send_announced(host, message, flags);
        }
    }

    /// A send while there is no channel: it is in the log, resync will find it.
    pub(super) fn send_while_down(&mut self, message: Outbound<H::SendBuffer, H::Token>) -> Sent {
        if message.token.is_some() {
            SendOutcome::Pending(self.remember(message, 0))
        } else {
            SendOutcome::Complete
        }
    }

    /// Has the peer accepted this message before we went back to our line?
    pub(super) fn already_there(&mut self, message: &Outbound<H::SendBuffer, H::Token>) -> bool {
        let Some(ahead) = &self.peer(message.peer).ahead else { return false };
        ahead.counted.accepted(name_of(message.context, message.tag, message.sequence))
    }

    /// The peer has it: complete, or announce it again if the peer waits for its payload.
    pub(super) fn repeat_open(
        &mut self,
        host: &mut H,
        mut message: Outbound<H::SendBuffer, H::Token>,
    ) -> Sent {
        self.counters.suppressed_messages += 1;
        message.token = message.token.filter(|_| message.synchronous);
        let name = name_of(message.context, message.tag, message.sequence);
        let Self { peers, by_peer, channels, .. } = self;
        let mut open = false;
        if let Some(Some(peer)) = peers.get_mut(message.peer.0 as usize)
            && let Some(ahead) = &mut peer.ahead
        {
            open = ahead.counted.open.remove(&name);
            if let Some(&at) = by_peer.get(&(name.0, message.peer))
                && let Some(lanes) = ahead.counted.lanes.get(&name.0)
                && !lanes.any_above(&channels[at as usize].sent)
            {
                // Caught up in this context.
                ahead.counted.lanes.remove(&name.0);
            }
            if ahead.counted.lanes.is_empty() {
                peer.ahead = None;
            }
        }
        if open {
            return self.send_announced(host, message, FLAG_REANNOUNCE);
        }
        message.token = None;
        SendOutcome::Complete
    }

    /// The sender of an open message announces it again: find who waits for it.
    pub(super) fn on_announced_again(
        &mut self,
        host: &mut H,
        from: PeerId,
        header: &Header,
        announced: Announced,
        total: u64,
        inline: &[u8],
    ) -> Result<(), FrameError> {
        let name = name_of(header.context, header.tag, header.sequence);
        let same = |key: &Key, sequence: u64| name_of(key.context, key.tag, sequence) == name;
        let receive = self.receives.iter().find(|(_, _, receive)| {
            receive.progress == Progress::Stale
                && receive.peer == from
                && same(&receive.key, receive.sequence)
        });
        if let Some((slot, _, receive)) = receive {
            if receive.total != total {
                return Err(FrameError::Unexpected("announced again with another length"));
            }
            if let Some((token, status)) = self.begin(host, slot, announced, inline) {
                host.complete(token, status);
            }
            return Ok(());
        }
        let message = self.messages.iter_mut().find(|(_, _, message)| {
            message.announced.is_some_and(|announced| announced.stale)
                && message.peer == from
                && same(&message.key, message.sequence)
        });
        let Some((_, _, message)) = message else {
            return Err(FrameError::Unexpected("announced again, but not open here"));
        };
        if message.total != total {
            return Err(FrameError::Unexpected("announced again with another length"));
        }
        message.announced = Some(announced);
        message.bytes.clear();
        message.bytes.extend_from_slice(inline);
        Ok(())
    }

    /// The program's status of a cancelled operation.
    pub fn cancelled() -> Status {
        Status { cancelled: true, ..Status::default() }
    }
}
