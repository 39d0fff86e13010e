//! A world of adapters, moved by a seed: what verbs leave open differs from run to run, what they
//! forbid is a panic. Acknowledgements come late, queue pairs take turns at random, sends without a
//! receive wait, datagrams get lost; LIDs, GIDs, keys, numbers and handles are others after a
//! restart, and old handles name new objects.

use rustbtl_seeds::Prng;
use rustbtl_shadow::abi::{AhAttr, Completion, QpAttr, Sge, SrqAttr, number::*};
use rustbtl_shadow::*;
use std::collections::{BTreeMap, VecDeque};

/// Bytes of a node.
pub const MEMORY: usize = 1 << 16;
const REMOTE_INVALID_REQUEST: u32 = 9;
const REMOTE_ACCESS: u32 = 10;

/// Where a node's memory begins.
pub fn base(node: usize) -> u64 {
    (node as u64 + 1) << 32
}

struct Mr {
    start: u64,
    bytes: u64,
    keys: Keys,
    /// Of the shadow's own.
    capture: Option<Vec<u8>>,
}

struct Request {
    id: u64,
    opcode: u32,
    is_signalled: bool,
    imm: u32,
    sges: Vec<Sge>,
    inline: Option<Vec<u8>>,
    target: Target<u32>,
    is_done: bool,
}

pub struct Qp {
    pub qpn: u32,
    pub state: u32,
    spec: QpSpec<u32>,
    peer: u32,
    to: AhAttr,
    sends: VecDeque<Request>,
    receives: VecDeque<(u64, Vec<Sge>)>,
}

enum Object {
    Plain,
    Mr(Mr),
    Cq { entries: usize, queue: VecDeque<Completion> },
    Srq { max: usize, receives: VecDeque<(u64, Vec<Sge>)> },
    Ah(AhAttr),
    Qp(Box<Qp>),
}

/// One process's adapter and memory.
pub struct Node {
    pub memory: Vec<u8>,
    objects: BTreeMap<u32, Object>,
    next: u32,
    salt: u32,
    lid: u16,
    gid: [u8; 16],
}

pub struct World {
    pub prng: Prng,
    pub nodes: Vec<Node>,
    pub directory: BTreeMap<(u32, Name), Value>,
    has_lids: bool,
    /// Processes begin on one node: with one GID, as long as none is restarted.
    shares: bool,
}

impl World {
    pub fn new(prng: Prng, nodes: usize) -> Self {
        let mut world = Self {
            prng,
            nodes: Vec::new(),
            directory: BTreeMap::new(),
            has_lids: false,
            shares: false,
        };
        world.has_lids = world.prng.chance(50);
        world.shares = world.prng.chance(50);
        for _ in 0..nodes {
            let memory = vec![0; MEMORY];
            let objects = BTreeMap::new();
            world.nodes.push(Node { memory, objects, next: 1, salt: 0, lid: 0, gid: [0; 16] });
        }
        for node in 0..nodes {
            world.restart(node);
        }
        if world.shares {
            let gid = world.nodes[0].gid;
            world.nodes.iter_mut().for_each(|node| node.gid = gid);
        }
        world
    }

    /// The process is restored: its objects are gone, without a destroy.
    pub fn restart(&mut self, node: usize) {
        let (salt, gid) = (self.prng.bits() as u32, self.prng.bits());
        let at = &mut self.nodes[node];
        at.objects.clear();
        (at.next, at.salt) = (1, salt);
        at.lid = if self.has_lids { (salt as u16 & 0xFF) << 4 | node as u16 | 0x1000 } else { 0 };
        at.gid[..8].copy_from_slice(&gid.to_le_bytes());
    }

    /// Nothing is under way: assert it.
    pub fn check_quiet(&self) {
        for node in &self.nodes {
            for object in node.objects.values() {
                if let Object::Qp(qp) = object
                    && qp.spec.kind == IBV_QPT_RC
                {
                    assert!(qp.sends.is_empty(), "V7: a request is under way after the drain");
                }
            }
        }
    }

