//! Objects of a process, each beside the real one that stands for it now.

use crate::abi::{AhAttr, Completion, Gid, QpAttr, QpCap, SrqAttr, number::*};
use crate::host::*;
use crate::names::{Job, NO_QPN, Name, Value, number_of, value_of};
use crate::queues::{OWNERS_MAX, ReceiveQueue, SendQueue};
use crate::regions::{Region, Regions};
use crate::table::Table;
use core::fmt::Debug;
use std::collections::{BTreeMap, VecDeque};

/// Requests of the shadow's own that a queue has room for, and the program does not see.
pub const SPARE: u32 = 8;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)+) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub u32);
    )+ };
}

ids! {
    /// An open adapter.
    ContextId;
    /// A protection domain.
    PdId;
    /// Registered memory.
    RegionId;
    /// A completion channel.
    ChannelId;
    /// A completion queue.
    CqId;
    /// A shared receive queue.
    SrqId;
    /// An address handle.
    AhId;
    /// A queue pair.
    QpId;
}

#[derive(Debug)]
pub(crate) struct Context<T> {
    pub(crate) name: String,
    pub(crate) real: T,
    /// As the program knows them: their LIDs and GIDs are virtual.
    pub(crate) ports: Vec<Port>,
    /// As they are.
    pub(crate) real_ports: Vec<Port>,
    /// Which of the process's adapters it is.
    pub(crate) adapter: u32,
    /// Queue pairs by their real numbers.
    pub(crate) real_qps: BTreeMap<u32, QpId>,
}

#[derive(Debug)]
pub(crate) struct Pd<T> {
    pub(crate) context: ContextId,
    pub(crate) real: T,
}

#[derive(Debug)]
pub(crate) struct Channel<T> {
    pub(crate) context: ContextId,
    pub(crate) real: T,
}

#[derive(Debug)]
pub(crate) struct Cq<T> {
    pub(crate) context: ContextId,
    pub(crate) channel: Option<ChannelId>,
    pub(crate) vector: u32,
    /// What the program may have in it.
    pub(crate) entries: u32,
    pub(crate) real: T,
    /// The program waits for an event of it; of solicited ones only.
    pub(crate) armed: Option<bool>,
    /// Completions that were drained, and those of captured messages.
    pub(crate) private: VecDeque<Completion>,
    /// Requests of the shadow's own that will have a completion in it.
    pub(crate) own: u32,
}

#[derive(Debug)]
pub(crate) struct Srq<T> {
    pub(crate) pd: PdId,
    pub(crate) attr: SrqAttr,
    pub(crate) real: T,
    pub(crate) receives: ReceiveQueue<T>,
}

#[derive(Debug)]
pub(crate) struct Ah<T> {
    pub(crate) pd: PdId,
    /// The program's: LIDs and GIDs are virtual.
    pub(crate) attr: AhAttr,
    pub(crate) real: T,
    pub(crate) real_gid: Gid,
    /// Processes that have shared the GID, as far as somebody has sent to them since the last
    /// restart: where they are now.
    pub(crate) of: BTreeMap<u32, T>,
}

impl<T: Copy + PartialEq> Ah<T> {
    /// All real ones.
    pub(crate) fn all(&self) -> impl Iterator<Item = T> {
        let others = self.of.values().copied().filter(|&other| other != self.real);
        others.chain([self.real])
    }
}

/// What the program asks of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpWish {
    /// Completions of what it sends.
    pub send_cq: CqId,
    /// Completions of what it receives.
    pub recv_cq: CqId,
    /// Receives that it shares with others.
    pub srq: Option<SrqId>,
    /// How many requests.
    pub cap: QpCap,
    /// `IBV_QPT_RC` or `IBV_QPT_UD`.
    pub kind: u32,
    /// Every send is signalled.
    pub signal_all: bool,
}

