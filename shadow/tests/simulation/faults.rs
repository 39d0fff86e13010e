//! Connections that fail while there is a shadow, and what happens to those who post requests again
//! that have no completion (the paper's fifth principle): each is shown once.

use crate::process::Process;
use crate::world::{World, base};
use rustbtl_seeds::Prng;
use rustbtl_shadow::abi::{AhAttr, Completion, Gid, QpAttr, QpCap, Sge, number::*};
use rustbtl_shadow::*;
use std::cell::RefCell;
use std::rc::Rc;

const CAP: QpCap =
    QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 16 };
const STEPS: usize = 200;
const NO_KEY: u32 = 7;

fn process(world: &Rc<RefCell<World>>, node: usize) -> Process {
    let world = Rc::clone(world);
    Process { world, node, bug: None, raised: 0, captures: 0, markers: 0 }
}

fn world() -> Rc<RefCell<World>> {
    Rc::new(RefCell::new(World::new(Prng::new(3), 2)))
}

fn region(node: usize) -> RegionSpec {
    RegionSpec { start: base(node), bytes: 4096, iova: None, access: 15 }
}

fn transitions(port: &Port, peer: u32) -> [(QpAttr, u32); 3] {
    let ah_attr = AhAttr {
        dlid: port.lid,
        dgid: Gid(port.gids[0]),
        is_global: u8::from(port.lid == 0),
        ..AhAttr::default()
    };
    let to = |qp_state| QpAttr { qp_state, dest_qp_num: peer, ah_attr, ..QpAttr::default() };
    [
        (to(IBV_QPS_INIT), IBV_QP_STATE),
        (to(IBV_QPS_RTR), IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN),
        (to(IBV_QPS_RTS), IBV_QP_STATE),
    ]
}

/// One end of a connection under a shadow.
struct End {
    shadow: Shadow<Process>,
    cq: CqId,
    qp: QpId,
    qpn: u32,
    keys: Keys,
    node: usize,
}

impl End {
    fn new(world: &Rc<RefCell<World>>, node: usize) -> Self {
        let job = Job { process: node as u32, processes: 2 };
        let mut shadow = Shadow::new(process(world, node), job);
        let context = shadow.open("adapter").expect("an adapter");
        let pd = shadow.alloc_pd(context).expect("a domain");
        let (_, keys) = shadow.register(pd, region(node)).expect("a region");
        let (cq, _) = shadow.create_cq(context, None, 32, 0).expect("a queue");
        let wish = QpWish {
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            cap: CAP,
            kind: IBV_QPT_RC,
            signal_all: false,
        };
        let (qp, qpn, _) = shadow.create_qp(pd, wish).expect("a queue pair");
        Self { shadow, cq, qp, qpn, keys, node }
    }

    fn connect(&mut self, port: &Port, peer: u32) {
        for (attr, mask) in transitions(port, peer) {
            self.shadow.modify_qp(self.qp, &attr, mask).expect("a transition");
        }
    }

    fn write(&mut self, id: u64, key: u32) -> Outcome<()> {
        let (addr, lkey) = (base(self.node), self.keys.local);
        let target = Target::Memory { address: base(1 - self.node), key };
        let sges = [Sge { addr, length: 8, lkey }];
        let send = Send { id, opcode: IBV_WR_RDMA_WRITE, flags: 0, imm: 0, sges: &sges, target };
        self.shadow.post_send(self.qp, &send)
    }

    fn receive(&mut self, id: u64) {
        let sge = Sge { addr: base(self.node) + 64, length: 8, lkey: self.keys.local };
        self.shadow.post_receive(Owner::Qp(self.qp), id, &[sge]).expect("room");
    }

    fn polled(&mut self) -> Vec<(u64, u32)> {
        let mut into = [Completion::default(); 16];
        let count = self.shadow.poll(self.cq, &mut into).expect("a poll");
        assert!(into[..count].iter().all(|it| it.qp_num == self.qpn), "V6: another's number");
        into[..count].iter().map(|it| (it.wr_id, it.status)).collect()
    }
}

fn connected(world: &Rc<RefCell<World>>) -> [End; 2] {
    let mut ends = [0, 1].map(|node| End::new(world, node));
    let cards = ends
        .each_ref()
        .map(|end| (end.qpn, end.shadow.port(ContextId(0), 1).expect("one").clone()));
    for (end, (qpn, port)) in ends.iter_mut().zip(cards.iter().rev()) {
        end.connect(port, *qpn);
    }
    ends
}

