//! From parameters to a process that others can talk to.

use crate::checkpoint::thread;
use crate::engine::driver;
use crate::engine::driver::Process;
use crate::engine::host::EngineHost;
use crate::ffi::table::{Config, Glue, Job};
use crate::lifecycle::report;
use crate::payload_log::memory::LogMemory;
use crate::peers::endpoint::Card;
use crate::peers::table::Peers;
use crate::peers::transport_setup::Opening;
use crate::progress::wait::Idle;
use crate::transports::shm::{Segment, Shm};
use core::ffi::{CStr, c_char};
use rustbtl_checkpoint::{LogLimits, PayloadLog};
use rustbtl_coordination::{LocalPeer, SetPolicy, fingerprint, parse_set_file, set_of};
use rustbtl_fragments::engine::Engine;
use rustbtl_fragments::ids::{Incarnation, PeerId, SetId};
use std::path::PathBuf;

/// Segments that a log's budget is good for, at least.
const SEGMENTS_MIN: u64 = 32;

/// What is left to do once the other processes' cards can be had, and for later.
pub struct Started {
    /// Own card, encoded.
    pub card: Vec<u8>,
    /// The node's segment, at the rank that made it.
    segment: Option<Segment>,
    /// Have the kernel use huge pages before a picture is taken.
    huge_pages: bool,
    /// What clocks give that is recorded.
    recorded: thread::Recorded,
    /// How transports are opened.
    pub opening: Opening,
    /// Processes of this node.
    local: Vec<PeerId>,
    /// Processes of the own set, where the policy alone names them.
    members: Option<Vec<PeerId>>,
    /// Directory of the report.
    pub report: Option<PathBuf>,
}

