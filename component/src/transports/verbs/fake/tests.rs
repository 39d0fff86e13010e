//! The world does what its documentation says, its errors and panics above all.

use super::*;
use crate::transports::verbs::api::*;

/// One end of a connection: queues, a queue pair, a registered buffer.
struct End {
    verbs: Fake,
    device: Handle,
    sends: Handle,
    receives: Handle,
    srq: Handle,
    qp: Handle,
    region: Handle,
    memory: Vec<u8>,
}

const BUFFER: usize = 256;

impl End {
    fn new(world: &World, node: usize, entries: u32) -> Self {
        let verbs = world.node(node);
        let device = verbs.open("fake0").unwrap();
        let sends = verbs.create_cq(device, entries).unwrap();
        let receives = verbs.create_cq(device, entries).unwrap();
        let srq = verbs.create_srq(device, 16).unwrap();
        let sizes = QpSizes { sends: 8, inline_bytes: 64 };
        let (qp, _) = verbs.create_qp(device, (sends, receives), srq, sizes).unwrap();
        let mut memory = vec![0; BUFFER];
        let access = LOCAL_WRITE | REMOTE_READ;
        // SAFETY: the buffer is dropped after the world has forgotten it, or with it.
        let region = unsafe { verbs.register(device, memory.as_mut_ptr(), BUFFER, access) };
        Self { device, sends, receives, srq, qp, region: region.unwrap(), memory, verbs }
    }

    fn connect(&self, to: &Self, retries: u8, rnr_retries: u8) {
        let port = to.verbs.port(to.device, 1).unwrap();
        let gid = to.verbs.gid(to.device, 1, 0).unwrap().gid;
        let gid = (port.link_layer == LinkLayer::Ethernet).then_some(gid);
        let (qp, psn) = (to.verbs.qp_number(to.qp), 7);
        let lid = port.lid;
        let destination =
            Destination { qp, psn, mtu: 5, lid, gid, port: 1, gid_index: 0, reads: 4 };
        let v = &self.verbs;
        v.modify(self.qp, Transition::Init { port: 1, access: REMOTE_READ }).unwrap();
        v.modify(self.qp, Transition::ReadyToReceive(destination)).unwrap();
        let rts = Transition::ReadyToSend { psn: 7, timeout: 14, retries, rnr_retries, reads: 4 };
        v.modify(self.qp, rts).unwrap();
    }

    fn piece(&self, at: usize, len: usize) -> Piece {
        let start = self.memory.as_ptr() as u64 + at as u64;
        Piece { start, len: len as u32, lkey: self.verbs.keys(self.region).0 }
    }

    fn post(&self, id: u64, work: Work, piece: Piece) -> Result<(), i32> {
        let work = SendWork { id, work, piece, signaled: true, inline: false };
        // SAFETY: the buffer lives as long as the end.
        unsafe { self.verbs.post_send(self.qp, &work) }
    }

    fn send(&self, id: u64) {
        self.post(id, Work::Send { immediate: id as u32 }, self.piece(0, 8)).unwrap();
    }

    fn receive(&self, id: u64, at: usize) {
        let work = ReceiveWork { id, piece: self.piece(at, 32) };
        // SAFETY: as above.
        unsafe { self.verbs.post_receives(self.srq, &[work]) }.unwrap();
    }

    fn poll(&self, cq: Handle) -> Vec<(u64, Status)> {
        let mut into = [Completion::NONE; 32];
        let taken = self.verbs.poll(cq, &mut into).unwrap();
        into[..taken].iter().map(|completion| (completion.id, completion.status)).collect()
    }

    fn destroy(&self) {
        self.verbs.destroy_qp(self.qp);
        self.verbs.destroy_srq(self.srq);
        self.verbs.destroy_cq(self.sends);
        self.verbs.destroy_cq(self.receives);
        self.verbs.deregister(self.region);
        self.verbs.close(self.device);
    }
}

/// Two ends on two nodes where nothing happens before a test steps.
fn pair(seed: u64, retries: u8, rnr_retries: u8) -> (World, End, End) {
    let nature = Nature { seed, steps_per_poll: 0, ..Nature::default() };
    let world = World::new(2, nature);
    let (a, b) = (End::new(&world, 0, 16), End::new(&world, 1, 16));
    a.connect(&b, retries, rnr_retries);
    b.connect(&a, retries, rnr_retries);
    (world, a, b)
}

#[test]
fn names_that_must_not_be_mixed_up_are_equal_or_differ() {
    let (_, a, b) = pair(1, 7, 7);
    assert_eq!(a.verbs.qp_number(a.qp), b.verbs.qp_number(b.qp), "equal on both nodes");
    let (lkey, rkey) = a.verbs.keys(a.region);
    assert_ne!(lkey, rkey);
    assert_ne!(a.verbs.keys(a.region), b.verbs.keys(b.region));
    assert_ne!(a.verbs.port(a.device, 1).unwrap().lid, 0);
}

