//! From parameters to a process that others can talk to.

use crate::checkpoint::state::LogFullReaction;
use crate::checkpoint::thread;
use crate::engine::acknowledging::ACKNOWLEDGE_AFTER;
use crate::engine::detached_sends;
use crate::engine::driver_state::Driver;
use crate::engine::host::EngineHost;
use crate::engine::shared;
use crate::engine::transport_set::TransportSet;
use crate::engine::wait_policy::WaitPolicy;
use crate::ffi::config::{JobPlace, TextParameters};
use crate::ffi::table::{Config, Glue, JobInfo};
use crate::ffi::verbose;
use crate::lifecycle::report;
use crate::os::idle_processor;
use crate::os::memory;
use crate::payload_log::budget::budget;
use crate::payload_log::cost::LogCost;
use crate::payload_log::memory::LogMemory;
use crate::peers::endpoint::Endpoint;
use crate::peers::table::{Peers, is_numbered_by_mpirun};
use crate::peers::transport_setup::TransportSetup;
use crate::progress::progress_thread;
use rustbtl_checkpoint::{LogLimits, PayloadLog};
use rustbtl_coordination::{LocalPeer, SetPolicy, fingerprint, parse_set_file, set_of};
use rustbtl_fragments::engine::Engine;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use std::path::PathBuf;

/// Segments that a log's budget is good for, at least.
const SEGMENTS_MIN: u64 = 32;

/// Of the spill file so much is kept for reuse, where the budget is smaller.
const SPILL_KEPT_BYTES: u64 = 256 << 20;

/// What is left to do once the other processes' endpoints can be had, and for later.
pub struct Started {
    /// Own endpoint, encoded.
    pub endpoint: Vec<u8>,
    /// Have the kernel use huge pages before a snapshot is taken.
    huge_pages: bool,
    /// What clocks give that is recorded.
    recorded: thread::Recorded,
    /// What a log that is nearly full asks for.
    log_full: LogFullReaction,
    /// How much is recorded of files, and where Open MPI has its own.
    files: (u64, Option<PathBuf>),
    /// How transports are opened.
    pub transport_setup: TransportSetup,
    /// Processes of this node.
    local: Vec<PeerId>,
    /// Processes of the own set, where the policy alone names them.
    members: Option<Vec<PeerId>>,
    /// Directory of the report.
    pub report: Option<PathBuf>,
}

/// The policy's names and this process' set.
struct Sets {
    set: SetId,
    /// All processes of the set; `None`: those of this node that say they are in it.
    members: Option<Vec<PeerId>>,
    fingerprint: u64,
    text: String,
    /// Each set is all processes of a node.
    are_nodes: bool,
}

fn choose_set(glue: &Glue, sets: &str, me: PeerId, size: u32, place: &JobPlace) -> Sets {
    let policy = SetPolicy::parse(sets)
        .unwrap_or_else(|error| glue.fatal("bad-sets", &[sets, &error.to_string()]));
    let file = policy.path().map(|path| {
        let read = std::fs::read_to_string(path)
            .unwrap_or_else(|error| glue.fatal("set-file", &[path, &error.to_string()]));
        parse_set_file(&read, size)
            .unwrap_or_else(|error| glue.fatal("set-file", &[path, &error.to_string()]))
    });
    let local: Vec<LocalPeer<'_>> = place
        .ranks
        .iter()
        .zip(&place.localities)
        .map(|(&rank, locality)| LocalPeer { rank, locality: locality.as_deref() })
        .collect();
    let placed = set_of(&policy, me, &local, file.as_deref())
        .unwrap_or_else(|error| glue.fatal("bad-sets", &[sets, &error.to_string()]));
    let fingerprint = fingerprint(&policy, size, file.as_deref());
    let members = match (&policy, file) {
        (SetPolicy::All, _) => Some((0..size).map(PeerId).collect()),
        (_, Some(sets)) => {
            let all = sets.iter().zip(0..);
            Some(all.filter(|&(&set, _)| set == placed.set).map(|(_, rank)| PeerId(rank)).collect())
        }
        _ => None,
    };
    let (text, are_nodes) = (policy.to_string(), policy == SetPolicy::Node);
    Sets { set: placed.set, members, fingerprint, text, are_nodes }
}

