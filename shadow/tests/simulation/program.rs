//! A program that uses everything the shadow knows, and notices everything that goes wrong: the
//! order and contents of messages, slots of a ring that are written twice, counters, completions
//! that are missing or another's.

use crate::process::{Bug, Process};
use crate::world::{World, base};
use rustbtl_seeds::Prng;
use rustbtl_shadow::abi::{AhAttr, Completion, Gid, QpAttr, QpCap, Sge, SrqAttr, number::*};
use rustbtl_shadow::*;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

const AREA: u64 = 1 << 13;
const DEPTH: usize = 6;
const RECEIVES: usize = 4;
const SLOTS: u64 = 4;
const SENDS: u64 = 0;
const BUFFERS: u64 = 1024;
const RING_IN: u64 = 2048;
const RING_OUT: u64 = 2112;
const CREDIT_IN: u64 = 2176;
const CREDIT_OUT: u64 = 2184;
const COUNTER: u64 = 2192;
const OLD_COUNT: u64 = 2200;
const CELL: u64 = 2208;
const PATTERN: u64 = 2304;
const READ: u64 = 2368;
/// Datagrams, at the end of the memory.
const DATAGRAMS: u64 = 7 << 13;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    Credit,
    Atomic,
    Read,
}

pub struct Connection {
    pub peer: usize,
    qp: QpId,
    pub qpn: u32,
    stage: u8,
    peer_qpn: u32,
    peer_key: u32,
    /// Where the peer keeps what is for this process, and the other way round.
    remote: u64,
    area: u64,
    under_way: VecDeque<(u64, Kind, bool)>,
    next: u64,
    unsignalled: u32,
    buffer_used: [u64; 8],
    pub sent: u64,
    pub got: u64,
    pub ring_sent: u64,
    pub ring_got: u64,
    credit_told: u64,
    pub atomics: u64,
    pub atomics_done: u64,
    reads: u64,
    reads_done: u64,
    receives: VecDeque<u64>,
    posted: u64,
}

pub struct Program {
    pub shadow: Shadow<Process>,
    prng: Prng,
    node: usize,
    key: Keys,
    cqs: [CqId; 2],
    srq: Option<SrqId>,
    pub connections: Vec<Connection>,
    datagrams: QpId,
    pub datagram_qpn: u32,
    peers: Vec<Option<(AhId, u32)>>,
    datagrams_sent: u64,
    datagrams_got: Vec<u64>,
    pub datagrams_total: u64,
    datagram_receives: u64,
    datagrams_open: usize,
}