#[test]
fn a_message_is_delivered_before_it_is_complete() {
    let (world, a, b) = pair(1, 7, 7);
    world.set_acknowledge_quarters(0);
    b.receive(40, 64);
    a.send(1);
    world.step(50);
    assert_eq!(b.poll(b.receives), [(40, Status::SUCCESS)]);
    assert_eq!((a.poll(a.sends), world.unacknowledged(0)), (vec![], 1));
    world.set_acknowledge_quarters(4);
    world.step(1);
    assert_eq!(a.poll(a.sends), [(1, Status::SUCCESS)]);
}

#[test]
fn completions_of_two_queue_pairs_come_in_any_order() {
    let order = |seed: u64| {
        let world = World::new(3, Nature { seed, steps_per_poll: 0, ..Nature::default() });
        let hub = End::new(&world, 0, 16);
        let senders = [End::new(&world, 1, 16), End::new(&world, 2, 16)];
        // Two queue pairs of the hub's node, which share its queues.
        let sizes = QpSizes { sends: 8, inline_bytes: 0 };
        let queues = (hub.sends, hub.receives);
        let (second, _) = hub.verbs.create_qp(hub.device, queues, hub.srq, sizes).unwrap();
        let other = End { qp: second, verbs: hub.verbs.clone(), memory: vec![0; 8], ..hub };
        for (end, sender) in [&End { memory: vec![0; 8], verbs: hub.verbs.clone(), ..hub }, &other]
            .into_iter()
            .zip(&senders)
        {
            end.connect(sender, 7, 7);
            sender.connect(end, 7, 7);
        }
        for at in 0..6 {
            let piece = Piece { lkey: hub.verbs.keys(hub.region).0, ..hub.piece(32 * at, 32) };
            // SAFETY: the buffer lives until the end of this.
            unsafe { hub.verbs.post_receives(hub.srq, &[ReceiveWork { id: at as u64, piece }]) }
                .unwrap();
        }
        for id in 0..3 {
            senders[0].send(id);
            senders[1].send(10 + id);
        }
        world.step(200);
        let mut into = [Completion::NONE; 8];
        let taken = hub.verbs.poll(hub.receives, &mut into).unwrap();
        assert_eq!(taken, 6);
        let of = |first: u32| -> Vec<u32> {
            let all = into[..6].iter().map(|completion| completion.immediate);
            all.filter(|&immediate| immediate / 10 == first).collect()
        };
        assert_eq!((of(0), of(1)), (vec![0, 1, 2], vec![10, 11, 12]), "order of a queue pair");
        into[..6].iter().map(|completion| completion.immediate).collect::<Vec<_>>()
    };
    let orders: std::collections::BTreeSet<_> = (1..20).map(order).collect();
    assert!(orders.len() > 3, "{orders:?}");
    assert_eq!(order(5), order(5), "the seed decides");
}

#[test]
fn without_a_receive_buffer_the_sender_waits_or_gives_up() {
    let (world, a, b) = pair(1, 7, 7);
    a.send(1);
    world.step(1000);
    assert_eq!(a.poll(a.sends), []);
    assert!(world.counts().no_receive > 100);
    b.receive(2, 64);
    world.step(100);
    assert_eq!(a.poll(a.sends), [(1, Status::SUCCESS)]);

    let (world, a, _b) = pair(1, 7, 2);
    a.send(1);
    world.step(100);
    assert_eq!(a.poll(a.sends), [(1, Status::RNR_RETRIES_EXCEEDED)]);
}

#[test]
fn an_unreachable_peer_exceeds_the_retries_and_the_rest_is_flushed() {
    let unreachable: [fn(&World); 4] = [
        |world| world.set_port(0, false),
        |world| world.set_port(1, false),
        |world| world.set_cut(1, 0, true),
        |world| world.restart(1),
    ];
    for make in unreachable {
        let (world, a, b) = pair(3, 7, 7);
        b.receive(9, 64);
        make(&world);
        for id in 1..=3 {
            a.send(id);
        }
        world.step(100);
        let flushed = Status::FLUSHED;
        let expected = [(1, Status::RETRIES_EXCEEDED), (2, flushed), (3, flushed)];
        assert_eq!(a.poll(a.sends), expected);
        let last = AsyncEvent::LastReceive(a.verbs.qp_number(a.qp));
        let mut events = std::iter::from_fn(|| a.verbs.async_event(a.device));
        assert!(events.any(|event| event == last));
        a.send(4);
        assert_eq!(a.poll(a.sends), [(4, flushed)], "posted to a queue pair in error");
    }
}