#[derive(Debug)]
pub(crate) struct Qp<T> {
    pub(crate) pd: PdId,
    pub(crate) context: ContextId,
    pub(crate) wish: QpWish,
    pub(crate) real: T,
    pub(crate) real_qpn: u32,
    /// Virtual.
    pub(crate) qpn: u32,
    /// The peer's, virtual; 0: none.
    pub(crate) peer: u32,
    pub(crate) state: u32,
    /// A request has failed; the adapter has put it into the error state.
    pub(crate) is_broken: bool,
    /// Transitions since it was reset, as the program asked for them.
    pub(crate) transitions: Vec<(QpAttr, u32)>,
    pub(crate) sends: SendQueue,
    pub(crate) receives: ReceiveQueue<T>,
    /// Messages that have come, ever since it was connected.
    pub(crate) received: u64,
}

/// All of a process.
#[derive(Debug)]
pub struct Shadow<H: Host> {
    /// The system.
    pub host: H,
    pub(crate) job: Job,
    pub(crate) epoch: u32,
    pub(crate) contexts: Table<Context<H::Handle>>,
    pub(crate) pds: Table<Pd<H::Handle>>,
    pub(crate) regions: Regions<H::Handle>,
    pub(crate) channels: Table<Channel<H::Handle>>,
    pub(crate) cqs: Table<Cq<H::Handle>>,
    pub(crate) srqs: Table<Srq<H::Handle>>,
    pub(crate) ahs: Table<Ah<H::Handle>>,
    pub(crate) qps: Table<Qp<H::Handle>>,
    pub(crate) qpns: BTreeMap<u32, QpId>,
    /// What names stand for in this epoch, as far as somebody has asked.
    pub(crate) known: BTreeMap<Name, Value>,
    pub(crate) scratch: Vec<crate::abi::Sge>,
}

impl<H: Host> Shadow<H> {
    /// Of a process that has opened nothing yet.
    pub fn new(host: H, job: Job) -> Self {
        Self {
            host,
            job,
            epoch: 0,
            contexts: Table::new(),
            pds: Table::new(),
            regions: Regions::new(job.process),
            channels: Table::new(),
            cqs: Table::new(),
            srqs: Table::new(),
            ahs: Table::new(),
            qps: Table::new(),
            qpns: BTreeMap::new(),
            known: BTreeMap::new(),
            scratch: Vec::new(),
        }
    }

    pub(crate) fn publish(&mut self, name: Name, value: Value) {
        self.known.insert(name, value);
        self.host.publish(self.epoch, name, value);
    }

    pub(crate) fn find(&mut self, name: Name) -> Option<Value> {
        if let Some(&value) = self.known.get(&name) {
            return Some(value);
        }
        let value = self.host.find(self.epoch, name)?;
        self.known.insert(name, value);
        Some(value)
    }

    /// The real number of a queue pair. One that is not virtual stays as it is; for one that is
    /// gone there is one that answers nobody.
    pub(crate) fn real_qpn(&mut self, qpn: u32) -> u32 {
        if self.job.process_of(qpn).is_none() {
            return qpn;
        }
        self.find(Name::Qp(qpn)).map_or(NO_QPN, number_of)
    }

    /// An address with real names in place of virtual ones; of a process, where that is known.
    pub(crate) fn real_address(&mut self, attr: &AhAttr, process: Option<u32>) -> AhAttr {
        let mut real = *attr;
        if attr.dlid != 0 {
            let found = self.find(Name::Lid(attr.dlid));
            real.dlid = found.map_or(attr.dlid, |lid| number_of(lid) as u16);
        }
        if attr.is_global != 0 {
            let gid = attr.dgid.0;
            // Before a restart it is where it says.
            let process = process.filter(|_| self.epoch > 0);
            let found = process.and_then(|process| self.find(Name::GidOf { process, gid }));
            real.dgid.0 = found.or_else(|| self.find(Name::Gid(gid))).unwrap_or(gid);
        }
        real
    }

