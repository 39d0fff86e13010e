//! A process that was restored from an image: everything that ties it to others is set up again.

use crate::checkpoint::parted_memory::parted_from;
use crate::checkpoint::state::{Checkpoint, Ending};
use crate::determinants::piggyback;
use crate::engine::driver_state::Driver;
use crate::engine::shared::ExclusiveGuard;
use crate::ffi::verbose;
use crate::files::epoch::Beginning;
use crate::peers::endpoint::Endpoint;
use core::sync::atomic::Ordering;
use rustbtl_coordination::control::{CheckpointId, FromRank, RankEndpoint, ToRank};
use rustbtl_coordination::quiescence::{CheckpointScope, Input};
use rustbtl_fragments::ids::{Incarnation, PeerId};
use rustbtl_process::freeze::Restored;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// In the environment: as if each restored set lay on several nodes (tests).
const PART_COLLECTIVES: &str = "RUSTBTL_PART_COLLECTIVES";
/// There the program's threads run for so long before anybody knows that.
const UNKNOWING: Duration = Duration::from_millis(50);

/// From the snapshot to a process that others can talk to. The program is still kept out.
pub(crate) fn resume_after_restart(
    checkpoint: &mut Checkpoint,
    id: CheckpointId,
    taken: &mut Option<ExclusiveGuard>,
    (new, files): (Restored, Option<Box<Beginning>>),
) {
    let Some(driver) = taken else { checkpoint.fatal("restored outside of a checkpoint") };
    let of_all = checkpoint.quiescence.scope() == Some(CheckpointScope::Global);
    // Copies that the old process had made: not ours to end.
    for (_, child) in core::mem::take(&mut checkpoint.children) {
        core::mem::forget(child);
    }
    checkpoint.covered.clear();
    checkpoint.guardian.renew();
    let (given, alone) = checkpoint.incarnation();
    let is_another_job = given == Incarnation(0);
    if let Some(files) = files {
        files.restored(is_another_job, alone);
    }
    let incarnation =
        if is_another_job { Incarnation(driver.host.incarnation.0 + 1) } else { given };
    start_replaying(driver, incarnation);
    checkpoint.begin_incarnation(incarnation);
    checkpoint.shared.glue.verbose(verbose::INFO, || {
        format!("restarted from checkpoint {id} in incarnation {}", incarnation.0)
    });
    // SAFETY: the program is kept out, so nobody is in Open MPI's runtime but its own threads.
    unsafe { (checkpoint.shared.glue.restored)() };

    let (setup, glue) = (&checkpoint.transport_setup, &checkpoint.shared.glue);
    driver.host.transports.open_networks(setup, glue, 0, incarnation);
    let endpoint = Endpoint {
        node: driver.host.node.clone(),
        rank: driver.host.peers.rank(),
        size: driver.host.peers.size(),
        pid: std::process::id(),
        incarnation,
        policy: driver.host.policy,
        policy_text: driver.host.policy_text.clone(),
        set: driver.host.set,
        segment: String::new(),
        addresses: driver.host.transports.addresses(),
        shared_memory: checkpoint.shared_memory.clone(),
    };
    checkpoint.send(&hello(driver, endpoint.encode()));
    let (endpoints, restarted) = checkpoint.endpoints();
    // In another job nobody has more than what his image holds. In the same one others may have,
    // also if all sets were rolled back: each to a checkpoint of its own, with its own record.
    checkpoint.replaying = !is_another_job;
    driver.replaying = checkpoint.replaying;
    (checkpoint.replays_open, checkpoint.replay_question) = (checkpoint.replaying, None);
    checkpoint.reconnect(driver, &endpoints, &restarted);
    // What is in the payload log others may need before the program is in MPI again.
    checkpoint.repairing = true;
    let for_tests = std::env::var_os(PART_COLLECTIVES).is_some();
    if for_tests {
        std::thread::sleep(UNKNOWING);
    }
    let parted = driver.host.index_of_set(&checkpoint.members).is_none();
    if parted || for_tests {
        driver.collectives.part();
    } else {
        // All have been restored: nobody fills in the memory any more.
        driver.collectives.go_on();
    }
    checkpoint.restore_record(driver);
    if let Some(peer) = driver.parted_by_restore() {
        let who = driver.host.describe(peer);
        driver.host.glue.fatal("parted-window", &[&who]);
    }
    let (own, here) = (&checkpoint.shared_memory, &driver.host.node);
    if let Some(other) = parted_from(own, here, driver.host.endpoints.values()) {
        let who = format!("rank {} on node {}; this one on node {here}", other.rank, other.node);
        driver.host.glue.fatal("parted-memory", &[&who]);
    }
    checkpoint.restore_verbs(id);
    driver.restore_program_clocks();
    // The loss of the old PMIx server may be noticed now.
    drop(new.muted);
    let signals = Checkpoint::signals();
    signals.restarts.fetch_add(1, Ordering::Relaxed);
    signals.requests.restored(id, of_all);
    checkpoint.restored_log();
    let me = driver.host.peers.me();
    driver.counting.restored(me);
    checkpoint.restored_drain();
    driver.host.log_cost.restart();
    checkpoint.ready = false;
    checkpoint.ending = Ending::Not;
    checkpoint.input(Input::Restored);
    // The ranks of the set may lie in another way now.
    crate::checkpoint::set_counters::choose(
        &mut checkpoint.quiescence,
        driver,
        &checkpoint.members,
    );
}