fn drained(world: &Rc<RefCell<World>>, ends: &mut [End]) {
    for _ in 0..STEPS {
        world.borrow_mut().step();
        let tallies = ends.iter().flat_map(|end| end.shadow.tallies());
        let all = tallies.map(|tally| (tally.qpn, tally)).collect();
        assert_eq!(postponed(&all), None);
        let over = ends.iter_mut().map(|end| end.shadow.drain(&all).expect("a drain"));
        if over.collect::<Vec<_>>().iter().all(|&over| over) {
            return ends.iter().for_each(|end| end.shadow.check_drained());
        }
    }
    panic!("the drain does not end");
}

fn rebuilt(ends: &mut [End]) {
    ends.iter_mut().for_each(|end| end.shadow.make(Old::Destroy).expect("objects"));
    for end in ends {
        end.shadow.connect().expect("connections");
    }
}

#[test]
fn a_wrong_key_fails_as_without_a_shadow_and_is_drained() {
    let world = world();
    let mut ends = connected(&world);
    let [one, other] = &mut ends;
    let right = other.keys.remote;
    // Its own keys, and the peer's local one, are not the peer's remote one.
    one.write(7, other.keys.local).expect("room");
    one.write(8, right).expect("room");
    one.receive(9);
    other.receive(10);
    drained(&world, &mut ends);
    rebuilt(&mut ends);
    let [one, other] = &mut ends;
    const REMOTE_ACCESS: u32 = 10;
    let flushed = [(7, REMOTE_ACCESS), (8, IBV_WC_WR_FLUSH_ERR), (9, IBV_WC_WR_FLUSH_ERR)];
    assert_eq!(one.polled(), flushed);
    assert_eq!(other.polled(), []);
    let broken = one.shadow.tallies();
    assert_eq!(broken[0].readiness, Readiness::Broken, "it has become whole again");
}

#[test]
fn a_peer_that_is_gone_is_not_waited_for() {
    let world = world();
    let [mut one, mut other] = connected(&world);
    let opcode = IBV_WR_SEND;
    let sges = [Sge { addr: base(1), length: 8, lkey: other.keys.local }];
    let send = Send { id: 1, opcode, flags: 0, imm: 0, sges: &sges, target: Target::Receive };
    other.shadow.post_send(other.qp, &send).expect("room");
    other.shadow.destroy_qp(other.qp).expect("it exists");
    one.receive(2);
    let mut ends = [one];
    drained(&world, &mut ends);
    // Nor connected to somebody who has its number by chance.
    world.borrow_mut().restart(0);
    let [one] = &mut ends;
    one.shadow.make(Old::Abandon).expect("objects");
    one.shadow.connect().expect("a connection that leads nowhere");
    one.write(3, NO_KEY).expect("room");
    (0..STEPS).for_each(|_| world.borrow_mut().step());
    assert_eq!(one.polled().iter().filter(|&&(id, _)| id == 3).count(), 0);
}

#[test]
fn keys_and_queue_pairs_of_before_are_not_found() {
    let world = world();
    let mut end = End::new(&world, 0);
    let old = end.keys;
    end.shadow.deregister(RegionId(0)).expect("it exists");
    let (_, new) = end.shadow.register(PdId(0), region(0)).expect("a region");
    assert_ne!((new.local, new.remote), (old.local, old.remote));
    end.shadow.destroy_qp(end.qp).expect("it exists");
    assert_eq!(end.shadow.destroy_qp(end.qp), Err(Errno::INVALID));
    end.shadow.check();
}

#[test]
fn a_full_queue_says_so() {
    let world = world();
    let [mut one, other] = connected(&world);
    for id in 0..8 {
        one.write(id, other.keys.remote).expect("room");
    }
    assert_eq!(one.write(8, other.keys.remote), Err(Errno::FULL));
    one.shadow.check();
}

/// Two processes without a shadow, connected.
struct Raw {
    world: Rc<RefCell<World>>,
    qps: [u32; 2],
    cqs: [u32; 2],
    keys: [Keys; 2],
}

impl Raw {
    fn new() -> Self {
        let world = world();
        let mut raw =
            Self { world, qps: [0; 2], cqs: [0; 2], keys: [Keys { local: 0, remote: 0 }; 2] };
        raw.make();
        raw
    }