    /// Open an adapter by its name.
    ///
    /// # Errors
    /// What the adapter's library says; so for all that make or destroy an object.
    pub fn open(&mut self, name: &str) -> Outcome<ContextId> {
        let real = self.host.open(name)?;
        let real_ports = self.host.ports(real);
        let others: Vec<_> = self.contexts.values().map(|other| other.name.as_str()).collect();
        let same = self.contexts.values().find(|other| other.name == name);
        let distinct = others.iter().collect::<std::collections::BTreeSet<_>>().len() as u32;
        let adapter = same.map_or(distinct, |other| other.adapter);
        let mut ports = real_ports.clone();
        if let Some(same) = same {
            // One adapter has one set of names, also if it is opened again after a restart.
            ports.clone_from(&same.ports);
        } else {
            for port in ports.iter_mut().filter(|port| port.lid != 0) {
                port.lid = self.job.lid(adapter, port.number).unwrap_or(port.lid);
            }
        }
        let id = ContextId(self.contexts.insert(Context {
            name: name.to_owned(),
            real,
            ports,
            real_ports,
            adapter,
            real_qps: BTreeMap::new(),
        }));
        self.publish_ports(id);
        Ok(id)
    }

    /// Tell the others what the names of an adapter's ports stand for now.
    pub(crate) fn publish_ports(&mut self, id: ContextId) {
        let Some(context) = self.contexts.get(id.0) else { return };
        let mut names = Vec::new();
        for port in &context.ports {
            let real = context.real_ports.iter().find(|real| real.number == port.number);
            let Some(real) = real else { continue };
            if port.lid != 0 {
                names.push((Name::Lid(port.lid), value_of(real.lid.into())));
            }
            let gids = port.gids.iter().zip(&real.gids);
            let process = self.job.process;
            for (&gid, &real) in gids {
                names.extend([(Name::Gid(gid), real), (Name::GidOf { process, gid }, real)]);
            }
        }
        for (name, value) in names {
            self.publish(name, value);
        }
    }

    /// The port as the program is to see it.
    pub fn port(&self, context: ContextId, number: u8) -> Option<&Port> {
        let ports = &self.contexts.get(context.0)?.ports;
        ports.iter().find(|port| port.number == number)
    }

    /// The virtual GID for a real one of this adapter.
    pub fn virtual_gid(&self, context: ContextId, port: u8, real: [u8; 16]) -> [u8; 16] {
        let found = || {
            let context = self.contexts.get(context.0)?;
            let of = |ports: &'_ [Port]| ports.iter().position(|other| other.number == port);
            let real_port = &context.real_ports[of(&context.real_ports)?];
            let at = real_port.gids.iter().position(|&gid| gid == real)?;
            context.ports[of(&context.ports)?].gids.get(at).copied()
        };
        found().unwrap_or(real)
    }

    /// Close it.
    ///
    /// # Errors
    /// As [`Shadow::open`].
    pub fn close(&mut self, id: ContextId) -> Outcome<()> {
        let context = self.contexts.get(id.0).ok_or(Errno::INVALID)?;
        self.host.close(context.real)?;
        self.contexts.remove(id.0);
        Ok(())
    }

    /// `ibv_alloc_pd`.
    ///
    /// # Errors
    /// As [`Shadow::open`].
    pub fn alloc_pd(&mut self, context: ContextId) -> Outcome<PdId> {
        let real = self.contexts.get(context.0).ok_or(Errno::INVALID)?.real;
        let real = self.host.alloc_pd(real)?;
        Ok(PdId(self.pds.insert(Pd { context, real })))
    }

    /// `ibv_dealloc_pd`.
    ///
    /// # Errors
    /// As [`Shadow::open`].
    pub fn dealloc_pd(&mut self, id: PdId) -> Outcome<()> {
        self.host.dealloc_pd(self.pds.get(id.0).ok_or(Errno::INVALID)?.real)?;
        self.pds.remove(id.0);
        Ok(())
    }

    /// Register memory: also its virtual keys.
    ///
    /// # Errors
    /// As [`Shadow::open`].
    pub fn register(&mut self, pd: PdId, spec: RegionSpec) -> Outcome<(RegionId, Keys)> {
        let real_pd = self.pds.get(pd.0).ok_or(Errno::INVALID)?.real;
        let (slot, keys) = self.regions.place().ok_or(Errno::FULL)?;
        let (real, real_keys) = self.host.register(real_pd, &spec)?;
        self.regions.fill(slot, Region { pd, spec, real, real_keys, keys });
        let name = Name::Key { process: self.job.process, key: keys.remote };
        self.publish(name, value_of(real_keys.remote));
        Ok((RegionId(slot as u32), keys))
    }

