//! Neighbours: ranks of the own set that share memory with this one. They act on each other's
//! windows themselves (`fragments/rma`, "Direct accesses"); what is theirs alone they reach by
//! cross-memory attach.
//!
//! The areas lie in the node's segment, which is new in each incarnation: they are opened when the
//! first window is made, and again after a restore. What they hold of this process is the machine's
//! while an image is taken.

use crate::determinants::recorder::RecorderState;
use crate::determinants::set_order::rustbtl_awaits_poll;
use crate::engine::driver_state::Driver;
use crate::engine::host::EngineHost;
use crate::engine::recording::flush;
use crate::engine::transport_set::TransportSet;
use crate::engine::windows::mapped::{LastMapped, MappedMemory, Offer};
use crate::engine::windows::memory::{MappedHere, PeerMemory};
use crate::ffi::table::Glue;
use crate::os::yield_now;
use crate::sync::checkpoint_signals::{mark_not_replayable, mark_race};
use crate::transports::set_memory::SetMemory;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use rustbtl_coordination::control::ReplayBlocker;
use rustbtl_coordination::determinants::{AppliedRun, DirectRun};
use rustbtl_fragments::host::Host;
use rustbtl_fragments::ids::{CommRank, ContextId, PeerId};
use rustbtl_rma::direct::{EntryRef, GroupRun, SetGroup, TargetArea};
use rustbtl_rma::error::RmaError;
use rustbtl_rma::ids::Tick;
use rustbtl_rma::machine::{FenceAssert, Neighbourhood, Rma, Wait};
use rustbtl_rma::record::Applied;

const SAW_A_STORE: &str = "it has got from a window what another rank of its set had stored there, \
                           without any call in between: when is not recorded";

/// So many bytes are worth a system call, where a message would take another two copies.
const ATTACHED_BYTES_MIN: u64 = 4096;

/// Which process a neighbour is, as far as that is known.
#[derive(Clone, Copy, Debug)]
enum Process {
    /// Not asked yet, or not there yet.
    Unknown,
    /// This one.
    Myself,
    /// Its id: its memory can be accessed.
    Other(i32),
    /// Of another set, or the system does not let us.
    None,
}

#[derive(Debug)]
struct Neighbour {
    /// Rank in the world, for determinants.
    rank: PeerId,
    process: Cell<Process>,
    /// Its memory.
    last_mapped: Cell<Option<LastMapped>>,
}

impl Neighbour {
    /// Ask again which process it is, and if its memory can be accessed.
    #[cold]
    #[inline(never)]
    fn ask(&self, index: usize, transports: &TransportSet) -> bool {
        if let Some(found) = transports.accessible(index) {
            self.process.set(found.map_or(Process::None, Process::Other));
        }
        matches!(self.process.get(), Process::Other(_))
    }
}

/// See the module's documentation. By local index.
#[derive(Debug)]
pub struct Neighbours {
    me: usize,
    /// First rank of the set: it has the group.
    first: usize,
    all: Vec<Neighbour>,
}

impl Neighbours {
    #[inline]
    pub(crate) fn group<'a>(&self, transports: &'a TransportSet) -> Option<&'a SetGroup> {
        transports.window_group(self.first)
    }

    pub(crate) fn own_area<'a>(
        &self,
        transports: &'a TransportSet,
    ) -> Option<(&'a SetGroup, TargetArea<'a>)> {
        Some((self.group(transports)?, transports.window_area(self.me)?))
    }

    /// Runs of a group as they are recorded.
    pub(crate) fn named(&self, group: Vec<GroupRun>) -> Vec<DirectRun> {
        let named = |(index, run): GroupRun| {
            let Applied { window, source, count, tick: Tick(tick) } = run.applied;
            let target = self.all.get(index)?.rank;
            let applied = AppliedRun { window, source, count, tick };
            Some(DirectRun { target, first: run.first, run: applied })
        };
        group.into_iter().filter_map(named).collect()
    }

    #[inline]
    fn is_accessible(&self, index: usize, transports: &TransportSet) -> bool {
        let Some(neighbour) = self.all.get(index) else { return false };
        match neighbour.process.get() {
            Process::Myself | Process::Other(_) => true,
            Process::None => false,
            Process::Unknown => neighbour.ask(index, transports),
        }
    }
}