    fn at(&self, address: &AhAttr) -> impl Iterator<Item = usize> {
        let is_there = |node: &Node| match self.has_lids {
            true => node.lid == address.dlid,
            false => node.gid == address.dgid.0,
        };
        (0..self.nodes.len()).filter(move |&at| is_there(&self.nodes[at]))
    }

    fn handles(&self, node: usize) -> Vec<u32> {
        let is_busy = |object: &Object| matches!(object, Object::Qp(qp) if !qp.sends.is_empty());
        let objects = self.nodes[node].objects.iter();
        objects.filter(|(_, object)| is_busy(object)).map(|(&handle, _)| handle).collect()
    }

    /// One queue pair moves.
    pub fn step(&mut self) {
        let node = self.prng.below(self.nodes.len());
        let busy = self.handles(node);
        if busy.is_empty() {
            return;
        }
        let handle = self.prng.pick(&busy);
        let qp = self.nodes[node].qp(handle);
        let next = qp.sends.iter().position(|request| !request.is_done);
        let can_complete = qp.sends.front().is_some_and(|request| request.is_done);
        if can_complete && self.prng.chance(40) {
            self.complete(node, handle, IBV_WC_SUCCESS);
        } else if let Some(next) = next {
            self.execute(node, handle, next);
        }
    }

    fn complete(&mut self, node: usize, handle: u32, status: u32) {
        let qp = self.nodes[node].qp(handle);
        let Some(request) = qp.sends.pop_front() else { return };
        let (cq, qpn) = (qp.spec.send_cq, qp.qpn);
        if request.is_signalled || status != IBV_WC_SUCCESS {
            let completion =
                Completion { wr_id: request.id, status, qp_num: qpn, ..Completion::default() };
            self.nodes[node].push(cq, completion);
        }
    }

    /// The connection has failed.
    fn fail(&mut self, node: usize, handle: u32, status: u32) {
        self.complete(node, handle, status);
        self.flush(node, handle);
    }

    fn flush(&mut self, node: usize, handle: u32) {
        self.nodes[node].qp(handle).state = IBV_QPS_ERR;
        while !self.nodes[node].qp(handle).sends.is_empty() {
            self.complete(node, handle, IBV_WC_WR_FLUSH_ERR);
        }
        while let Some((id, _)) = self.nodes[node].qp(handle).receives.pop_front() {
            let (cq, qp_num) = {
                let qp = self.nodes[node].qp(handle);
                (qp.spec.recv_cq, qp.qpn)
            };
            let status = IBV_WC_WR_FLUSH_ERR;
            let completion = Completion { wr_id: id, status, qp_num, ..Completion::default() };
            self.nodes[node].push(cq, completion);
        }
    }