/// The log, with a place to spill to that was tried.
fn make_log(
    glue: &Glue,
    config: &Config,
    texts: &TextParameters,
    rank: u32,
    place: &JobPlace,
) -> PayloadLog<LogMemory> {
    let ranks = place.ranks.len() as u32;
    let budget_bytes = budget(&texts.budget, memory::node_bytes(), ranks)
        .unwrap_or_else(|error| glue.fatal("bad-log-budget", &[&texts.budget, &error.to_string()]));
    glue.verbose(verbose::INFO, || {
        format!("payload log: {budget_bytes} bytes of memory ({})", texts.budget)
    });
    let directory = match &texts.spill[..] {
        "none" => None,
        "" => Some(place.session.clone().unwrap_or_else(std::env::temp_dir)),
        path => Some(PathBuf::from(path)),
    };
    let mut memory = LogMemory::new(directory.clone(), rank);
    if let Some(directory) = directory
        && let Err(error) = memory.open_spill()
    {
        glue.fatal("spill-dir", &[&directory.display().to_string(), &error.to_string()]);
    }
    let limits = LogLimits {
        budget_bytes,
        // A small budget is spent in small steps, so that it is seen in time that it comes to its
        // end.
        segment_bytes_max: config.log_segment_max.min(budget_bytes / SEGMENTS_MIN) as usize,
        // What was trimmed is kept: none of the budget is ever given back. What was spilled is kept
        // below a small budget, too.
        free_bytes_max: budget_bytes.max(SPILL_KEPT_BYTES),
        ..LogLimits::default()
    };
    let mut log = PayloadLog::new(memory, limits);
    if config.log_prefault > 0 {
        log.prefault(config.log_prefault);
    }
    log
}

/// A panic must not unwind into C: say what happened and where, then abort.
fn abort_on_panic(rank: u32) {
    std::panic::set_hook(Box::new(move |info| {
        eprintln!("vprotocol correlated: internal error in rank {rank}: {info}");
        std::process::abort();
    }));
}

