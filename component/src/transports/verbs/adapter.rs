//! One port of an open adapter, and what all channels share of it: completion queues, the shared
//! receive queue, registered memory, and queue pairs that are over.

use crate::transports::verbs::api::*;
use crate::transports::verbs::buffers::Buffers;
use crate::transports::verbs::control::PortAddress;
use crate::transports::verbs::registrations::Registrations;
use std::collections::VecDeque;

/// Work requests of one queue pair that are not known to be complete.
pub(super) const SENDS_OF_CHANNEL: usize = 128;
/// A completion is asked for with every so many of them; more often while buffers are short.
pub(super) const SIGNAL_EVERY: u32 = 16;
/// Slow rounds without news after which a queue pair is destroyed though its last receive was not
/// reported: not every adapter does that.
const LAST_RECEIVE_ROUNDS: u32 = 10_000;
/// How long a queue pair waits for acknowledgements: 4.096 us times two to the power of the first,
/// and the second, so many times.
pub(super) type Patience = (u8, u8);
/// 67 ms, 7 times: then the channel is lost.
pub(super) const PATIENCE: Patience = (14, 7);

/// Sizes of what all channels share.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of a slot: the longest frame.
    pub slot_bytes: usize,
    /// Slots of the shared receive queue.
    pub receives: u16,
    /// Slots for sending.
    pub sends: u16,
    /// Messages that a peer may send before any is consumed.
    pub grant: u16,
    /// Payload that is to be taken at the call.
    pub inline_bytes: u32,
    /// Payloads of so many bytes are read by the peer from where they lie; 0: never.
    pub read_bytes_min: usize,
    /// Bounce buffers for what is read.
    pub bounce_buffers: u16,
    /// Bytes of one of them.
    pub bounce_bytes: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            slot_bytes: 8 << 10,
            receives: 512,
            sends: 256,
            grant: 64,
            inline_bytes: 220,
            read_bytes_min: 32 << 10,
            bounce_buffers: 16,
            bounce_bytes: 128 << 10,
        }
    }
}

/// Which port to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Name of the adapter.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// Of its GID.
    pub gid_index: u8,
    /// Where that is.
    pub address: PortAddress,
}

/// A queue pair that has no channel any more, but may still own buffers.
struct Finished<Q> {
    qp: Q,
    number: u32,
    outstanding: Outstanding,
    rounds: u32,
    last_receive: bool,
}

/// Work requests of a queue pair that are not known to be complete, in their order.
#[derive(Debug)]
pub(super) struct Outstanding {
    /// Of each: its slot, or `NO_SLOT`.
    slots: VecDeque<u16>,
    /// Id of the first of them.
    first: u64,
}