    fn execute(&mut self, node: usize, handle: u32, at: usize) {
        let qp = self.nodes[node].qp(handle);
        let is_connected = qp.spec.kind == IBV_QPT_RC;
        let (qpn, mut to, mut peer) = (qp.qpn, qp.to, qp.peer);
        let request = &qp.sends[at];
        let (opcode, target, imm) = (request.opcode, request.target, request.imm);
        let sges = request.sges.clone();
        let inline = request.inline.clone();
        if let Target::Datagram { ah, qpn, .. } = target {
            let Some(Object::Ah(attr)) = self.nodes[node].objects.get(&ah) else {
                panic!("no address handle {ah}")
            };
            (to, peer) = (*attr, qpn);
        }
        let there = self.at(&to).find_map(|there| {
            let found = self.nodes[there].objects.iter().find(|(_, object)| {
                matches!(object, Object::Qp(qp) if qp.qpn == peer
                    && qp.spec.kind == if is_connected { IBV_QPT_RC } else { IBV_QPT_UD }
                    && matches!(qp.state, IBV_QPS_RTR | IBV_QPS_RTS)
                    && (!is_connected || qp.peer == qpn))
            });
            found.map(|(&handle, _)| (there, handle))
        });
        if !is_connected {
            self.nodes[node].qp(handle).sends[at].is_done = true;
            if self.prng.chance(20) {
                return;
            }
        }
        let Some((there, other)) = there else { return };
        let is_write = matches!(opcode, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM);
        let is_read = opcode == IBV_WR_RDMA_READ;
        let data = match inline {
            Some(bytes) => Some(bytes),
            None if is_read => Some(Vec::new()),
            None => self.nodes[node].gather(&sges),
        };
        let Some(data) = data else { return self.fail(node, handle, IBV_WC_LOC_PROT_ERR) };
        let length: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        if let Target::Memory { address, key } = target {
            let empty = length == 0;
            let Some(found) = self.nodes[there].remote(address, length, key).or(empty.then_some(0))
            else {
                return self.fail(node, handle, REMOTE_ACCESS);
            };
            if is_read {
                let read = self.nodes[there].memory[found..][..length as usize].to_vec();
                self.nodes[node].scatter(&sges, &read);
            } else if is_write && !empty && opcode == IBV_WR_RDMA_WRITE {
                self.nodes[there].memory[found..][..data.len()].copy_from_slice(&data);
            }
        }
        if let Target::Atomic { address, key, compare_add, .. } = target {
            let Some(found) = self.nodes[there].remote(address, 8, key) else {
                return self.fail(node, handle, REMOTE_ACCESS);
            };
            let word = &mut self.nodes[there].memory[found..][..8];
            let mut old = [0; 8];
            old.copy_from_slice(word);
            let new = u64::from_le_bytes(old) + compare_add;
            word.copy_from_slice(&new.to_le_bytes());
            self.nodes[node].scatter(&sges, &old);
        }
        if !matches!(target, Target::Memory { .. } | Target::Atomic { .. })
            || opcode == IBV_WR_RDMA_WRITE_WITH_IMM
        {
            let with_data = opcode != IBV_WR_RDMA_WRITE_WITH_IMM;
            let spec = self.nodes[there].qp(other).spec;
            let Some((id, into)) = self.nodes[there].receives(other).pop_front() else { return };
            if !with_data && let Target::Memory { address, key } = target {
                let found = self.nodes[there].remote(address, length, key).unwrap_or(0);
                self.nodes[there].memory[found..][..data.len()].copy_from_slice(&data);
            }
            let room: u64 = into.iter().map(|sge| u64::from(sge.length)).sum();
            let mut completion = Completion {
                wr_id: id,
                opcode: if with_data { IBV_WC_RECV } else { IBV_WC_RECV_RDMA_WITH_IMM },
                byte_len: data.len() as u32,
                imm_data: imm,
                qp_num: peer,
                ..Completion::default()
            };
            if with_data && room < data.len() as u64 {
                completion.status = IBV_WC_LOC_LEN_ERR;
                self.nodes[there].push(spec.recv_cq, completion);
                self.flush(there, other);
                return self.fail(node, handle, REMOTE_INVALID_REQUEST);
            }
            if with_data {
                self.nodes[there].scatter(&into, &data);
            }
            self.nodes[there].push(spec.recv_cq, completion);
        }
        self.nodes[node].qp(handle).sends[at].is_done = true;
    }
}

impl Node {
    fn add(&mut self, object: Object) -> u32 {
        self.next += 1;
        self.objects.insert(self.next, object);
        self.next
    }

    fn remove(&mut self, handle: u32) -> Outcome<()> {
        let gone = self.objects.remove(&handle);
        assert!(gone.is_some(), "V9: {handle} is destroyed and does not exist");
        Ok(())
    }

    fn qp(&mut self, handle: u32) -> &mut Qp {
        match self.objects.get_mut(&handle) {
            Some(Object::Qp(qp)) => qp,
            _ => panic!("{handle} is no queue pair"),
        }
    }

    fn receives(&mut self, handle: u32) -> &mut VecDeque<(u64, Vec<Sge>)> {
        match self.qp(handle).spec.srq {
            Some(srq) => match self.objects.get_mut(&srq) {
                Some(Object::Srq { receives, .. }) => receives,
                _ => panic!("{srq} is no shared receive queue"),
            },
            None => &mut self.qp(handle).receives,
        }
    }

