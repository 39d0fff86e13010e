//! A process that was made from a picture: everything that ties it to others is made anew.

use crate::checkpoint::state::{Checkpoint, Ending};
use crate::determinants::piggyback;
use crate::engine::driver_state::Process;
use crate::engine::shared::Taken;
use crate::ffi::verbose;
use crate::peers::endpoint::Endpoint;
use core::sync::atomic::Ordering;
use rustbtl_coordination::control::{CheckpointId, FromRank, RankEndpoint, ToRank};
use rustbtl_coordination::quiescence::Input;
use rustbtl_fragments::ids::{Incarnation, PeerId};
use rustbtl_process::freeze::Restored;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// From the picture to a process that others can talk to. The program is still kept out.
pub(crate) fn go_on(
    checkpoint: &mut Checkpoint,
    line: CheckpointId,
    taken: &mut Option<Taken>,
    new: Restored,
) {
    let Some(process) = taken else { checkpoint.fatal("restored out of a line") };
    // Copies that the old process had made: not ours to end.
    for (_, child) in core::mem::take(&mut checkpoint.children) {
        core::mem::forget(child);
    }
    checkpoint.covered.clear();
    checkpoint.guardian.renew();
    let incarnation = match checkpoint.incarnation() {
        Incarnation(0) => Incarnation(process.host.incarnation.0 + 1),
        given => given,
    };
    leave_behind(process, incarnation);
    checkpoint.begin_life(incarnation);
    checkpoint.shared.glue.verbose(verbose::INFO, || {
        format!("restarted from checkpoint {line} in incarnation {}", incarnation.0)
    });
    // SAFETY: the program is kept out, so nobody is in Open MPI's runtime but its own threads.
    unsafe { (checkpoint.shared.glue.restored)() };

    let (setup, glue) = (&checkpoint.transport_setup, &checkpoint.shared.glue);
    process.host.transports.open_networks(setup, glue, 0, incarnation);
    let card = Endpoint {
        node: process.host.node.clone(),
        rank: process.host.peers.rank(),
        size: process.host.peers.size(),
        pid: std::process::id(),
        incarnation,
        policy: process.host.policy,
        policy_text: process.host.policy_text.clone(),
        set: process.host.set,
        segment: String::new(),
        addresses: process.host.transports.addresses(),
    };
    checkpoint.say(&hello(process, card.encode()));
    let (cards, restarted) = checkpoint.cards();
    checkpoint.behind = restarted.len() < cards.len();
    process.behind = checkpoint.behind;
    checkpoint.reconnect(process, &cards, &restarted);
    checkpoint.restore_record(process);
    process.restore_clock();
    // The loss of the old PMIx server may be noticed now.
    drop(new.muted);
    let signals = Checkpoint::signals();
    signals.restarts.fetch_add(1, Ordering::Relaxed);
    signals.requests.restored(line);
    checkpoint.restored_log();
    checkpoint.ready = false;
    checkpoint.ending = Ending::Not;
    checkpoint.input(Input::Restored);
    // The ranks of the set may lie in another way now.
    crate::checkpoint::set_counters::choose(&mut checkpoint.silence, process, &checkpoint.members);
}

/// Transports of the process that was pictured: their descriptors and mappings are not here.
fn leave_behind(process: &mut Process, incarnation: Incarnation) {
    process.host.transports.abandon();
    process.host.restarted(incarnation, crate::os::process::host_name());
}

/// Who this is.
pub(crate) fn hello(process: &Process, card: Vec<u8>) -> FromRank {
    let host = &process.host;
    FromRank::Hello {
        rank: PeerId(host.peers.rank()),
        size: host.peers.size(),
        pid: std::process::id(),
        incarnation: host.incarnation,
        version: crate::peers::endpoint::VERSION.to_owned(),
        set: host.set,
        endpoint: card,
    }
}

impl Checkpoint {
    /// In which this process runs now, as the guardian says first.
    fn incarnation(&mut self) -> Incarnation {
        self.await_from_guardian(|message| match message {
            ToRank::Restarted { incarnation } => Ok(incarnation),
            other => Err(other),
        })
    }

    /// Everybody's card, and who was started again together with this process.
    fn cards(&mut self) -> (Vec<RankEndpoint>, Vec<PeerId>) {
        self.await_from_guardian(|message| match message {
            ToRank::Endpoints { endpoints: cards, restarted } => Ok((cards, restarted)),
            other => Err(other),
        })
    }