/// What the machine does to neighbours, for the duration of a call.
pub(crate) struct Reach<'a> {
    neighbours: &'a Neighbours,
    transports: &'a TransportSet,
    mapped: &'a MappedMemory,
    record: &'a mut RecorderState,
    own: PeerId,
    memory: PeerMemory<'a>,
    glue: &'a Glue,
}

impl<'a> Neighbourhood<'a> for Reach<'a> {
    type Memory = PeerMemory<'a>;
    type Here = MappedHere;

    #[inline(always)]
    fn me(&self) -> usize {
        self.neighbours.me
    }

    #[inline(always)]
    fn group(&self) -> Option<&'a SetGroup> {
        self.neighbours.group(self.transports)
    }

    #[inline(always)]
    fn area(&self, neighbour: usize) -> Option<TargetArea<'a>> {
        let accessible = self.neighbours.is_accessible(neighbour, self.transports);
        if accessible { self.transports.window_area(neighbour) } else { None }
    }

    #[inline]
    fn memory(
        &mut self,
        neighbour: usize,
        (window, entry): (ContextId, EntryRef<'a>),
    ) -> &mut PeerMemory<'a> {
        self.memory = match self.neighbours.all.get(neighbour) {
            Some(Neighbour { process, rank, .. }) => match process.get() {
                Process::Other(pid) => match self.mapped.delta((window, *rank), entry.mark()) {
                    Some(delta) => PeerMemory::Mapped(delta),
                    None => PeerMemory::Of(pid, self.glue),
                },
                _ => PeerMemory::Own,
            },
            None => PeerMemory::Own,
        };
        &mut self.memory
    }

    #[inline(always)]
    fn here(
        &self,
        neighbour: usize,
        (window, entry): (ContextId, EntryRef<'a>),
    ) -> Option<MappedHere> {
        let Neighbour { process, rank, last_mapped } = self.neighbours.all.get(neighbour)?;
        match process.get() {
            Process::Myself => Some(MappedHere(0)),
            Process::Other(_) => {
                let (of, mark) = ((window, *rank), entry.mark());
                self.mapped.delta_again(of, mark, last_mapped).map(MappedHere)
            }
            Process::Unknown | Process::None => None,
        }
    }

    #[inline]
    fn is_quicker(
        &self,
        neighbour: usize,
        (window, entry): (ContextId, EntryRef<'a>),
        bytes: u64,
    ) -> bool {
        let Some(Neighbour { process, rank, .. }) = self.neighbours.all.get(neighbour) else {
            return false;
        };
        matches!(process.get(), Process::Myself)
            || bytes >= ATTACHED_BYTES_MIN
            || self.mapped.delta((window, *rank), entry.mark()).is_some()
    }

    fn give_way(&self) {
        yield_now();
    }

    fn record(&mut self, group: Vec<GroupRun>) {
        self.record.decisions.applied_directly(self.neighbours.named(group));
        // Its lock is held: nothing is taken from it.
        flush(self.record, self.transports, self.own, None);
    }
}

impl EngineHost {
    /// Call the machine, beside the neighbours where there are any.
    #[inline(always)]
    pub(crate) fn beside<T>(
        &mut self,
        near: impl FnOnce(&mut Rma, &mut Reach<'_>) -> T,
        far: impl FnOnce(&mut Rma) -> T,
    ) -> T {
        let own = PeerId(self.peers.rank());
        let Self { windows, transports, record, glue, .. } = self;
        let mapped = &windows.mapped;
        match &windows.neighbours {
            None => far(&mut windows.rma),
            Some(neighbours) => {
                let memory = PeerMemory::Own;
                let mut reach = Reach { neighbours, transports, mapped, record, own, memory, glue };
                near(&mut windows.rma, &mut reach)
            }
        }
    }

    pub(crate) fn own_area(&self) -> Option<(&SetGroup, TargetArea<'_>)> {
        self.windows.neighbours.as_ref()?.own_area(&self.transports)
    }

    /// The machine has counted an action of the program: neighbours see it.
    #[inline(always)]
    pub(crate) fn publish_tick(&self) {
        if let Some(neighbours) = &self.windows.neighbours
            && let Some(area) = self.transports.window_area(neighbours.me)
        {
            area.set_tick(self.windows.rma.tick());
        }
    }

    /// So many accesses of a fence epoch are for this process.
    ///
    /// # Errors
    /// As [`Rma::fence_counted`].
    pub(crate) fn fence_counted(
        &mut self,
        window: ContextId,
        expected: u64,
        assert: FenceAssert,
    ) -> Result<Wait, RmaError> {
        let Self { windows, transports, .. } = self;
        let me = windows.neighbours.as_ref().map(|neighbours| neighbours.me);
        let area = me.and_then(|me| transports.window_area(me));
        windows.rma.fence_counted(window, expected, assert, area.as_ref())
    }

    /// The program has left a fence, or posted.
    pub(crate) fn publish_exposure(&mut self, window: ContextId) {
        let Self { windows, transports, .. } = self;
        if let Some(neighbours) = &windows.neighbours
            && let Some(area) = transports.window_area(neighbours.me)
        {
            windows.rma.publish_exposure(window, &area);
        }
    }

    /// Neighbours may map the window's memory, if it is made for that; and who has mapped it knows
    /// by its mark that it is that.
    fn offer_memory(&mut self, window: ContextId) {
        let EngineHost { windows, transports, .. } = self;
        if let Some(neighbours) = &windows.neighbours
            && let Some(area) = transports.window_area(neighbours.me)
            && let Some(entry) = area.find(window).and_then(|at| area.entry(at))
        {
            if let Some(Offer { descriptor, bytes }) = windows.mapped.offer(entry.base()) {
                entry.offer(descriptor, bytes);
            }
            if windows.mapped.has(entry.base()) {
                entry.set_mark(windows.mapped.mark());
            }
        }
    }

    /// A replay begins or ends.
    pub(crate) fn update_accepts(&self) {
        if let Some((_, area)) = self.own_area() {
            self.windows.rma.update_accepts(&area);
        }
    }

    /// The program asks for something and finds nothing, or synchronizes its own window: it may be
    /// looking at its memory again and again. Also before anything is recorded: what neighbours
    /// have written directly by then is in the first image.
    pub(crate) fn polls(&mut self) {
        let Self { windows, transports, record, .. } = self;
        rustbtl_awaits_poll.store(0, Ordering::Relaxed);
        if !windows.rma.has_polled()
            && let Some(neighbours) = &windows.neighbours
            && let Some((group, area)) = neighbours.own_area(transports)
            && !windows.rma.polls(&group.lock(yield_now), &area)
            && record.is_on()
        {
            mark_race();
        }
    }

    /// After accesses.
    #[inline(always)]
    pub(crate) fn look_for_races(&mut self) {
        if self.windows.rma.take_saw_a_store() {
            mark_not_replayable(SAW_A_STORE, ReplayBlocker::Set);
        }
        if self.windows.rma.take_wrote_late() {
            mark_race();
        }
    }

    /// The short way of the machine, if there are neighbours.
    #[inline(always)]
    pub(crate) fn quickly(&mut self, call: impl FnOnce(&mut Rma, &mut Reach<'_>) -> bool) -> bool {
        self.beside(call, |_| false)
    }
}

impl Driver {
    /// Who is a neighbour of whom. With memory of the node, and a set of several ranks on it.
    fn find_neighbours(&mut self) -> Option<Neighbours> {
        let me = self.host.peers.me();
        let ranks = self.host.transports.node_ranks();
        let mut of_set = vec![None; ranks];
        let others: Vec<PeerId> = self.neighbours.iter().copied().collect();
        for peer in others.into_iter().chain([me]) {
            let Some(index) = self.host.transports.node_index(peer) else { continue };
            if self.host.peer_info(peer).set == self.host.set {
                of_set[index] = Some(peer);
            }
        }
        let me_at = self.host.transports.node_index(me)?;
        let first = of_set.iter().position(Option::is_some)?;
        if of_set.iter().flatten().count() < 2 {
            return None;
        }
        let neighbour = |(index, peer): (usize, Option<PeerId>)| Neighbour {
            rank: peer.map_or(PeerId(0), |peer| PeerId(self.host.peers.name(peer).rank)),
            process: Cell::new(match peer {
                None => Process::None,
                Some(_) if index == me_at => Process::Myself,
                Some(_) => Process::Unknown,
            }),
            last_mapped: Cell::new(None),
        };
        let all = of_set.into_iter().enumerate().map(neighbour).collect();
        Some(Neighbours { me: me_at, first, all })
    }

    /// Are there any?
    pub(crate) fn has_neighbours(&mut self) -> bool {
        self.host.windows.neighbours.is_some() || self.find_neighbours().is_some()
    }

    /// Numbers of a window's ranks that are neighbours; and which are of the own set at all.
    fn neighbours_of(&mut self, window: ContextId, ranks: u32) -> Vec<Option<usize>> {
        let comm = self.host.windows.comms.get(&window).copied();
        let Some(comm) = comm else { return Vec::new() };
        let handle = self.engine.handle_of(comm);
        let host = &mut self.host;
        let number = |rank| {
            let peer = host.resolve(handle, CommRank(rank));
            let index = host.transports.node_index(peer)?;
            let all = host.windows.neighbours.as_ref().map(|neighbours| &neighbours.all)?;
            let of_set = all.get(index)?;
            (!matches!(of_set.process.get(), Process::None)).then_some(index)
        };
        (0..ranks).map(number).collect()
    }

    /// Somebody who shares a window's memory with this process, and is on another node since the
    /// restore: neither would see what the other one stores.
    pub(crate) fn parted_by_restore(&mut self) -> Option<PeerId> {
        let shared: Vec<_> = self.host.windows.rma.shared_windows().collect();
        let me = self.host.peers.me();
        shared.into_iter().find_map(|(window, ranks)| {
            let comm = self.host.windows.comms.get(&window).copied()?;
            let handle = self.engine.handle_of(comm);
            let host = &mut self.host;
            (0..ranks).find_map(|rank| {
                let peer = host.resolve(handle, CommRank(rank));
                let is_here = peer == me || host.transports.node_index(peer).is_some();
                (!is_here).then_some(peer)
            })
        })
    }

    /// Which ranks of a window are of the own set. Those that were never talked to are not.
    fn internal_of(&mut self, window: ContextId, ranks: u32) -> Vec<bool> {
        let Some(comm) = self.host.windows.comms.get(&window).copied() else { return Vec::new() };
        let handle = self.engine.handle_of(comm);
        let host = &mut self.host;
        let is_internal = |rank| {
            let peer = host.resolve(handle, CommRank(rank));
            peer == host.peers.me() || host.set_of(peer) == Some(host.set)
        };
        (0..ranks).map(is_internal).collect()
    }

    /// A window was made, of so many ranks.
    pub(crate) fn publish_window(&mut self, window: ContextId, ranks: u32) {
        let is_first = self.host.windows.neighbours.is_none();
        if is_first {
            self.open_windows();
        }
        let numbers = self.neighbours_of(window, ranks);
        let of = |rank: CommRank| numbers.get(rank.0 as usize).copied().flatten();
        let is_internal = self.internal_of(window, ranks);
        let EngineHost { windows, transports, .. } = &mut self.host;
        windows.rma.set_internal(window, |rank| is_internal.get(rank.0 as usize) == Some(&true));
        if windows.neighbours.is_some() && !windows.rma.has_polled() {
            rustbtl_awaits_poll.store(1, Ordering::Relaxed);
        }
        if let Some(neighbours) = windows.neighbours.as_ref().filter(|_| !is_first)
            && let Some((group, area)) = neighbours.own_area(transports)
        {
            windows.rma.publish(window, &group.lock(yield_now), &area, of);
        }
        self.host.offer_memory(window);
    }

    /// All ranks have made the window: map what neighbours offer. `shared`: where the program has
    /// mapped all ranks' memory itself.
    pub(crate) fn map_window(&mut self, window: ContextId, shared: Option<&[*mut u8]>) {
        let ranks = self.host.windows.rma.windows().find(|(name, _)| *name == window);
        let numbers = self.neighbours_of(window, ranks.map_or(0, |(_, ranks)| ranks));
        let EngineHost { windows, transports, .. } = &mut self.host;
        let Some(neighbours) = &windows.neighbours else { return };
        for (rank, number) in numbers.into_iter().enumerate() {
            let Some(number) = number.filter(|&number| number != neighbours.me) else { continue };
            if !neighbours.is_accessible(number, transports) {
                continue;
            }
            let Neighbour { rank: of, process, .. } = &neighbours.all[number];
            let Some(area) = transports.window_area(number) else { continue };
            let Some(entry) = area.find(window).and_then(|at| area.entry(at)) else { continue };
            let here = shared.and_then(|shared| shared.get(rank)).filter(|at| !at.is_null());
            if let Some(here) = here {
                windows.mapped.is_at((window, *of), *here as u64, entry.base());
            } else if let (Some((descriptor, bytes)), Process::Other(pid)) =
                (entry.offered(), process.get())
            {
                // Without it, it is accessed otherwise.
                let offer = Offer { descriptor, bytes };
                let _ = windows.mapped.map((window, *of), pid, offer, entry.base());
            }
        }
    }

    /// The window is to be freed.
    pub(crate) fn withdraw_window(&mut self, window: ContextId) {
        let EngineHost { windows, transports, .. } = &mut self.host;
        if let Some(neighbours) = &windows.neighbours
            && let Some((group, area)) = neighbours.own_area(transports)
        {
            windows.rma.withdraw(window, &group.lock(yield_now), &area);
        }
    }

    /// A snapshot is taken: the set is kept out of MPI, all of it.
    pub(crate) fn close_windows(&mut self) {
        let EngineHost { windows, transports, .. } = &mut self.host;
        if let Some(neighbours) = &windows.neighbours
            && let Some((group, area)) = neighbours.own_area(transports)
        {
            windows.rma.close_area(&group.lock(yield_now), &area);
        }
    }

    /// The process was restored, and reaches its neighbours again, of whom some may be elsewhere.
    pub(crate) fn reopen_windows(&mut self) {
        self.host.windows.neighbours = None;
        if self.host.windows.rma.has_windows() {
            self.open_windows();
        }
        // Also of a window that was being made: its descriptor is not here.
        let known = self.host.windows.neighbours.as_ref().map_or(&[][..], |known| &known.all);
        let is_here = |rank| {
            let of = known.iter().find(|neighbour| neighbour.rank == rank);
            of.is_some_and(|neighbour| !matches!(neighbour.process.get(), Process::None))
        };
        self.host.windows.mapped.restored(is_here);
        let names: Vec<_> = self.host.windows.rma.windows().map(|(window, _)| window).collect();
        names.into_iter().for_each(|window| self.host.offer_memory(window));
    }

    /// The area is new.
    fn open_windows(&mut self) {
        self.host.windows.neighbours = self.find_neighbours();
        let windows: Vec<_> = self.host.windows.rma.windows().collect();
        let numbers: Vec<_> = windows
            .into_iter()
            .map(|(window, ranks)| (window, self.neighbours_of(window, ranks)))
            .collect();
        let EngineHost { windows, transports, .. } = &mut self.host;
        if let Some(neighbours) = &windows.neighbours
            && let Some((group, area)) = neighbours.own_area(transports)
        {
            windows.rma.open_area(&group.lock(yield_now), &area, |window, rank| {
                let (_, of) = numbers.iter().find(|(name, _)| *name == window)?;
                of.get(rank.0 as usize).copied().flatten()
            });
        }
    }
}