/// Transports of the process that was frozen: their descriptors and mappings are not here.
fn start_replaying(driver: &mut Driver, incarnation: Incarnation) {
    driver.host.transports.abandon();
    driver.host.pulls.clear();
    driver.host.restarted(incarnation, crate::os::process::host_name());
}

/// Who this is.
pub(crate) fn hello(driver: &Driver, endpoint: Vec<u8>) -> FromRank {
    let host = &driver.host;
    FromRank::Hello {
        rank: PeerId(host.peers.rank()),
        size: host.peers.size(),
        pid: std::process::id(),
        incarnation: host.incarnation,
        version: crate::peers::endpoint::VERSION.to_owned(),
        set: host.set,
        endpoint,
    }
}

impl Checkpoint {
    /// In which this process runs now, and whether others go on meanwhile: the first message of the
    /// guardian.
    fn incarnation(&mut self) -> (Incarnation, bool) {
        self.await_from_guardian(|message| match message {
            ToRank::Restarted { incarnation, alone } => Ok((incarnation, alone)),
            other => Err(other),
        })
    }

    /// Everybody's endpoint, and who was restarted together with this process.
    fn endpoints(&mut self) -> (Vec<RankEndpoint>, Vec<PeerId>) {
        self.await_from_guardian(|message| match message {
            ToRank::Endpoints { endpoints, restarted } => Ok((endpoints, restarted)),
            other => Err(other),
        })
    }

    /// What the new process cannot be without. The job ends if it cannot be had.
    fn await_from_guardian<T>(&mut self, wanted: impl Fn(ToRank) -> Result<T, ToRank>) -> T {
        loop {
            match self.guardian.wait(-1) {
                Ok(Some(message)) => match wanted(message) {
                    Ok(found) => return found,
                    Err(other) => self.before_endpoints(other),
                },
                Ok(None) => {}
                Err(error) => self.fatal(&format!("after the restart: {error}")),
            }
        }
    }