    fn push(&mut self, cq: u32, completion: Completion) {
        match self.objects.get_mut(&cq) {
            Some(Object::Cq { entries, queue }) => {
                assert!(queue.len() < *entries, "V5: a completion queue is full");
                queue.push_back(completion);
            }
            _ => panic!("{cq} is no completion queue"),
        }
    }

    fn mrs(&mut self) -> impl Iterator<Item = &mut Mr> {
        self.objects.values_mut().filter_map(|object| match object {
            Object::Mr(mr) => Some(mr),
            _ => None,
        })
    }

    fn remote(&mut self, address: u64, bytes: u64, key: u32) -> Option<usize> {
        let mr = self.mrs().find(|mr| mr.keys.remote == key)?;
        let fits = address >= mr.start && address + bytes <= mr.start + mr.bytes;
        fits.then_some((address & 0xFFFF_FFFF) as usize)
    }

    fn gather(&mut self, sges: &[Sge]) -> Option<Vec<u8>> {
        let mut data = Vec::new();
        for sge in sges {
            let mr = self.mrs().find(|mr| mr.keys.local == sge.lkey)?;
            let end = sge.addr + u64::from(sge.length);
            if sge.addr < mr.start || end > mr.start + mr.bytes {
                return None;
            }
            let at = (sge.addr & 0xFFFF_FFFF) as usize;
            data.extend_from_slice(&self.memory[at..][..sge.length as usize]);
        }
        Some(data)
    }

    fn scatter(&mut self, sges: &[Sge], data: &[u8]) {
        let mut rest = data;
        for sge in sges {
            let now = rest.len().min(sge.length as usize);
            let found = self.mrs().find(|mr| mr.keys.local == sge.lkey);
            let Some(mr) = found else { panic!("no region for a receive: {sge:?}") };
            if let Some(memory) = &mut mr.capture {
                memory[..now].copy_from_slice(&rest[..now]);
            } else {
                let at = (sge.addr & 0xFFFF_FFFF) as usize;
                self.memory[at..][..now].copy_from_slice(&rest[..now]);
            }
            rest = &rest[now..];
        }
    }

    fn mr(&mut self, start: u64, bytes: u64, capture: Option<Vec<u8>>) -> (u32, Keys) {
        let keys = Keys {
            local: self.salt.wrapping_add(self.next * 256),
            remote: self.salt.wrapping_add(self.next * 256 + 77),
        };
        (self.add(Object::Mr(Mr { start, bytes, keys, capture })), keys)
    }
}

/// Calls of verbs, by the process of a node.
impl World {
    pub fn open(&mut self, node: usize) -> u32 {
        self.nodes[node].add(Object::Plain)
    }

    pub fn port(&self, node: usize) -> Port {
        let Node { lid, gid, .. } = self.nodes[node];
        Port { number: 1, lid, gids: vec![gid] }
    }

    pub fn destroy(&mut self, node: usize, handle: u32) -> Outcome<()> {
        self.nodes[node].remove(handle)
    }

    pub fn register(&mut self, node: usize, spec: &RegionSpec) -> (u32, Keys) {
        self.nodes[node].mr(spec.start, spec.bytes, None)
    }

    pub fn capture(&mut self, node: usize, bytes: u32) -> Capture<u32> {
        let memory = vec![0; bytes as usize];
        let (region, keys) = self.nodes[node].mr(0, bytes.into(), Some(memory));
        Capture { region, sge: Sge { addr: 0, length: bytes, lkey: keys.local } }
    }

    pub fn captured(&mut self, node: usize, capture: Capture<u32>, bytes: u32) -> Vec<u8> {
        match self.nodes[node].objects.remove(&capture.region) {
            Some(Object::Mr(Mr { capture: Some(mut memory), .. })) => {
                memory.truncate(bytes as usize);
                memory
            }
            _ => panic!("no capture"),
        }
    }

    pub fn create_cq(&mut self, node: usize, entries: u32) -> u32 {
        self.nodes[node].add(Object::Cq { entries: entries as usize, queue: VecDeque::new() })
    }

    pub fn create_srq(&mut self, node: usize, attr: &SrqAttr) -> u32 {
        let max = attr.max_wr as usize;
        self.nodes[node].add(Object::Srq { max, receives: VecDeque::new() })
    }