impl Outstanding {
    pub(super) fn new() -> Self {
        Self { slots: VecDeque::with_capacity(SENDS_OF_CHANNEL), first: 0 }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Id of the next work request.
    #[inline]
    pub(super) fn next_id(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    #[inline]
    pub(super) fn push(&mut self, slot: u16) {
        self.slots.push_back(slot);
    }

    /// Everything up to this id is complete: how many. Their slots are free, but for bounce
    /// buffers, which are `bounced`.
    #[inline]
    pub(super) fn complete(
        &mut self,
        id: u64,
        buffers: &mut Buffers,
        bounced: &mut Vec<u16>,
    ) -> usize {
        let mut done = 0;
        while self.first <= id
            && let Some(slot) = self.slots.pop_front()
        {
            if buffers.is_bounce_buffer(slot) {
                bounced.push(slot);
            } else {
                buffers.give_back(slot);
            }
            self.first += 1;
            done += 1;
        }
        done
    }
}

/// See the module's documentation.
pub(super) struct Adapter<V: Verbs> {
    pub(super) verbs: V,
    pub(super) device: V::Device,
    pub(super) choice: Choice,
    pub(super) sizes: Sizes,
    pub(super) buffers: Buffers,
    region: V::Region,
    pub(super) lkey: u32,
    /// Memory that peers read.
    pub(super) registrations: Registrations<V>,
    send_cq: V::Cq,
    receive_cq: V::Cq,
    srq: V::Srq,
    /// Work requests of all queue pairs that are not known to be complete: all of them may end in
    /// the completion queue.
    pub(super) in_flight: usize,
    /// Work requests that it takes.
    pub(super) in_flight_max: usize,
    finished: Vec<Finished<V::Qp>>,
    /// The port works.
    pub(super) is_healthy: bool,
    is_open: bool,
}

impl<V: Verbs> Adapter<V> {
    /// Open the chosen port, make the queues and post all receives.
    ///
    /// # Errors
    /// As the library says; everything that was made is gone again.
    pub(super) fn open(verbs: V, choice: Choice, sizes: Sizes) -> Result<Self, VerbsError> {
        let memory = |error: crate::os::OsError| VerbsError::call("mmap", error.on, error.code);
        let buffers = Buffers::new(&sizes).map_err(memory)?;
        let device = verbs.open(&choice.device)?;
        // Work requests without a slot (inline, empty) count, too.
        let in_flight_max = 4 * usize::from(sizes.sends);
        let made = (|| {
            let (start, len) = (buffers.start(), buffers.range().len());
            // SAFETY: the mapping lives as long as the adapter, which deregisters it.
            let region = unsafe { verbs.register(device, start, len, LOCAL_WRITE) }?;
            let undo = |error| {
                verbs.deregister(region);
                error
            };
            let send_cq = verbs.create_cq(device, in_flight_max as u32).map_err(undo)?;
            let undo = |error| {
                verbs.destroy_cq(send_cq);
                undo(error)
            };
            let receives = u32::from(sizes.receives);
            let receive_cq = verbs.create_cq(device, receives).map_err(undo)?;
            let undo = |error| {
                verbs.destroy_cq(receive_cq);
                undo(error)
            };
            let srq = verbs.create_srq(device, receives).map_err(undo)?;
            Ok((region, send_cq, receive_cq, srq))
        })();
        let (region, send_cq, receive_cq, srq) = made.inspect_err(|_| verbs.close(device))?;
        let lkey = verbs.keys(region).0;
        let mut adapter = Self {
            verbs,
            device,
            choice,
            sizes,
            buffers,
            region,
            lkey,
            registrations: Registrations::default(),
            send_cq,
            receive_cq,
            srq,
            in_flight: 0,
            in_flight_max,
            finished: Vec::new(),
            is_healthy: true,
            is_open: true,
        };
        for slot in 0..sizes.receives {
            adapter.post_receive(slot).map_err(|code| {
                VerbsError::call("ibv_post_srq_recv", adapter.choice.device.clone(), code)
            })?;
        }
        Ok(adapter)
    }

    /// The slot is the adapter's.
    #[inline]
    pub(super) fn post_receive(&mut self, slot: u16) -> Result<(), i32> {
        let start = self.buffers.slot(slot) as u64;
        let piece = Piece { start, len: self.sizes.slot_bytes as u32, lkey: self.lkey };
        let work = ReceiveWork { id: u64::from(slot), piece };
        // SAFETY: nobody has the slot until it comes back with a completion.
        unsafe { self.verbs.post_receives(self.srq, &[work]) }
    }

    /// Completions of sends; none after the end.
    #[inline]
    pub(super) fn poll_sends(&self, into: &mut [Completion]) -> Result<usize, i32> {
        if self.is_open { self.verbs.poll(self.send_cq, into) } else { Ok(0) }
    }

    /// Completions of receives; none after the end.
    #[inline]
    pub(super) fn poll_receives(&self, into: &mut [Completion]) -> Result<usize, i32> {
        if self.is_open { self.verbs.poll(self.receive_cq, into) } else { Ok(0) }
    }

    /// A queue pair in state INIT: itself, its number, what it takes inline.
    ///
    /// # Errors
    /// As the library says; nothing is left of it.
    pub(super) fn create_qp(&self) -> Result<(V::Qp, u32, u32), VerbsError> {
        let sizes =
            QpSizes { sends: SENDS_OF_CHANNEL as u32, inline_bytes: self.sizes.inline_bytes };
        let queues = (self.send_cq, self.receive_cq);
        let (qp, inline_bytes) = self.verbs.create_qp(self.device, queues, self.srq, sizes)?;
        // Readable is what is registered for that, by its key.
        let init = Transition::Init { port: self.choice.port, access: REMOTE_READ };
        if let Err(error) = self.verbs.modify(qp, init) {
            self.verbs.destroy_qp(qp);
            return Err(error);
        }
        Ok((qp, self.verbs.qp_number(qp), inline_bytes))
    }

    /// Connect a queue pair in state INIT to the peer's.
    ///
    /// # Errors
    /// As the library says.
    pub(super) fn connect(
        &self,
        qp: V::Qp,
        own_psn: u32,
        (number, psn): (u32, u32),
        to: &PortAddress,
        (timeout, retries): Patience,
    ) -> Result<(), VerbsError> {
        let own = &self.choice;
        let is_global = own.address.link_layer == LinkLayer::Ethernet;
        let destination = Destination {
            qp: number,
            psn,
            mtu: own.address.mtu.min(to.mtu),
            lid: to.lid,
            gid: is_global.then_some(to.gid),
            port: own.port,
            gid_index: own.gid_index,
            reads: own.address.reads,
        };
        self.verbs.modify(qp, Transition::ReadyToReceive(destination))?;
        self.verbs.modify(
            qp,
            Transition::ReadyToSend {
                psn: own_psn,
                timeout,
                retries,
                rnr_retries: RNR_RETRY_FOR_EVER,
                reads: own.address.reads.min(to.reads),
            },
        )
    }

    /// A queue pair has no channel any more. It is destroyed when nothing of ours belongs to it.
    pub(super) fn finish(&mut self, qp: V::Qp, number: u32, outstanding: Outstanding) {
        // Whatever that says, the queue pair is destroyed later.
        let _ = self.verbs.modify(qp, Transition::Error);
        if !self.is_open {
            return;
        }
        self.finished.push(Finished { qp, number, outstanding, rounds: 0, last_receive: false });
    }

    /// A send of a queue pair that has no channel any more is over.
    pub(super) fn complete_finished(&mut self, number: u32, id: u64) {
        let of = self.finished.iter_mut().find(|finished| finished.number == number);
        if let Some(finished) = of {
            let mut bounced = Vec::new();
            let done = finished.outstanding.complete(id, &mut self.buffers, &mut bounced);
            self.in_flight -= done;
            // Nobody waits for what was read.
            bounced.into_iter().for_each(|slot| self.buffers.give_back(slot));
        }
    }

    /// Are there queue pairs without a channel?
    #[inline]
    pub(super) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Which of them may be destroyed now: nothing is posted, and nothing more is received. The
    /// receive queue has to be polled until it is empty before [`Self::destroy_finished`].
    pub(super) fn look_at_finished(&mut self) -> bool {
        for finished in &mut self.finished {
            finished.rounds += 1;
        }
        self.finished.iter().any(Finished::is_over)
    }

    /// See [`Self::look_at_finished`].
    pub(super) fn destroy_finished(&mut self) {
        let verbs = &self.verbs;
        self.finished.retain(|finished| {
            let is_over = finished.is_over();
            if is_over {
                verbs.destroy_qp(finished.qp);
            }
            !is_over
        });
    }

    /// What happened to the adapter; news of queue pairs without a channel stay here. A system
    /// call.
    pub(super) fn event(&mut self) -> Option<AsyncEvent> {
        while self.is_open {
            match self.verbs.async_event(self.device)? {
                AsyncEvent::LastReceive(number) => {
                    for finished in self.finished.iter_mut().filter(|of| of.number == number) {
                        finished.last_receive = true;
                    }
                }
                event => return Some(event),
            }
        }
        None
    }

    /// The port, as it is now.
    pub(super) fn port(&self) -> Result<Port, VerbsError> {
        self.verbs.port(self.device, self.choice.port)
    }

    /// Destroy everything. `queues`: those that have a channel.
    pub(super) fn destroy(&mut self, queues: impl Iterator<Item = V::Qp>) {
        if !core::mem::take(&mut self.is_open) {
            return;
        }
        let finished = self.finished.drain(..).map(|finished| finished.qp);
        for qp in queues.chain(finished) {
            self.verbs.destroy_qp(qp);
        }
        self.verbs.destroy_srq(self.srq);
        self.verbs.destroy_cq(self.send_cq);
        self.verbs.destroy_cq(self.receive_cq);
        self.verbs.deregister(self.region);
        self.registrations.clear(&self.verbs);
        self.verbs.close(self.device);
    }

    /// Descriptors, which are in no image.
    pub(super) fn descriptors(&self) -> Vec<std::os::fd::RawFd> {
        if self.is_open { self.verbs.descriptors(self.device) } else { Vec::new() }
    }
}

impl<Q> Finished<Q> {
    fn is_over(&self) -> bool {
        let all_received = self.last_receive || self.rounds > LAST_RECEIVE_ROUNDS;
        self.outstanding.len() == 0 && all_received
    }
}