/// Everything up to the own endpoint.
///
/// # Safety
/// `config` and `job` are as glue.h says.
pub unsafe fn start(glue: Glue, config: &Config, job: &JobInfo) -> Started {
    let peers = Peers::new(job.me, job.size, is_numbered_by_mpirun());
    let (me, rank) = (peers.me(), PeerId(job.me.rank));
    abort_on_panic(rank.0);
    // SAFETY: the caller's promise.
    let place = unsafe { JobPlace::read(job) };
    // SAFETY: the caller's promise.
    let texts = unsafe { TextParameters::read(config) };
    verbose::set_level(config.verbose);
    let chosen = choose_set(&glue, &texts.sets, rank, job.size, &place);
    glue.verbose(verbose::INFO, || {
        let Sets { set, text, .. } = &chosen;
        format!("correlated set {set} by policy {text}; {} ranks on this node", job.local_size)
    });
    let report = report::directory(&glue, &texts.report);
    let mut log = make_log(&glue, config, &texts, rank.0, &place);
    let has_idle_processors = job.processors > job.local_size;
    idle_processor::allow(has_idle_processors);
    if has_idle_processors {
        log.memory_mut().prepare_ahead();
    }

    let transport_setup = TransportSetup::new(&glue, config, &texts, me, job.size, job.processors);
    let index = place.ranks.iter().position(|&other| other == rank).unwrap_or(0);
    let transports = TransportSet::open(&transport_setup, &glue, place.ranks.len(), index);

    let endpoint = Endpoint {
        node: place.node.clone(),
        rank: rank.0,
        size: job.size,
        pid: std::process::id(),
        incarnation: Incarnation(0),
        policy: chosen.fingerprint,
        policy_text: chosen.text.clone(),
        // Sets of spawned jobs are others than those of the first one.
        set: SetId(peers.of_rank(chosen.set.0).0),
        segment: transports.segment_name(),
        addresses: transports.addresses(),
        shared_memory: Vec::new(),
    };

    let cost = LogCost::new(config.overhead_max);
    let mut host = EngineHost::new(glue, job.threads != 0, peers, log, cost);
    host.set = endpoint.set;
    host.policy = chosen.fingerprint;
    host.sets_are_nodes = chosen.are_nodes;
    host.policy_text = chosen.text;
    host.node = place.node;
    host.transports = transports;
    let idle = WaitPolicy {
        oversubscribed: job.local_size > job.processors,
        spin: config.spin,
        spin_oversubscribed: config.spin_oversubscribed,
    };
    if has_idle_processors {
        host.share_copies();
    }
    host.record.carries = config.piggyback != 0;
    let mut engine = Engine::new(me, host.set, Incarnation(0));
    if config.verify_sends != 0 {
        engine.verify_sends();
    }
    if config.trim_received != 0 {
        engine.set_acknowledging(Some(ACKNOWLEDGE_AFTER));
    }
    let mut driver = Driver::new(engine, host, idle);
    driver.grace_ns = u64::from(config.peer_loss_timeout) * 1_000_000;
    driver.network_interval = transport_setup.network_interval(place.ranks.len());
    let others = place.ranks.iter().filter(|&&other| other != rank);
    driver.neighbours = others.map(|rank| peers.of_rank(rank.0)).collect();
    if report.is_some() || config.summary != 0 {
        driver.clock.start();
    }
    detached_sends::set_spawner(progress_thread::start);
    shared::install(driver);
    let local = place.ranks.iter().map(|rank| peers.of_rank(rank.0)).collect();
    let members = chosen.members;
    let (huge_pages, clock) = (config.huge_pages != 0, config.record_clock != 0);
    let recorded = thread::Recorded { clock, sources: clock && job.serialized == 0 };
    let endpoint = endpoint.encode();
    let log_full = LogFullReaction::of(config.log_full);
    let files = (config.file_undo_max, place.session);
    Started {
        endpoint,
        huge_pages,
        recorded,
        log_full,
        files,
        transport_setup,
        local,
        members,
        report,
    }
}

impl Started {
    /// The others' endpoints can be had: check those of this node and of rank 0, attach the
    /// segment; then checkpoints may be taken, if a guardian protects this process.
    pub fn connect(&mut self) {
        let members = self.attach();
        let endpoint = self.endpoint.clone();
        let how = (self.huge_pages, self.recorded, self.log_full);
        let files = core::mem::take(&mut self.files);
        if let Err(error) = thread::start(&self.transport_setup, members, how, files, endpoint) {
            shared::shared().glue.fatal("guardian", &[&error]);
        }
    }

    /// The processes of the own set.
    fn attach(&mut self) -> Vec<PeerId> {
        let mut driver = shared::shared().enter();
        let host = &mut driver.host;
        let (me, set) = (host.peers.me(), host.set);
        // Rank 0 stands for the nodes that this process may never talk to.
        let others = self.local.iter().copied().chain([host.peers.of_rank(0)]);
        let endpoints: Vec<(PeerId, Endpoint)> = others
            .filter(|&peer| peer != me)
            .map(|peer| (peer, host.checked_endpoint(peer)))
            .collect();
        let members = self.members.take().unwrap_or_else(|| {
            let of_set =
                endpoints.iter().filter(|(_, endpoint)| endpoint.set == set).map(|(peer, _)| *peer);
            of_set.chain([me]).collect()
        });
        if !self.transport_setup.uses_node_memory(self.local.len()) {
            return members;
        }
        let index = self.local.iter().position(|&rank| rank == me).unwrap_or(0);
        let leader = endpoints.iter().find(|(peer, _)| *peer == self.local[0]);
        let name = leader.map_or("", |(_, endpoint)| endpoint.segment.as_str());
        host.transports.attach_node(&self.transport_setup, &host.glue, name, &self.local, index);
        if host.index_of_set(&members).is_some() {
            driver.collectives.home.clone_from(&members);
            driver.collectives.home.sort_unstable();
            driver.collectives.home.dedup();
        }
        members
    }
}