    pub fn create_ah(&mut self, node: usize, attr: &AhAttr) -> u32 {
        self.nodes[node].add(Object::Ah(*attr))
    }

    pub fn create_qp(&mut self, node: usize, spec: &QpSpec<u32>) -> (u32, u32) {
        let at = &mut self.nodes[node];
        // Numbers of different nodes may be the same.
        let of_process = if self.shares { (node as u32) << 12 } else { 0 };
        let qpn = 0x11 + (at.salt & 7) + at.next + of_process;
        let (sends, receives) = (VecDeque::new(), VecDeque::new());
        let to = AhAttr::default();
        let spec = *spec;
        let qp = Qp { qpn, state: IBV_QPS_RESET, spec, peer: 0, to, sends, receives };
        (at.add(Object::Qp(Box::new(qp))), qpn)
    }

    pub fn modify_qp(&mut self, node: usize, handle: u32, attr: &QpAttr, mask: u32) {
        let qp = self.nodes[node].qp(handle);
        if mask & IBV_QP_DEST_QPN != 0 {
            assert_eq!(attr.dest_qp_num >> 23, 0, "V1: a virtual number reaches the adapter");
            qp.peer = attr.dest_qp_num;
        }
        if mask & IBV_QP_AV != 0 {
            qp.to = attr.ah_attr;
        }
        if mask & IBV_QP_STATE != 0 {
            qp.state = attr.qp_state;
            if attr.qp_state == IBV_QPS_ERR {
                self.flush(node, handle);
            }
        }
    }

    pub fn post_send(&mut self, node: usize, handle: u32, send: &Send<'_, u32>) -> Outcome<()> {
        let is_inline = send.flags & IBV_SEND_INLINE != 0;
        let at = &mut self.nodes[node];
        let mut bytes = Vec::new();
        if is_inline {
            for sge in send.sges {
                let from = (sge.addr & 0xFFFF_FFFF) as usize;
                bytes.extend_from_slice(&at.memory[from..][..sge.length as usize]);
            }
        }
        let qp = at.qp(handle);
        assert_eq!(qp.state, IBV_QPS_RTS, "a send where none may be posted");
        if qp.sends.len() >= qp.spec.cap.max_send_wr as usize {
            return Err(Errno::FULL);
        }
        qp.sends.push_back(Request {
            id: send.id,
            opcode: send.opcode,
            is_signalled: qp.spec.signal_all || send.flags & IBV_SEND_SIGNALED != 0,
            imm: send.imm,
            sges: send.sges.to_vec(),
            inline: is_inline.then_some(bytes),
            target: send.target,
            is_done: false,
        });
        Ok(())
    }

    pub fn post_receive(&mut self, node: usize, handle: u32, id: u64, sges: &[Sge]) -> Outcome<()> {
        let qp = self.nodes[node].qp(handle);
        assert_ne!(qp.state, IBV_QPS_RESET, "a receive where none may be posted");
        if qp.receives.len() >= qp.spec.cap.max_recv_wr as usize {
            return Err(Errno::FULL);
        }
        qp.receives.push_back((id, sges.to_vec()));
        Ok(())
    }

    pub fn post_srq(&mut self, node: usize, handle: u32, id: u64, sges: &[Sge]) -> Outcome<()> {
        match self.nodes[node].objects.get_mut(&handle) {
            Some(Object::Srq { max, receives }) if receives.len() < *max => {
                receives.push_back((id, sges.to_vec()));
                Ok(())
            }
            _ => Err(Errno::FULL),
        }
    }

    pub fn poll(&mut self, node: usize, handle: u32, into: &mut [Completion]) -> usize {
        let most = self.prng.below(into.len() + 1);
        match self.nodes[node].objects.get_mut(&handle) {
            Some(Object::Cq { queue, .. }) => {
                let count = most.max(1).min(queue.len());
                for (place, completion) in into.iter_mut().zip(queue.drain(..count)) {
                    *place = completion;
                }
                count
            }
            _ => panic!("{handle} is no completion queue"),
        }
    }
}