impl Program {
    pub fn new(world: &Rc<RefCell<World>>, node: usize, prng: Prng, bug: Option<Bug>) -> Self {
        let nodes = world.borrow().nodes.len();
        let world = Rc::clone(world);
        let process = Process { world, node, bug, raised: 0, captures: 0, markers: 0 };
        let job = Job { process: node as u32, processes: nodes as u32 };
        let mut shadow = Shadow::new(process, job);
        let mut prng = prng;
        let done = "the world has room";
        let context = shadow.open("adapter").expect(done);
        let pd = shadow.alloc_pd(context).expect(done);
        let spec = RegionSpec {
            start: base(node),
            bytes: crate::world::MEMORY as u64,
            iova: None,
            access: 15,
        };
        let (_, key) = shadow.register(pd, spec).expect(done);
        let entries = ((DEPTH + RECEIVES) * nodes) as u32;
        let channel = shadow.create_channel(context).expect(done);
        let mut cq = || shadow.create_cq(context, Some(channel), entries, 0).expect(done).0;
        let cqs = [cq(), cq()];
        let max_wr = RECEIVES as u32;
        let attr = SrqAttr { max_wr, max_sge: 2, srq_limit: 0 };
        let is_shared = prng.chance(40);
        let srq = is_shared.then(|| shadow.create_srq(pd, attr).expect(done).0);
        let cap = QpCap {
            max_send_wr: DEPTH as u32,
            max_recv_wr: if is_shared { 0 } else { RECEIVES as u32 },
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 64,
        };
        let [send_cq, recv_cq] = cqs;
        let wish = QpWish { send_cq, recv_cq, srq, cap, kind: IBV_QPT_RC, signal_all: false };
        let mut connections = Vec::new();
        for peer in (0..nodes).filter(|&peer| peer != node) {
            let (qp, qpn, got) = shadow.create_qp(pd, wish).expect(done);
            assert_eq!(got, cap, "the program sees the spare room");
            let at = |of: usize, other: usize| base(of) + other as u64 * AREA;
            connections.push(Connection {
                peer,
                qp,
                qpn,
                stage: 0,
                peer_qpn: 0,
                peer_key: 0,
                remote: at(peer, node),
                area: at(node, peer),
                under_way: VecDeque::new(),
                next: 0,
                unsignalled: 0,
                buffer_used: [0; 8],
                sent: 0,
                got: 0,
                ring_sent: 0,
                ring_got: 0,
                credit_told: 0,
                atomics: 0,
                atomics_done: 0,
                reads: 0,
                reads_done: 0,
                receives: VecDeque::new(),
                posted: 0,
            });
        }
        let cap = QpCap { max_recv_wr: RECEIVES as u32, ..cap };
        let wish = QpWish { srq: None, kind: IBV_QPT_UD, cap, ..wish };
        let (datagrams, datagram_qpn, _) = shadow.create_qp(pd, wish).expect(done);
        for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
            let attr = QpAttr { qp_state: state, ..QpAttr::default() };
            shadow.modify_qp(datagrams, &attr, IBV_QP_STATE).expect(done);
        }
        let program = Self {
            shadow,
            prng,
            node,
            key,
            cqs,
            srq,
            connections,
            datagrams,
            datagram_qpn,
            peers: vec![None; nodes],
            datagrams_sent: 0,
            datagrams_got: vec![0; nodes],
            datagrams_total: 0,
            datagram_receives: 0,
            datagrams_open: 0,
        };
        for at in 0..program.connections.len() {
            let place = program.connections[at].area + PATTERN;
            for byte in 0..64 {
                program.put(place + byte, &[byte as u8 * 3]);
            }
        }
        program
    }

    fn put(&self, address: u64, bytes: &[u8]) {
        let at = (address & 0xFFFF_FFFF) as usize;
        let mut world = self.shadow.host.world.borrow_mut();
        world.nodes[self.node].memory[at..][..bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        let at = (address & 0xFFFF_FFFF) as usize;
        self.shadow.host.world.borrow().nodes[self.node].memory[at..][..bytes].to_vec()
    }

    fn word(&self, address: u64) -> u64 {
        u64::from_le_bytes(self.read(address, 8).try_into().expect("eight bytes"))
    }

    /// What a peer has to know: queue pair, key, datagrams, port.
    pub fn card(&self, peer: usize) -> (u32, u32, u32, Port) {
        let found = self.connections.iter().find(|connection| connection.peer == peer);
        let port = self.shadow.port(ContextId(0), 1).expect("one port").clone();
        (found.expect("a peer").qpn, self.key.remote, self.datagram_qpn, port)
    }

    /// One transition of one connection.
    pub fn connect(&mut self, peer: usize, (qpn, key, datagrams, port): (u32, u32, u32, Port)) {
        let found = self.connections.iter_mut().find(|connection| connection.peer == peer);
        let connection = found.expect("a peer");
        let ah_attr = AhAttr {
            dgid: Gid(port.gids[0]),
            is_global: u8::from(port.lid == 0),
            dlid: port.lid,
            port_num: 1,
            ..AhAttr::default()
        };
        let (state, more) = match connection.stage {
            0 => (IBV_QPS_INIT, 0),
            1 => (IBV_QPS_RTR, IBV_QP_AV | IBV_QP_DEST_QPN),
            2 => (IBV_QPS_RTS, 0),
            _ => return,
        };
        let attr = QpAttr { qp_state: state, dest_qp_num: qpn, ah_attr, ..QpAttr::default() };
        (connection.peer_qpn, connection.peer_key) = (qpn, key);
        connection.stage += 1;
        let qp = connection.qp;
        self.shadow.modify_qp(qp, &attr, IBV_QP_STATE | more).expect("a transition");
        if state == IBV_QPS_RTR {
            let ah = self.shadow.create_ah(PdId(0), ah_attr).expect("an address");
            self.peers[peer] = Some((ah, datagrams));
        }
    }

    pub fn is_connected(&self) -> bool {
        self.connections.iter().all(|connection| connection.stage == 3)
    }

    /// One random action.
    pub fn act(&mut self, produces: bool) {
        if self.connections.is_empty() {
            return;
        }
        let at = self.prng.below(self.connections.len());
        self.poll();
        self.look(at);
        if self.prng.chance(30) && self.connections[at].stage > 0 {
            self.receive(at);
        }
        if self.connections[at].stage < 3 {
            return;
        }
        self.credit(at);
        if produces {
            match self.prng.below(6) {
                0..=1 => self.send(at),
                2 => self.write(at),
                3 => self.atomic(at),
                4 => self.get(at),
                _ => self.datagram(at),
            }
        }
    }

    fn sge(&self, addr: u64, length: u32) -> Sge {
        Sge { addr, length, lkey: self.key.local }
    }

    fn post(&mut self, at: usize, kind: Kind, request: Send<'_, AhId>, must_tell: bool) -> bool {
        let connection = &mut self.connections[at];
        if connection.under_way.len() >= DEPTH {
            return false;
        }
        let is_signalled = must_tell || connection.unsignalled >= 2 || self.prng.chance(40);
        let number = connection.next;
        let request = Send {
            id: (at as u64) << 32 | number,
            flags: request.flags | if is_signalled { IBV_SEND_SIGNALED } else { 0 },
            ..request
        };
        self.shadow.post_send(connection.qp, &request).expect("room in the queue");
        connection.under_way.push_back((number, kind, is_signalled));
        connection.next += 1;
        connection.unsignalled = if is_signalled { 0 } else { connection.unsignalled + 1 };
        true
    }

    fn send(&mut self, at: usize) {
        let connection = &self.connections[at];
        let (number, slot) = (connection.sent + 1, connection.sent as usize % 8);
        let oldest = connection.under_way.front().map_or(connection.next, |first| first.0);
        if connection.buffer_used[slot] > oldest {
            return;
        }
        let buffer = connection.area + SENDS + slot as u64 * 64;
        let (cell, key) = (connection.remote + CELL, connection.peer_key);
        let next = connection.next;
        let length = self.prng.between(8, 64);
        let mut bytes = vec![number as u8; length];
        bytes[..4].copy_from_slice(&(number as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&(length as u32).to_le_bytes());
        self.put(buffer, &bytes);
        let is_inline = self.prng.chance(40);
        let choice = self.prng.below(3);
        let by_write = choice == 2;
        let cut = length as u32 / 2;
        let mut sges =
            [self.sge(buffer, cut), self.sge(buffer + u64::from(cut), length as u32 - cut)];
        if is_inline {
            sges[0].lkey = 0xDEAD;
        }
        let eight = [self.sge(buffer, 8)];
        let request = Send {
            id: 0,
            opcode: match choice {
                0 => IBV_WR_SEND,
                1 => IBV_WR_SEND_WITH_IMM,
                _ => IBV_WR_RDMA_WRITE_WITH_IMM,
            },
            flags: if is_inline { IBV_SEND_INLINE } else { 0 },
            imm: number as u32,
            sges: if by_write { &eight } else { &sges },
            target: if by_write { Target::Memory { address: cell, key } } else { Target::Receive },
        };
        if self.post(at, Kind::Send, request, false) {
            self.connections[at].sent = number;
            if is_inline {
                self.put(buffer, &[0xCC; 64]);
            } else {
                self.connections[at].buffer_used[slot] = next + 1;
            }
        }
    }

    fn write(&mut self, at: usize) {
        let connection = &self.connections[at];
        let number = connection.ring_sent + 1;
        let credit = self.word(connection.area + CREDIT_IN);
        if connection.ring_sent - credit >= SLOTS {
            return;
        }
        let slot = connection.ring_sent % SLOTS * 8;
        let (from, to) = (connection.area + RING_OUT + slot, connection.remote + RING_IN + slot);
        self.put(from, &number.to_le_bytes());
        let target = Target::Memory { address: to, key: connection.peer_key };
        let sges = [self.sge(from, 8)];
        // The slot is used again when the peer has seen it.
        if self.post(at, Kind::Write, request(IBV_WR_RDMA_WRITE, &sges, target), false) {
            self.connections[at].ring_sent = number;
        }
    }

    fn credit(&mut self, at: usize) {
        let connection = &self.connections[at];
        if connection.credit_told == connection.ring_got {
            return;
        }
        let got = connection.ring_got;
        let from = connection.area + CREDIT_OUT;
        let address = connection.remote + CREDIT_IN;
        let target = Target::Memory { address, key: connection.peer_key };
        self.put(from, &got.to_le_bytes());
        let sges = [self.sge(from, 8)];
        let credit = request(IBV_WR_RDMA_WRITE, &sges, target);
        let credit = Send { flags: IBV_SEND_INLINE, ..credit };
        if self.post(at, Kind::Credit, credit, false) {
            self.connections[at].credit_told = got;
        }
    }

    fn atomic(&mut self, at: usize) {
        let connection = &self.connections[at];
        if connection.atomics != connection.atomics_done {
            return;
        }
        let sges = [self.sge(connection.area + OLD_COUNT, 8)];
        let (address, key) = (connection.remote + COUNTER, connection.peer_key);
        let target = Target::Atomic { address, key, compare_add: 1, swap: 0 };
        if self.post(at, Kind::Atomic, request(IBV_WR_ATOMIC_FETCH_AND_ADD, &sges, target), true) {
            self.connections[at].atomics += 1;
        }
    }

    fn get(&mut self, at: usize) {
        let connection = &self.connections[at];
        if connection.reads != connection.reads_done {
            return;
        }
        let into = connection.area + READ;
        self.put(into, &[0xEE; 64]);
        let sges = [self.sge(into, 64)];
        let (address, key) = (connection.remote + PATTERN, connection.peer_key);
        let target = Target::Memory { address, key };
        if self.post(at, Kind::Read, request(IBV_WR_RDMA_READ, &sges, target), true) {
            self.connections[at].reads += 1;
        }
    }

    fn datagram(&mut self, at: usize) {
        let peer = self.connections[at].peer;
        let Some((ah, qpn)) = self.peers[peer].filter(|_| self.datagrams_open < DEPTH) else {
            return;
        };
        self.datagrams_sent += 1;
        let from = base(self.node) + DATAGRAMS + 512;
        self.put(from, &(self.node as u64).to_le_bytes());
        self.put(from + 8, &self.datagrams_sent.to_le_bytes());
        let sges = [self.sge(from, 16)];
        let target = Target::Datagram { ah, qpn, qkey: 7 };
        let flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
        let request = Send { id: u64::MAX, flags, ..request(IBV_WR_SEND, &sges, target) };
        self.shadow.post_send(self.datagrams, &request).expect("room for a datagram");
        self.datagrams_open += 1;
        if self.datagram_receives < 4 {
            let slot = self.datagrams_total % 4;
            let sges = [self.sge(base(self.node) + DATAGRAMS + slot * 64, 64)];
            let owner = Owner::Qp(self.datagrams);
            self.shadow.post_receive(owner, u64::MAX - 1 - slot, &sges).expect("room");
            self.datagrams_total += 1;
            self.datagram_receives += 1;
        }
    }

    fn receive(&mut self, at: usize) {
        let is_shared = self.srq.is_some();
        let at = if is_shared { 0 } else { at };
        let connection = &self.connections[at];
        if connection.receives.len() >= RECEIVES {
            return;
        }
        let slot = (0..16).find(|slot| connection.receives.iter().all(|used| used % 16 != *slot));
        let slot = slot.expect("more buffers than receives");
        let id = (at as u64) << 32 | connection.posted << 4 | slot;
        let buffer = connection.area + BUFFERS + slot * 64;
        let cut = self.prng.between(1, 60) as u32;
        let sges = [self.sge(buffer, cut), self.sge(buffer + u64::from(cut), 64 - cut)];
        let owner = self.srq.map_or(Owner::Qp(connection.qp), Owner::Srq);
        self.connections[at].receives.push_back(id);
        self.connections[at].posted += 1;
        self.shadow.post_receive(owner, id, &sges).expect("room for a receive");
    }

    /// The ring: each slot once.
    fn look(&mut self, at: usize) {
        let area = self.connections[at].area;
        for slot in 0..SLOTS {
            let place = area + RING_IN + slot * 8;
            let seen = self.word(place);
            let expected = self.connections[at].ring_got + 1;
            assert!(seen == 0 || seen >= expected, "a slot of the ring was written twice: {seen}");
            if seen == expected && slot == (expected - 1) % SLOTS {
                self.put(place, &[0; 8]);
                self.connections[at].ring_got = expected;
            }
        }
    }

    pub fn poll(&mut self) {
        for cq in self.cqs {
            let mut into = [Completion::default(); 3];
            let count = self.shadow.poll(cq, &mut into).expect("a poll");
            for completion in &into[..count] {
                self.completed(cq, completion);
            }
        }
    }

    fn completed(&mut self, cq: CqId, completion: &Completion) {
        assert_eq!(completion.status, IBV_WC_SUCCESS, "a request failed: {completion:?}");
        if completion.qp_num == self.datagram_qpn {
            return self.datagram_completed(completion);
        }
        let found = self.connections.iter().position(|it| it.qpn == completion.qp_num);
        let at = found.expect("V6: a completion of another's queue pair");
        if cq == self.cqs[1] {
            return self.received(at, completion);
        }
        assert_eq!(completion.wr_id >> 32, at as u64, "V6: another's request");
        let number = completion.wr_id & 0xFFFF_FFFF;
        loop {
            let next = self.connections[at].under_way.pop_front();
            let (this, kind, is_signalled) = next.expect("V6: a completion twice");
            assert!(is_signalled == (this == number), "a completion is lost, or out of order");
            let connection = &mut self.connections[at];
            match kind {
                Kind::Atomic => {
                    let expected = connection.atomics_done;
                    connection.atomics_done += 1;
                    let seen = self.word(self.connections[at].area + OLD_COUNT);
                    assert_eq!(seen, expected, "an atomic was done twice, or never");
                }
                Kind::Read => {
                    connection.reads_done += 1;
                    let seen = self.read(self.connections[at].area + READ, 64);
                    assert!((0..64u8).all(|at| seen[usize::from(at)] == at * 3), "a read");
                }
                Kind::Send | Kind::Write | Kind::Credit => {}
            }
            if this == number {
                break;
            }
        }
    }

    fn received(&mut self, at: usize, completion: &Completion) {
        let owner = if self.srq.is_some() { 0 } else { at };
        let receives = &mut self.connections[owner].receives;
        let place = receives.iter().position(|&id| id == completion.wr_id);
        let place = place.expect("V6: a receive that was not posted");
        assert!(self.srq.is_some() || place == 0, "V4: receives are out of order");
        receives.remove(place);
        let number = self.connections[at].got + 1;
        let area = self.connections[at].area;
        if completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM {
            assert_eq!(u64::from(completion.imm_data), number, "messages are out of order");
            assert!(self.word(area + CELL) & 0xFFFF_FFFF >= number, "a write came late");
        } else {
            let from = self.connections[owner].area + BUFFERS + completion.wr_id % 16 * 64;
            let bytes = self.read(from, completion.byte_len as usize);
            let first = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
            assert_eq!(u64::from(first), number, "messages are lost, doubled or out of order");
            assert_eq!(bytes[4..8], completion.byte_len.to_le_bytes(), "another length");
            assert!(bytes[8..].iter().all(|&byte| byte == number as u8), "other contents");
        }
        self.connections[at].got = number;
    }

    fn datagram_completed(&mut self, completion: &Completion) {
        if completion.wr_id == u64::MAX {
            self.datagrams_open -= 1;
            return;
        }
        self.datagram_receives -= 1;
        let slot = u64::MAX - 1 - completion.wr_id;
        let from = base(self.node) + DATAGRAMS + slot * 64;
        let (node, number) = (self.word(from) as usize, self.word(from + 8));
        assert!(number > self.datagrams_got[node], "a datagram came twice");
        self.datagrams_got[node] = number;
    }

    /// All that can come has come.
    pub fn counts(&self, peer: usize) -> [u64; 6] {
        let found = self.connections.iter().find(|it| it.peer == peer);
        let it = found.expect("a peer");
        let counter = self.word(it.area + COUNTER);
        [it.sent, it.got, it.ring_sent, it.ring_got, it.atomics_done, counter]
    }
}

fn request<'a>(opcode: u32, sges: &'a [Sge], target: Target<AhId>) -> Send<'a, AhId> {
    Send { id: 0, opcode, flags: 0, imm: 0, sges, target }
}