#[test]
fn wrong_keys_ranges_and_packet_numbers_are_refused() {
    let (world, a, b) = pair(1, 7, 7);
    b.receive(2, 64);
    let piece = Piece { lkey: a.verbs.keys(a.region).1, ..a.piece(0, 8) };
    a.post(1, Work::Send { immediate: 0 }, piece).unwrap();
    world.step(50);
    assert_eq!(a.poll(a.sends), [(1, Status::LOCAL_PROTECTION)]);
    // RDMA READ: the local key of the peer, a foreign range, then what is right.
    for (wrong_key, beyond) in [(true, 0), (false, 1), (false, 0)] {
        let (world, a, mut b) = pair(1, 7, 7);
        b.memory[..4].copy_from_slice(b"book");
        let (lkey, rkey) = b.verbs.keys(b.region);
        let start = b.memory.as_ptr() as u64 + beyond * (BUFFER as u64 - 3);
        let rkey = if wrong_key { lkey } else { rkey };
        a.post(1, Work::Read { start, rkey }, a.piece(16, 4)).unwrap();
        world.step(100);
        let is_right = !wrong_key && beyond == 0;
        let status = if is_right { Status::SUCCESS } else { Status::REMOTE_ACCESS };
        assert_eq!(a.poll(a.sends), [(1, status)]);
        assert_eq!(&a.memory[16..20] == b"book", is_right);
    }
}

#[test]
fn a_message_that_is_too_long_is_an_error_at_both_ends() {
    let (world, a, b) = pair(1, 7, 7);
    b.receive(2, 64);
    a.post(1, Work::Send { immediate: 0 }, a.piece(0, 33)).unwrap();
    world.step(50);
    assert_eq!(a.poll(a.sends), [(1, Status::REMOTE_INVALID_REQUEST)]);
    assert_eq!(b.poll(b.receives), [(2, Status::LOCAL_PROTECTION)]);
}

#[test]
fn a_send_queue_has_an_end_until_completions_are_polled() {
    let (world, a, b) = pair(1, 7, 7);
    for at in 0..4 {
        b.receive(at, 64 + 32 * at as usize);
    }
    for id in 0..8 {
        a.send(id);
    }
    let full = a.post(8, Work::Send { immediate: 0 }, a.piece(0, 8));
    assert_eq!(full, Err(libc::ENOMEM));
    world.step(200);
    assert_eq!(a.post(8, Work::Send { immediate: 0 }, a.piece(0, 8)), Err(libc::ENOMEM));
    assert_eq!(a.poll(a.sends).len(), 4);
    a.send(8);
}

#[test]
#[should_panic(expected = "a completion queue overflows")]
fn a_full_completion_queue_is_a_panic() {
    let world = World::new(2, Nature { steps_per_poll: 0, ..Nature::default() });
    let (a, b) = (End::new(&world, 0, 2), End::new(&world, 1, 2));
    a.connect(&b, 7, 7);
    b.connect(&a, 7, 7);
    for at in 0..3 {
        b.receive(at, 64 + 32 * at as usize);
        a.send(at);
    }
    world.step(100);
}

#[test]
#[should_panic(expected = "deregistered under a work request")]
fn memory_deregistered_under_a_work_request_is_a_panic() {
    let (_, a, _b) = pair(1, 7, 7);
    a.send(1);
    a.verbs.deregister(a.region);
}

#[test]
#[should_panic(expected = "memory of a posted send was changed")]
fn a_send_buffer_that_is_changed_too_early_is_a_panic() {
    let (world, mut a, b) = pair(1, 7, 7);
    b.receive(2, 64);
    a.send(1);
    a.memory[3] = 1;
    world.step(50);
}

#[test]
#[should_panic(expected = "memory of a posted receive was changed")]
fn a_receive_buffer_that_is_changed_is_a_panic() {
    let (world, a, mut b) = pair(1, 7, 7);
    b.receive(2, 64);
    b.memory[64] = 1;
    a.send(1);
    world.step(50);
}

#[test]
#[should_panic(expected = "before the restart")]
fn objects_of_before_a_restart_must_not_be_touched() {
    let (world, a, _b) = pair(1, 7, 7);
    world.restart(0);
    world.node(0).destroy_qp(a.qp);
}

#[test]
fn what_is_not_destroyed_is_counted_and_a_restart_forgets_it() {
    let (world, a, b) = pair(1, 7, 7);
    assert_eq!((world.live(0), world.live(1)), (6, 6));
    b.receive(1, 64);
    a.send(1);
    a.destroy();
    assert_eq!((world.live(0), world.live(1)), (0, 6));
    world.restart(1);
    assert_eq!(world.live(1), 0);
}

#[test]
fn a_queue_pair_that_is_destroyed_takes_its_completions_with_it() {
    let (world, a, b) = pair(1, 7, 7);
    b.receive(2, 64);
    a.send(1);
    world.step(50);
    b.verbs.destroy_qp(b.qp);
    assert_eq!((b.poll(b.receives), world.posted_receives(1)), (vec![], 0), "a buffer is lost");
}