    fn make(&mut self) {
        let mut qpns = [0; 2];
        for (node, qpn) in qpns.iter_mut().enumerate() {
            let mut world = self.world.borrow_mut();
            self.keys[node] = world.register(node, &region(node)).1;
            self.cqs[node] = world.create_cq(node, 32);
            let cq = self.cqs[node];
            let spec = QpSpec {
                send_cq: cq,
                recv_cq: cq,
                srq: None,
                cap: CAP,
                kind: IBV_QPT_RC,
                signal_all: true,
            };
            let (handle, number) = world.create_qp(node, &spec);
            self.qps[node] = handle;
            *qpn = number;
        }
        for node in 0..2 {
            let port = self.world.borrow().port(1 - node);
            for (attr, mask) in transitions(&port, qpns[1 - node]) {
                self.world.borrow_mut().modify_qp(node, self.qps[node], &attr, mask);
            }
        }
    }

    fn post(&self, opcode: u32, inline: bool) {
        let sges = [Sge { addr: base(0), length: 8, lkey: self.keys[0].local }];
        let (address, key) = (base(1), self.keys[1].remote);
        let target = match opcode {
            IBV_WR_SEND => Target::Receive,
            IBV_WR_RDMA_WRITE => Target::Memory { address, key },
            _ => Target::Atomic { address, key, compare_add: 1, swap: 0 },
        };
        let flags = if inline { IBV_SEND_INLINE } else { 0 };
        let send = Send { id: 1, opcode, flags, imm: 0, sges: &sges, target };
        self.world.borrow_mut().post_send(0, self.qps[0], &send).expect("room");
    }

    fn receive(&self) {
        let sges = [Sge { addr: base(1), length: 8, lkey: self.keys[1].local }];
        self.world.borrow_mut().post_receive(1, self.qps[1], 2, &sges).expect("room");
    }

    fn word(&self, node: usize) -> u64 {
        let memory = &self.world.borrow().nodes[node].memory;
        u64::from_le_bytes(memory[..8].try_into().expect("eight bytes"))
    }

    fn set(&self, node: usize, word: u64) {
        self.world.borrow_mut().nodes[node].memory[..8].copy_from_slice(&word.to_le_bytes());
    }

    /// Until the peer's memory has this, and the sender no completion.
    fn until(&self, word: u64) {
        for _ in 0..STEPS {
            if self.word(1) == word {
                let polled =
                    self.world.borrow_mut().poll(0, self.cqs[0], &mut [Completion::default()]);
                assert_eq!(polled, 0, "it has a completion");
                return;
            }
            self.world.borrow_mut().step();
        }
        panic!("{word} never comes: {}", self.word(1));
    }

    /// The restart; what has no completion is about to be posted again.
    fn restart(&mut self) {
        (0..2).for_each(|node| self.world.borrow_mut().restart(node));
        self.make();
    }
}

#[test]
fn a_send_that_is_posted_again_comes_twice() {
    let mut raw = Raw::new();
    raw.set(0, 77);
    raw.receive();
    raw.post(IBV_WR_SEND, false);
    raw.until(77);
    raw.restart();
    raw.set(1, 0);
    raw.receive();
    raw.post(IBV_WR_SEND, false);
    raw.until(77);
}

#[test]
fn a_write_that_is_posted_again_fills_a_slot_that_was_seen() {
    let mut raw = Raw::new();
    raw.set(0, 77);
    raw.post(IBV_WR_RDMA_WRITE, false);
    raw.until(77);
    raw.set(1, 0);
    raw.restart();
    raw.post(IBV_WR_RDMA_WRITE, false);
    raw.until(77);
}

#[test]
fn an_atomic_that_is_posted_again_counts_twice() {
    let mut raw = Raw::new();
    raw.post(IBV_WR_ATOMIC_FETCH_AND_ADD, false);
    raw.until(1);
    raw.restart();
    raw.post(IBV_WR_ATOMIC_FETCH_AND_ADD, false);
    raw.until(2);
}

#[test]
fn inline_data_that_are_posted_again_are_what_the_program_has_there_now() {
    let mut raw = Raw::new();
    raw.set(0, 77);
    raw.receive();
    raw.post(IBV_WR_SEND, true);
    // Allowed as soon as the call has returned.
    raw.set(0, 99);
    raw.restart();
    raw.receive();
    raw.post(IBV_WR_SEND, true);
    raw.until(99);
}