    /// Processes of other sets were restarted. Cards are of ranks, as others see them.
    pub(crate) fn reconnect_restarted(&mut self, endpoints: &[RankEndpoint], restarted: &[PeerId]) {
        let Ok(mut driver) = self.shared.take() else { return };
        for RankEndpoint { rank, endpoint, .. } in
            endpoints.iter().filter(|c| restarted.contains(&c.rank))
        {
            let peer = driver.host.peers.of_rank(rank.0);
            match Endpoint::decode(endpoint) {
                Ok(endpoint) if endpoint.rank == rank.0 && endpoint.set != driver.host.set => {
                    piggyback::fence(endpoint.set, endpoint.incarnation);
                    driver.reconnect_restarted(peer, endpoint);
                }
                Ok(endpoint) if endpoint.set == driver.host.set => {}
                Ok(endpoint) => {
                    self.fatal(&format!("rank {rank} gave the endpoint of {}", endpoint.rank))
                }
                Err(error) => self.fatal(&format!("endpoint of rank {rank}: {error}")),
            }
        }
        self.count_neighbours(&mut driver);
        driver.host.push();
        self.repairing = true;
    }

    /// Ranks of a lost node that go on here need processors, too.
    fn count_neighbours(&self, driver: &mut Driver) {
        let here = driver.neighbours.len() + 1;
        let processors = self.transport_setup.processors as usize;
        driver.idle.oversubscribed = here > processors;
        crate::os::idle_processor::allow(processors > here);
    }

    fn reconnect(&self, driver: &mut Driver, endpoints: &[RankEndpoint], restarted: &[PeerId]) {
        let mut known = BTreeMap::new();
        let mut digest = Sha256::new();
        for RankEndpoint { rank, endpoint, .. } in endpoints {
            digest.update(endpoint);
            match Endpoint::decode(endpoint) {
                Ok(endpoint) if endpoint.rank == rank.0 => {
                    if endpoint.set != driver.host.set {
                        piggyback::fence(endpoint.set, endpoint.incarnation);
                    }
                    known.insert(driver.host.peers.of_rank(rank.0), endpoint);
                }
                Ok(endpoint) => {
                    self.fatal(&format!("rank {rank} gave the endpoint of {}", endpoint.rank))
                }
                Err(error) => self.fatal(&format!("endpoint of rank {rank}: {error}")),
            }
        }
        let me = driver.host.peers.me();
        // Those that were here before have their own segment.
        let here = |endpoint: &Endpoint| {
            endpoint.node == driver.host.node && restarted.contains(&PeerId(endpoint.rank))
        };
        let local: Vec<PeerId> =
            known.iter().filter(|(_, endpoint)| here(endpoint)).map(|(&peer, _)| peer).collect();
        let near = known.iter().filter(|(_, endpoint)| endpoint.node == driver.host.node);
        driver.neighbours = near.map(|(&peer, _)| peer).filter(|peer| *peer != me).collect();
        driver.host.endpoints = known;
        driver.network_interval = self.transport_setup.network_interval(local.len());
        self.count_neighbours(driver);
        if self.transport_setup.uses_node_memory(local.len()) {
            // Cards hold fresh secrets: nobody outside the job can guess the name.
            digest.update(driver.host.node.as_bytes());
            let digest = digest.finalize();
            let number = digest.first_chunk().map_or(0, |bytes| u128::from_le_bytes(*bytes));
            let index = local.iter().position(|&peer| peer == me).unwrap_or(0);
            let (setup, glue) = (&self.transport_setup, &self.shared.glue);
            driver.host.transports.renew_node(setup, glue, number, &local, index);
        }
        let incarnation = driver.host.incarnation;
        let (engine, host) = (&mut driver.engine, &mut driver.host);
        engine.restarted(incarnation);
        let mut peers: BTreeSet<_> = engine.traffic().map(|(peer, ..)| peer).collect();
        peers.remove(&me);
        for peer in peers {
            let Some(endpoint) = host.endpoints.get(&peer) else {
                self.fatal(&format!("{} is not in the checkpoint", host.describe(peer)))
            };
            if endpoint.set == host.set {
                engine.readdress(host, peer);
            } else {
                let theirs = endpoint.incarnation;
                engine.peer_down(host, peer);
                engine.peer_up(host, peer, theirs);
            }
        }
        engine.flush(host);
    }
}