    /// `ibv_dereg_mr`.
    ///
    /// # Errors
    /// As [`Shadow::open`].
    pub fn deregister(&mut self, id: RegionId) -> Outcome<()> {
        let slot = id.0 as usize;
        let region = self.regions.get(slot).ok_or(Errno::INVALID)?;
        self.host.deregister(region.real)?;
        let key = region.keys.remote;
        self.known.remove(&Name::Key { process: self.job.process, key });
        self.regions.remove(slot);
        Ok(())
    }

    /// `ibv_create_comp_channel`.
    ///
    /// # Errors
    /// As [`Shadow::open`].
    pub fn create_channel(&mut self, context: ContextId) -> Outcome<ChannelId> {
        let real = self.contexts.get(context.0).ok_or(Errno::INVALID)?.real;
        let real = self.host.create_channel(real, ChannelId(self.channels.next()))?;
        Ok(ChannelId(self.channels.insert(Channel { context, real })))
    }

    /// `ibv_destroy_comp_channel`.
    ///
    /// # Errors
    /// As [`Shadow::open`].
    pub fn destroy_channel(&mut self, id: ChannelId) -> Outcome<()> {
        self.host.destroy_channel(self.channels.get(id.0).ok_or(Errno::INVALID)?.real)?;
        self.channels.remove(id.0);
        Ok(())
    }

    /// `ibv_create_cq`: also how many entries it has for the program.
    ///
    /// # Errors
    /// As [`Shadow::open`].
    pub fn create_cq(
        &mut self,
        context: ContextId,
        channel: Option<ChannelId>,
        entries: u32,
        vector: u32,
    ) -> Outcome<(CqId, u32)> {
        let real_context = self.contexts.get(context.0).ok_or(Errno::INVALID)?.real;
        let real_channel = match channel {
            Some(id) => Some(self.channels.get(id.0).ok_or(Errno::INVALID)?.real),
            None => None,
        };
        if entries == 0 {
            return Err(Errno::INVALID);
        }
        let id = CqId(self.cqs.next());
        let entries = entries.saturating_add(SPARE);
        let (real, entries) =
            self.host.create_cq(real_context, real_channel, id, entries, vector)?;
        let entries = entries - SPARE;
        let private = VecDeque::new();
        self.cqs.insert(Cq {
            context,
            channel,
            vector,
            entries,
            real,
            armed: None,
            private,
            own: 0,
        });
        Ok((id, entries))
    }

    /// `ibv_resize_cq`: how many entries it has now.
    ///
    /// # Errors
    /// As [`Shadow::open`].
    pub fn resize_cq(&mut self, id: CqId, entries: u32) -> Outcome<u32> {
        let cq = self.cqs.get_mut(id.0).ok_or(Errno::INVALID)?;
        cq.entries = self.host.resize_cq(cq.real, entries.saturating_add(SPARE))? - SPARE;
        Ok(cq.entries)
    }

    /// `ibv_destroy_cq`.
    ///
    /// # Errors
    /// As [`Shadow::open`].
    pub fn destroy_cq(&mut self, id: CqId) -> Outcome<()> {
        self.host.destroy_cq(self.cqs.get(id.0).ok_or(Errno::INVALID)?.real)?;
        self.cqs.remove(id.0);
        Ok(())
    }

    /// `ibv_create_srq`: also what it has become.
    ///
    /// # Errors
    /// As [`Shadow::open`].
    pub fn create_srq(&mut self, pd: PdId, attr: SrqAttr) -> Outcome<(SrqId, SrqAttr)> {
        let real_pd = self.pds.get(pd.0).ok_or(Errno::INVALID)?.real;
        let id = SrqId(self.srqs.next());
        if id.0 >= OWNERS_MAX {
            return Err(Errno::FULL);
        }
        let wider = SrqAttr { max_wr: attr.max_wr + SPARE, max_sge: attr.max_sge.max(1), ..attr };
        let (real, real_attr) = self.host.create_srq(real_pd, id, &wider)?;
        let attr = SrqAttr { max_wr: real_attr.max_wr - SPARE, ..real_attr };
        let receives = ReceiveQueue::new(attr.max_wr);
        self.srqs.insert(Srq { pd, attr, real, receives });
        Ok((id, attr))
    }