/// A string of C's, "" for null.
///
/// # Safety
/// Null or a C string.
unsafe fn text(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

/// The parameters that are strings.
pub struct Texts {
    sets: String,
    report: String,
    spill: String,
    /// How large messages cross the node.
    pub single_copy: String,
    /// Directory of the segment.
    pub shm_directory: String,
    /// Networks to use.
    pub if_include: String,
    /// Networks not to use.
    pub if_exclude: String,
}

impl Texts {
    /// # Safety
    /// `config` is as glue.h says.
    unsafe fn read(config: &Config) -> Self {
        // SAFETY: the caller's promise: null or C strings.
        let read = |from| unsafe { text(from) };
        Self {
            sets: read(config.sets),
            report: read(config.report),
            spill: read(config.log_spill_dir),
            single_copy: read(config.single_copy),
            shm_directory: read(config.shm_directory),
            if_include: read(config.tcp_if_include),
            if_exclude: read(config.tcp_if_exclude),
        }
    }
}

/// What C says about this process, in Rust's types.
pub(crate) struct Place {
    node: String,
    session: Option<PathBuf>,
    ranks: Vec<PeerId>,
    localities: Vec<Option<String>>,
}

impl Place {
    /// # Safety
    /// `job` is as glue.h says.
    unsafe fn read(job: &Job) -> Self {
        let count = job.local_size as usize;
        // SAFETY: glue.h: `local_size` ranks and as many places.
        let ranks = unsafe { core::slice::from_raw_parts(job.local_ranks, count) };
        // SAFETY: as above.
        let places = unsafe { core::slice::from_raw_parts(job.local_places, count) };
        let place = |&from: &*const c_char| {
            // SAFETY: null or a C string.
            (!from.is_null()).then(|| unsafe { text(from) })
        };
        // SAFETY: null or a C string.
        let session = unsafe { text(job.session_dir) };
        Self {
            // SAFETY: null or a C string.
            node: unsafe { text(job.node) },
            session: (!session.is_empty()).then(|| PathBuf::from(session)),
            ranks: ranks.iter().map(|&rank| PeerId(rank)).collect(),
            localities: places.iter().map(place).collect(),
        }
    }
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

fn choose_set(glue: &Glue, sets: &str, me: PeerId, size: u32, place: &Place) -> Sets {
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
    spill: &str,
    rank: u32,
    place: &Place,
) -> PayloadLog<LogMemory> {
    let directory = match spill {
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
        budget_bytes: config.log_budget,
        // A small budget is spent in small steps, so that it is seen in time that it comes to its
        // end.
        segment_bytes_max: config.log_segment_max.min(config.log_budget / SEGMENTS_MIN) as usize,
        free_bytes_max: LogLimits::default().free_bytes_max.max(config.log_ready),
        ..LogLimits::default()
    };
    let mut log = PayloadLog::new(memory, limits);
    if config.log_ready > 0 {
        log.make_ready(config.log_ready);
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

/// Everything up to the own card.
///
/// # Safety
/// `config` and `job` are as glue.h says.
pub unsafe fn start(glue: Glue, config: &Config, job: &Job) -> Started {
    let peers = Peers::new(job.me, job.size);
    let (me, rank) = (peers.me(), PeerId(job.me.rank));
    abort_on_panic(rank.0);
    // SAFETY: the caller's promise.
    let place = unsafe { Place::read(job) };
    // SAFETY: the caller's promise.
    let texts = unsafe { Texts::read(config) };
    let chosen = choose_set(&glue, &texts.sets, rank, job.size, &place);
    let report = report::directory(&glue, &texts.report);
    let mut log = make_log(&glue, config, &texts.spill, rank.0, &place);
    let has_idle_processors = job.processors > job.local_size;
    if has_idle_processors {
        log.memory_mut().prepare_ahead();
    }

    let opening = Opening::new(&glue, config, &texts, me, job.size, job.processors);
    let index = place.ranks.iter().position(|&other| other == rank).unwrap_or(0);
    let use_shm = opening.uses_shm(place.ranks.len());
    let segment = (use_shm && index == 0).then(|| opening.segment(&glue, place.ranks.len(), index));
    let tcp = opening.tcp(&glue, place.ranks.len(), Incarnation(0));

    let card = Card {
        node: place.node.clone(),
        rank: rank.0,
        size: job.size,
        pid: std::process::id(),
        incarnation: Incarnation(0),
        policy: chosen.fingerprint,
        policy_text: chosen.text.clone(),
        // Sets of spawned jobs are others than those of the first one.
        set: SetId(peers.of_rank(chosen.set.0).0),
        segment: segment.as_ref().map(|s| s.name().to_owned()).unwrap_or_default(),
        tcp: tcp.as_ref().map(|tcp| tcp.card().encode()).unwrap_or_default(),
    };

    let mut host = EngineHost::new(glue, job.threads != 0, peers, log);
    host.set = card.set;
    host.policy = chosen.fingerprint;
    host.sets_are_nodes = chosen.are_nodes;
    host.policy_text = chosen.text;
    host.node = place.node;
    host.tcp = tcp;
    let idle = Idle {
        oversubscribed: job.local_size > job.processors,
        spin: config.spin,
        spin_oversubscribed: config.spin_oversubscribed,
    };
    if has_idle_processors {
        host.share_copies();
    }
    host.checks_content = config.check_content != 0;
    host.record.carries = config.carry != 0;
    let mut engine = Engine::new(me, host.set, Incarnation(0));
    if host.checks_content {
        engine.check_content();
    }
    let mut process = Process::new(engine, host, idle);
    process.grace_ns = u64::from(config.dead_peer_grace) * 1_000_000;
    process.tcp_interval = opening.tcp_interval(place.ranks.len());
    let others = place.ranks.iter().filter(|&&other| other != rank);
    process.neighbours = others.map(|rank| peers.of_rank(rank.0)).collect();
    if report.is_some() || config.summary != 0 {
        process.clock.start();
    }
    driver::install(process);
    let local = place.ranks.iter().map(|rank| peers.of_rank(rank.0)).collect();
    let members = chosen.members;
    let (huge_pages, clock) = (config.huge_pages != 0, config.record_clock != 0);
    let recorded = thread::Recorded { clock, dates: clock && job.serialized == 0 };
    let card = card.encode();
    Started { card, segment, huge_pages, recorded, opening, local, members, report }
}

impl Started {
    /// The others' cards can be had: check those of this node and of rank 0, attach the segment;
    /// then lines may be taken, if somebody looks after this process.
    pub fn connect(&mut self) {
        let members = self.attach();
        let card = self.card.clone();
        let how = (self.huge_pages, self.recorded);
        if let Err(error) = thread::start(&self.opening, members, how, card) {
            driver::shared().glue.fatal("guardian", &[&error]);
        }
    }

    /// The processes of the own set.
    fn attach(&mut self) -> Vec<PeerId> {
        let mut process = driver::shared().enter();
        let host = &mut process.host;
        let (me, set) = (host.peers.me(), host.set);
        // Rank 0 stands for the nodes that this process may never talk to.
        let others = self.local.iter().copied().chain([host.peers.of_rank(0)]);
        let cards: Vec<(PeerId, Card)> =
            others.filter(|&peer| peer != me).map(|peer| (peer, host.checked_card(peer))).collect();
        let members = self.members.take().unwrap_or_else(|| {
            let of_set = cards.iter().filter(|(_, card)| card.set == set).map(|(peer, _)| *peer);
            of_set.chain([me]).collect()
        });
        if !self.opening.uses_shm(self.local.len()) {
            return members;
        }
        let index = self.local.iter().position(|&rank| rank == me).unwrap_or(0);
        let segment = self.segment.take().unwrap_or_else(|| {
            let leader = cards.iter().find(|(peer, _)| *peer == self.local[0]);
            let name = leader.map_or("", |(_, card)| card.segment.as_str());
            self.opening.attach(&host.glue, name, self.local.len(), index)
        });
        host.shm = Some(Shm::new(segment, &self.local));
        members
    }
}
