//! Long payloads that a transport reads straight to where they belong.

use super::state::{Link, Progress};
use super::{Engine, Host};
use crate::ids::{PeerId, ReceiveId};
use crate::wire::{FrameType, HEADER_BYTES, Header};

impl<H: Host> Engine<H> {
    /// The header of a frame from `from` is here: the buffer that its payload goes into, and the
    /// offset in it. Until the transport has said [`Self::on_directly_placed`], or has lost the channel, it
    /// may write there: the receive cannot end before this payload has come. `None`: the frame is
    /// to be handed in as a whole.
    pub fn place(
        &self,
        host: &H,
        from: PeerId,
        head: &[u8; HEADER_BYTES],
    ) -> Option<(&H::ReceiveBuffer, u64)> {
        let header = Header::decode_alone(head).ok()?;
        let bytes = u64::from(header.length).checked_sub(HEADER_BYTES as u64)?;
        if header.kind != FrameType::Data {
            return None;
        }
        let id = ReceiveId(header.a());
        let receive = self.receives.get(id.index(), id.generation())?;
        let Progress::Pushed { left } = receive.progress else { return None };
        if receive.peer != from || bytes > left {
            return None;
        }
        let peer = self.peers.get(from.0 as usize)?.as_ref()?;
        if header.from != peer.info.incarnation
            || header.to != self.incarnation
            || peer.link != Link::Open
        {
            return None;
        }
        let end = header.b().checked_add(bytes)?;
        let fits = end <= receive.total && end <= host.capacity(&receive.buffer);
        fits.then_some((&receive.buffer, header.b()))
    }

    /// The payload of this frame is where [`Self::place`] said.
    pub fn on_directly_placed(&mut self, host: &mut H, from: PeerId, head: &[u8; HEADER_BYTES]) {
        let Ok(header) = Header::decode_alone(head) else { return };
        if self.place(host, from, head).is_none() {
            // It was right when the header came: the peer has gone to another life since.
            self.counters.stale_frames += 1;
            return;
        }
        let bytes = u64::from(header.length) - HEADER_BYTES as u64;
        let id = ReceiveId(header.a());
        let Some(receive) = self.receives.get_mut(id.index(), id.generation()) else { return };
        let Progress::Pushed { left } = receive.progress else { return };
        receive.progress = Progress::Pushed { left: left - bytes };
        if left == bytes {
            let (token, status) = self.end_receive(host, id.index());
            host.complete(token, status);
        }
    }
}