    /// `ibv_modify_srq`.
    ///
    /// # Errors
    /// As [`Shadow::open`].
    pub fn modify_srq(&mut self, id: SrqId, attr: &SrqAttr, mask: u32) -> Outcome<()> {
        let srq = self.srqs.get_mut(id.0).ok_or(Errno::INVALID)?;
        let wider = SrqAttr { max_wr: attr.max_wr.saturating_add(SPARE), ..*attr };
        self.host.modify_srq(srq.real, &wider, mask)?;
        if mask & IBV_SRQ_MAX_WR != 0 {
            srq.attr.max_wr = attr.max_wr;
            srq.receives.depth = attr.max_wr as usize;
        }
        if mask & IBV_SRQ_LIMIT != 0 {
            srq.attr.srq_limit = attr.srq_limit;
        }
        Ok(())
    }

    /// What it is for the program.
    pub fn srq_attr(&self, id: SrqId) -> Option<SrqAttr> {
        Some(self.srqs.get(id.0)?.attr)
    }

    /// Its limit was reached, and the program told: there is none any more.
    pub fn srq_limit_reached(&mut self, id: SrqId) {
        if let Some(srq) = self.srqs.get_mut(id.0) {
            srq.attr.srq_limit = 0;
        }
    }

    /// `ibv_destroy_srq`.
    ///
    /// # Errors
    /// As [`Shadow::open`].
    pub fn destroy_srq(&mut self, id: SrqId) -> Outcome<()> {
        self.host.destroy_srq(self.srqs.get(id.0).ok_or(Errno::INVALID)?.real)?;
        self.srqs.remove(id.0);
        Ok(())
    }

    /// `ibv_create_ah`.
    ///
    /// # Errors
    /// As [`Shadow::open`].
    pub fn create_ah(&mut self, pd: PdId, attr: AhAttr) -> Outcome<AhId> {
        let real_pd = self.pds.get(pd.0).ok_or(Errno::INVALID)?.real;
        let real_attr = self.real_address(&attr, None);
        let real = self.host.create_ah(real_pd, &real_attr)?;
        let (real_gid, of) = (real_attr.dgid, BTreeMap::new());
        Ok(AhId(self.ahs.insert(Ah { pd, attr, real, real_gid, of })))
    }

    /// The real one, for a datagram to a queue pair: processes of one GID are in several places
    /// since they were restored on different nodes.
    pub(crate) fn real_ah(&mut self, id: AhId, qpn: u32) -> Outcome<H::Handle> {
        let ah = self.ahs.get(id.0).ok_or(Errno::INVALID)?;
        let (real, real_gid, attr) = (ah.real, ah.real_gid, ah.attr);
        let process = self.job.process_of(qpn).filter(|_| self.epoch > 0 && attr.is_global != 0);
        let Some(process) = process else { return Ok(real) };
        if let Some(&known) = ah.of.get(&process) {
            return Ok(known);
        }
        let pd = self.pds.get(ah.pd.0).ok_or(Errno::INVALID)?.real;
        let real_attr = self.real_address(&attr, Some(process));
        let is_same = real_attr.dgid == real_gid;
        let theirs = if is_same { real } else { self.host.create_ah(pd, &real_attr)? };
        if let Some(ah) = self.ahs.get_mut(id.0) {
            ah.of.insert(process, theirs);
        }
        Ok(theirs)
    }

    /// `ibv_destroy_ah`.
    ///
    /// # Errors
    /// As [`Shadow::open`].
    pub fn destroy_ah(&mut self, id: AhId) -> Outcome<()> {
        for real in self.ahs.get(id.0).ok_or(Errno::INVALID)?.all() {
            self.host.destroy_ah(real)?;
        }
        self.ahs.remove(id.0);
        Ok(())
    }
}
