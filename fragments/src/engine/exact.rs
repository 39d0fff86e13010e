//! The short ways in: the frame that comes is the very one that is expected.
//!
//! Every word of the header of the next message can be told beforehand, so that one comparison
//! stands for all checks. What is not exactly that takes the long way, on which it is looked at
//! again.

use super::state::Link;
use super::{CommId, Engine, Host, Source, TagMatch};
use crate::host::Status;
use crate::ids::PeerId;
use crate::matching::Key;
use crate::wire::{FrameType, HEADER_BYTES, Header};

impl<H: Host> Engine<H> {
    /// A call waits for a message and has not posted its receive. If this frame is the next whole
    /// message of the program from the rank that it names, and nothing else comes first, then it is
    /// received. `None`: nothing has happened; [`Self::on_frame_for`] does with the frame
    /// what is right.
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
        if !self.is_quiet() {
            return None;
        }
        let context = self.comms.get(comm.0 as usize)?.context;
        let key = Key { context, source: rank.0, tag };
        let payload = self.accept_exact(from, frame, comm.0, key, 1)?;
        Some(self.deliver(host, buffer, key, payload))
    }

    /// If this frame is the next whole message of the program for the oldest of posted receives
    /// that are alike, then that one is complete. False: nothing has happened.
    #[inline(always)]
    pub fn complete_fast_path(&mut self, host: &mut H, from: PeerId, frame: &[u8]) -> bool {
        let Some((key, comm)) = self.alike.next() else { return false };
        let Some(payload) = self.accept_exact(from, frame, comm, key, 0) else { return false };
        self.take_next(host, key, payload);
        true
    }

    /// Accept the next whole message of this envelope, if this frame is it; its payload. `posts`:
    /// so many receives of the program that were not posted are counted.
    #[inline(always)]
    fn accept_exact<'a>(
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
        let expected = Header {
            length: frame.len() as u32,
            kind: FrameType::Eager,
            flags: 0,
            context: key.context,
            source: key.source,
            tag: key.tag,
            from: peer.info.incarnation,
            to: self.incarnation,
            sequence: channel.arrived.get(key.tag),
        };
        if !expected.is_in(head) || channel.peer != from || peer.link != Link::Open {
            return None;
        }
        comm.posts += posts;
        channel.arrived.advance(key.tag);
        let bytes = payload.len() as u64;
        peer.traffic.received(bytes);
        let ingoing = peer.outgoing;
        self.counters.received(ingoing, bytes);
        Some(payload)
    }
}
