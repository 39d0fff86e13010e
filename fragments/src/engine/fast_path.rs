//! The fast path of receiving: the frame that arrives is the expected next message.
//!
//! Every word of the header of the next message is known beforehand, so one comparison replaces all
//! checks. Any other frame takes the slow path (`arrive.rs`), which decodes and checks it.

use super::state::LinkState;
use super::{CommId, Engine, Host, Source, TagMatch};
use crate::host::Status;
use crate::ids::PeerId;
use crate::matching::Key;
use crate::payload_digest::PayloadDigest;
use crate::wire::{FrameType, HEADER_BYTES, Header};

impl<H: Host> Engine<H> {
    /// A call waits for a message and has not posted its receive. If this frame is the next whole
    /// message of the program from the rank that the call names, and nothing comes before it in
    /// matching, it is received. `None`: nothing has changed; call [`Self::on_frame_for`].
    #[inline(always)]
    pub fn receive_fast_path(
        &mut self,
        host: &mut H,
        from: PeerId,
        frame: &[u8],
        (comm, source, tag): (CommId, Source, TagMatch),
        buffer: &mut H::ReceiveBuffer,
    ) -> Option<Status> {
        debug_assert!(self.replay.is_none(), "P3: a receive is posted");
        let (Source::Rank(rank), TagMatch::Is(tag)) = (source, tag) else { return None };
        if !self.is_matching_idle() {
            return None;
        }
        let context = self.comms.get(comm.0 as usize)?.context;
        let key = Key { context, source: rank.0, tag };
        let payload = self.accept_fast_path(from, frame, comm.0, key, 1)?;
        Some(self.deliver(host, buffer, key, payload))
    }

    /// If this frame is the next whole message of the program for the oldest posted uniform
    /// receive, that receive is complete. False: nothing has changed.
    #[inline(always)]
    pub fn complete_fast_path(&mut self, host: &mut H, from: PeerId, frame: &[u8]) -> bool {
        let Some((key, comm)) = self.fifo.next() else { return false };
        let Some(payload) = self.accept_fast_path(from, frame, comm, key, 0) else { return false };
        self.complete_oldest(host, key, payload);
        true
    }

    /// Accept this frame if it is the next whole message of this envelope; gives its payload.
    /// `posts`: how many receives of the program that were not posted are counted.
    #[inline(always)]
    fn accept_fast_path<'a>(
        &mut self,
        from: PeerId,
        frame: &'a [u8],
        comm: u32,
        key: Key,
        posts: u64,
    ) -> Option<&'a [u8]> {
        let (head, payload) = frame.split_first_chunk::<HEADER_BYTES>()?;
        let comm = self.comms.get_mut(comm as usize)?;
        let &at = comm.channels.get(key.source as usize)?;
        // No channel yet: NONE is past the end of the list.
        let channel = self.channels.get_mut(at as usize)?;
        let Some(Some(peer)) = self.peers.get_mut(from.0 as usize) else { return None };
        if key.tag < 0 || comm.context != key.context {
            return None;
        }
        // Digests differ; inside a set there are none.
        let digest = match channel.contents {
            Some(_) => Header::digest_in(head),
            None => PayloadDigest::NONE,
        };
        let number = channel.arrived.get(key.tag);
        let expected = Header {
            length: frame.len() as u32,
            kind: FrameType::Eager,
            flags: 0,
            context: key.context,
            source: key.source,
            tag: key.tag,
            from: peer.info.incarnation,
            to: self.incarnation,
            sequence: number,
            digest,
        };
        if !expected.is_encoded_in(head) || channel.peer != from || peer.link != LinkState::Open {
            return None;
        }
        comm.posts += posts;
        channel.arrived.advance(key.tag);
        if let Some(contents) = &mut channel.contents {
            contents.accept(digest, key.tag, number);
        }
        let bytes = payload.len() as u64;
        peer.traffic.received(bytes);
        let ingoing = peer.outgoing;
        self.counters.received(ingoing, bytes);
        Some(payload)
    }
}