    /// What the new process cannot be without. The job ends if it cannot be had.
    fn await_from_guardian<T>(&mut self, wanted: impl Fn(ToRank) -> Result<T, ToRank>) -> T {
        loop {
            match self.guardian.wait(-1) {
                Ok(Some(message)) => match wanted(message) {
                    Ok(found) => return found,
                    Err(other) => self.before_cards(other),
                },
                Ok(None) => {}
                Err(error) => self.fatal(&format!("after the restart: {error}")),
            }
        }
    }

    /// Processes of other sets were started again. Cards are of ranks, as others see them.
    pub(crate) fn meet_again(&mut self, cards: &[RankEndpoint], restarted: &[PeerId]) {
        let Ok(mut process) = self.shared.take() else { return };
        for RankEndpoint { rank, endpoint: card, .. } in
            cards.iter().filter(|c| restarted.contains(&c.rank))
        {
            let peer = process.host.peers.of_rank(rank.0);
            match Endpoint::decode(card) {
                Ok(card) if card.rank == rank.0 && card.set != process.host.set => {
                    piggyback::fence(card.set, card.incarnation);
                    process.meet_again(peer, card);
                }
                Ok(card) if card.set == process.host.set => {}
                Ok(card) => self.fatal(&format!("rank {rank} gave the card of {}", card.rank)),
                Err(error) => self.fatal(&format!("card of rank {rank}: {error}")),
            }
        }
        self.count_neighbours(&mut process);
        process.host.push();
        self.repairing = true;
    }

    /// Ranks of a lost node that go on here need processors, too.
    fn count_neighbours(&self, process: &mut Process) {
        let here = process.neighbours.len() + 1;
        process.idle.oversubscribed = here > self.transport_setup.processors as usize;
    }

    fn reconnect(&self, process: &mut Process, cards: &[RankEndpoint], restarted: &[PeerId]) {
        let mut known = BTreeMap::new();
        let mut digest = Sha256::new();
        for RankEndpoint { rank, endpoint: card, .. } in cards {
            digest.update(card);
            match Endpoint::decode(card) {
                Ok(card) if card.rank == rank.0 => {
                    if card.set != process.host.set {
                        piggyback::fence(card.set, card.incarnation);
                    }
                    known.insert(process.host.peers.of_rank(rank.0), card);
                }
                Ok(card) => self.fatal(&format!("rank {rank} gave the card of {}", card.rank)),
                Err(error) => self.fatal(&format!("card of rank {rank}: {error}")),
            }
        }
        let me = process.host.peers.me();
        // Those that were here before have their own segment.
        let here = |card: &Endpoint| {
            card.node == process.host.node && restarted.contains(&PeerId(card.rank))
        };
        let local: Vec<PeerId> =
            known.iter().filter(|(_, card)| here(card)).map(|(&peer, _)| peer).collect();
        let near = known.iter().filter(|(_, card)| card.node == process.host.node);
        process.neighbours = near.map(|(&peer, _)| peer).filter(|peer| *peer != me).collect();
        process.host.cards = known;
        process.network_interval = self.transport_setup.network_interval(local.len());
        self.count_neighbours(process);
        if self.transport_setup.uses_node_memory(local.len()) {
            // Cards hold fresh secrets: nobody outside the job can guess the name.
            digest.update(process.host.node.as_bytes());
            let digest = digest.finalize();
            let number = digest.first_chunk().map_or(0, |bytes| u128::from_le_bytes(*bytes));
            let index = local.iter().position(|&peer| peer == me).unwrap_or(0);
            let (setup, glue) = (&self.transport_setup, &self.shared.glue);
            process.host.transports.renew_node(setup, glue, number, &local, index);
        }
        let incarnation = process.host.incarnation;
        let (engine, host) = (&mut process.engine, &mut process.host);
        engine.restarted(incarnation);
        let mut peers: BTreeSet<_> = engine.traffic().map(|(peer, ..)| peer).collect();
        peers.remove(&me);
        for peer in peers {
            let Some(card) = host.cards.get(&peer) else {
                self.fatal(&format!("{} is not in the line", host.describe(peer)))
            };
            if card.set == host.set {
                engine.readdress(host, peer);
            } else {
                let theirs = card.incarnation;
                engine.peer_down(host, peer);
                engine.peer_up(host, peer, theirs);
            }
        }
        engine.flush(host);
    }
}
