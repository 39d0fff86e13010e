//! Verbs without adapters: one world in one process, with an adapter on each of its nodes.
//!
//! Everything that the specification leaves open is drawn from a seed: the order of completions of
//! different queue pairs, and how long an acknowledgement takes. Everything that it makes an error
//! is one here, as hard as possible:
//!
//! * queue pairs have equal numbers on all nodes, local and remote keys differ, LIDs are not 0;
//! * wrong keys, ranges, packet numbers and destinations are refused as an adapter would;
//! * a panic: a full completion queue, memory deregistered under a work request, memory that was
//!   touched while it belonged to one, an object of before a restart or of another node;
//! * completions of a queue pair go with it, as with mlx5: who destroys one before its last receive
//!   is reported loses buffers.
//!
//! A node that is restarted forgets all without destroying anything; [`World::live`] counts what
//! was not destroyed.

mod objects;
#[cfg(test)]
mod tests;
mod transfer;
mod verbs;

use crate::transports::verbs::api::{AsyncEvent, Gid};
use objects::Node;
use std::cell::{Ref, RefCell, RefMut};
use std::rc::Rc;

/// How the world behaves.
#[derive(Clone, Debug)]
pub struct Nature {
    /// Where its random numbers begin.
    pub seed: u64,
    /// Steps that pass with each poll of a completion queue; 0: only [`World::step`] moves time.
    pub steps_per_poll: u32,
    /// Of four steps at a queue pair with something to acknowledge, so many acknowledge.
    pub acknowledge_quarters: u32,
    /// What a queue pair takes inline.
    pub inline_bytes: u32,
    /// Ethernet in place of InfiniBand.
    pub is_ethernet: bool,
    /// RDMA READs that a queue pair answers, and may have under way, at a time.
    pub reads: u8,
}

impl Default for Nature {
    fn default() -> Self {
        Self {
            seed: 1,
            steps_per_poll: 4,
            acknowledge_quarters: 2,
            inline_bytes: 128,
            is_ethernet: false,
            reads: 4,
        }
    }
}

/// What is in the world.
struct Inside {
    nature: Nature,
    random: u64,
    nodes: Vec<Node>,
    /// Pairs of nodes between which nothing passes.
    cuts: Vec<(usize, usize)>,
    counts: Counts,
}

/// What has happened so far.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Messages that were delivered.
    pub delivered: u64,
    /// Of them, those whose sender asked for a completion.
    pub signaled: u64,
    /// Of them, those that were taken inline.
    pub inlined: u64,
    /// Attempts that found no receive buffer.
    pub no_receive: u64,
    /// Work requests that ended with an error.
    pub errors: u64,
    /// RDMA READs.
    pub reads: u64,
    /// Polls that brought something, and how many completions they brought.
    pub polls: (u64, u64),
}

/// The world: see the module's documentation.
#[derive(Clone)]
pub struct World(Rc<RefCell<Inside>>);

impl World {
    /// With so many nodes, each with one adapter, `fake0`, of one port.
    pub fn new(nodes: usize, nature: Nature) -> Self {
        let random = nature.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let nodes = (0..nodes).map(Node::new).collect();
        let counts = Counts::default();
        Self(Rc::new(RefCell::new(Inside { nature, random, nodes, cuts: Vec::new(), counts })))
    }

    fn inside(&self) -> Ref<'_, Inside> {
        self.0.borrow()
    }

    fn change(&self) -> RefMut<'_, Inside> {
        self.0.borrow_mut()
    }

    /// The verbs of a node, of its present life.
    pub fn node(&self, node: usize) -> Fake {
        let life = self.inside().nodes[node].life;
        Fake { world: self.clone(), node, life }
    }

    /// Let so many things happen: each time one, at a queue pair that is drawn.
    pub fn step(&self, times: u32) {
        for _ in 0..times {
            self.change().step();
        }
    }

    /// Objects of a node that exist: regions, queues, queue pairs, open adapters.
    pub fn live(&self, node: usize) -> usize {
        self.inside().nodes[node].live()
    }

    /// Its process dies, and another one starts: nothing is destroyed by anybody but the kernel.
    pub fn restart(&self, node: usize) {
        let mut inside = self.change();
        let life = inside.nodes[node].life + 1;
        inside.nodes[node] = Node::new(node);
        inside.nodes[node].life = life;
    }

    /// Its port goes up or down.
    pub fn set_port(&self, node: usize, up: bool) {
        let node = &mut self.change().nodes[node];
        node.port_up = up;
        node.events.push_back(match up {
            true => AsyncEvent::PortActive(1),
            false => AsyncEvent::PortDown(1),
        });
    }

    /// Its adapter is pulled out: everything posted is flushed, nothing works any more.
    pub fn remove_device(&self, node: usize) {
        let mut inside = self.change();
        inside.nodes[node].port_up = false;
        inside.nodes[node].removed = true;
        inside.nodes[node].events.push_back(AsyncEvent::DeviceFatal);
        let numbers: Vec<u32> = inside.nodes[node].qps.keys().copied().collect();
        for number in numbers {
            inside.fail(node, number);
        }
    }

    /// Nothing passes between two nodes any more, or again.
    pub fn set_cut(&self, one: usize, other: usize, cut: bool) {
        let cuts = &mut self.change().cuts;
        cuts.retain(|&pair| pair != (one, other) && pair != (other, one));
        if cut {
            cuts.push((one, other));
        }
    }

    /// From now on acknowledgements come rarely (0) or at once (4).
    pub fn set_acknowledge_quarters(&self, quarters: u32) {
        self.change().nature.acknowledge_quarters = quarters;
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.inside().counts
    }

    /// RDMA READs that a node has answered.
    pub fn answered(&self, node: usize) -> u64 {
        self.inside().nodes[node].answered
    }

    /// Receives that are posted on a node.
    pub fn posted_receives(&self, node: usize) -> usize {
        self.inside().nodes[node].srqs.values().map(|srq| srq.posted.len()).sum()
    }

    /// Delivered on a node and not yet acknowledged to it.
    pub fn unacknowledged(&self, node: usize) -> usize {
        self.inside().nodes[node].qps.values().map(|qp| qp.unacknowledged()).sum()
    }
}

/// LID of a node's port.
fn lid_of(node: usize) -> u16 {
    0x101 + node as u16
}

/// GID of a node's port.
fn gid_of(node: usize) -> Gid {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xFE, 0x80]);
    gid[14..].copy_from_slice(&lid_of(node).to_be_bytes());
    gid
}

/// The verbs of one node.
#[derive(Clone)]
pub struct Fake {
    world: World,
    node: usize,
    /// Of the node's process, when this was made.
    life: u32,
}

/// An object of a node: its number, and in which life of the node it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle {
    number: u32,
    life: u32,
}
