//! After a restart: every real object is made again, in the order in which they depend on each
//! other, and gets the place of the old one.
//!
//! Two steps, and all processes meet after each: [`Shadow::make`] makes and publishes, so that
//! names of peers can be found; [`Shadow::connect`] replays the program's transitions of its queue
//! pairs, and posts its receives again. Sends are never posted again: the drain has left none.

use crate::abi::{QpAttr, number::*};
use crate::host::*;
use crate::objects::*;
use crate::posting::Owner;
use core::fmt;

/// What becomes of the old objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old {
    /// They are this process's, and destroyed.
    Destroy,
    /// They died with the process that was restored. Nothing of them may be touched: new objects
    /// have their numbers.
    Abandon,
}

/// An object that cannot be made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What it is.
    pub what: &'static str,
    /// Which: its name, number or size.
    pub which: String,
    /// What the adapter says.
    pub errno: Errno,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, which, errno } = self;
        write!(f, "{what} {which} cannot be made again: error {}", errno.0)
    }
}

impl core::error::Error for Problem {}

fn problem(what: &'static str, which: impl ToString) -> impl FnOnce(Errno) -> Problem {
    move |errno| Problem { what, which: which.to_string(), errno }
}

impl<H: Host> Shadow<H> {
    /// Make all objects again, in a new epoch of names.
    ///
    /// # Errors
    /// What could not be made; the process cannot go on then.
    pub fn make(&mut self, old: Old) -> Result<(), Problem> {
        if old == Old::Destroy {
            self.destroy_real();
        }
        self.epoch += 1;
        self.known.clear();
        self.make_contexts()?;
        self.make_domains()?;
        self.make_queues()?;
        for id in self.qps.ids() {
            let Some(qp) = self.qps.get(id) else { continue };
            let (pd, wish, qpn) = (qp.pd, qp.wish, qp.qpn);
            let made = self.create_real_qp(pd, QpId(id), &wish);
            let (real, real_qpn, _) =
                made.map_err(problem("queue pair", format_args!("{qpn:#x}")))?;
            if let Some(qp) = self.qps.get_mut(id) {
                (qp.real, qp.real_qpn) = (real, real_qpn);
                qp.sends.clear();
                qp.received = 0;
            }
            self.has_number(QpId(id));
        }
        Ok(())
    }

    /// In the reverse order of their creation. What fails is gone with its context.
    fn destroy_real(&mut self) {
        let Self { host, .. } = self;
        for real in self.ahs.values().flat_map(Ah::all) {
            let _ = host.destroy_ah(real);
        }
        for qp in self.qps.values() {
            let _ = host.destroy_qp(qp.real);
        }
        for srq in self.srqs.values() {
            let _ = host.destroy_srq(srq.real);
        }
        for cq in self.cqs.values() {
            let _ = host.destroy_cq(cq.real);
        }
        for channel in self.channels.values() {
            let _ = host.destroy_channel(channel.real);
        }
        for (_, region) in self.regions.iter() {
            let _ = host.deregister(region.real);
        }
        for pd in self.pds.values() {
            let _ = host.dealloc_pd(pd.real);
        }
        for context in self.contexts.values() {
            let _ = host.close(context.real);
        }
    }

    fn make_contexts(&mut self) -> Result<(), Problem> {
        for id in self.contexts.ids() {
            let Some(context) = self.contexts.get_mut(id) else { continue };
            let made = self.host.open(&context.name);
            context.real = made.map_err(problem("adapter", &context.name))?;
            context.real_ports = self.host.ports(context.real);
            context.real_qps.clear();
            self.publish_ports(ContextId(id));
        }
        Ok(())
    }

    fn make_domains(&mut self) -> Result<(), Problem> {
        for pd in self.pds.values_mut() {
            let Some(context) = self.contexts.get(pd.context.0) else { continue };
            let made = self.host.alloc_pd(context.real);
            pd.real = made.map_err(problem("protection domain of", &context.name))?;
        }
        let slots: Vec<_> = self.regions.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            let Some(region) = self.regions.get_mut(slot) else { continue };
            let Some(pd) = self.pds.get(region.pd.0) else { continue };
            let made = self.host.register(pd.real, &region.spec);
            let which = format_args!("{:#x}+{}", region.spec.start, region.spec.bytes);
            let made = made.map_err(problem("region", which))?;
            (region.real, region.real_keys) = made;
            let key = region.keys.remote;
            let value = crate::names::value_of(region.real_keys.remote);
            self.publish(crate::names::Name::Key { process: self.job.process, key }, value);
        }
        Ok(())
    }

    fn make_queues(&mut self) -> Result<(), Problem> {
        for id in self.channels.ids() {
            let Some(channel) = self.channels.get_mut(id) else { continue };
            let Some(context) = self.contexts.get(channel.context.0) else { continue };
            let made = self.host.create_channel(context.real, ChannelId(id));
            channel.real = made.map_err(problem("completion channel of", &context.name))?;
        }
        for id in self.cqs.ids() {
            let Some(cq) = self.cqs.get_mut(id) else { continue };
            let Some(context) = self.contexts.get(cq.context.0) else { continue };
            let channel = cq.channel.and_then(|id| self.channels.get(id.0)).map(|it| it.real);
            let entries = cq.entries + SPARE;
            let made = self.host.create_cq(context.real, channel, CqId(id), entries, cq.vector);
            cq.real = made.map_err(problem("completion queue of", &context.name))?.0;
        }
        for id in self.srqs.ids() {
            let Some(srq) = self.srqs.get_mut(id) else { continue };
            let Some(pd) = self.pds.get(srq.pd.0) else { continue };
            let wider = crate::abi::SrqAttr { max_wr: srq.attr.max_wr + SPARE, ..srq.attr };
            let made = self.host.create_srq(pd.real, SrqId(id), &wider);
            srq.real = made.map_err(problem("shared receive queue", id))?.0;
        }
        Ok(())
    }

    /// Connect all queue pairs again, and post the program's receives: how many. Every process of
    /// the job has made its objects.
    ///
    /// # Errors
    /// As [`Shadow::make`].
    pub fn connect(&mut self) -> Result<usize, Problem> {
        for id in self.ahs.ids() {
            let Some(ah) = self.ahs.get(id) else { continue };
            let (attr, pd) = (ah.attr, ah.pd);
            let Some(pd) = self.pds.get(pd.0).map(|pd| pd.real) else { continue };
            let real = self.real_address(&attr, None);
            let made = self.host.create_ah(pd, &real).map_err(problem("address", id))?;
            if let Some(ah) = self.ahs.get_mut(id) {
                (ah.real, ah.real_gid) = (made, real.dgid);
                ah.of.clear();
            }
        }
        let mut posted = 0;
        for id in self.srqs.ids() {
            posted += self.post_again(Owner::Srq(SrqId(id)))?;
            let Some(srq) = self.srqs.get(id).filter(|srq| srq.attr.srq_limit != 0) else {
                continue;
            };
            let armed = self.host.modify_srq(srq.real, &srq.attr, IBV_SRQ_LIMIT);
            armed.map_err(problem("limit of shared receive queue", id))?;
        }
        for id in self.qps.ids() {
            posted += self.connect_again(QpId(id))?;
        }
        for id in self.cqs.ids() {
            let Some(cq) = self.cqs.get_mut(id) else { continue };
            // An event that the old one had may be lost: one too many does no harm.
            if let Some(channel) = cq.channel.filter(|_| cq.armed.take().is_some()) {
                self.host.raise(channel, CqId(id));
            }
        }
        Ok(posted)
    }

    fn connect_again(&mut self, id: QpId) -> Result<usize, Problem> {
        let Some(qp) = self.qps.get(id.0) else { return Ok(0) };
        let (qpn, has_srq, real) = (qp.qpn, qp.wish.srq.is_some(), qp.real);
        let failed = || problem("connection of queue pair", format_args!("{qpn:#x}").to_string());
        if qp.is_broken {
            let attr = QpAttr { qp_state: IBV_QPS_ERR, ..QpAttr::default() };
            self.host.modify_qp(real, &attr, IBV_QP_STATE).map_err(failed())?;
            return Ok(0);
        }
        let transitions = qp.transitions.clone();
        let mut posted = 0;
        for (at, (attr, mask)) in transitions.iter().enumerate() {
            self.modify_real_qp(id, attr, *mask).map_err(failed())?;
            // Once it is initialised, and before a peer can send to it.
            if at == 0 && !has_srq {
                posted = self.post_again(Owner::Qp(id))?;
            }
        }
        Ok(posted)
    }

    /// Post receives again, in their order.
    fn post_again(&mut self, owner: Owner) -> Result<usize, Problem> {
        let slots = self.receives(owner).map_or(Vec::new(), |queue| queue.in_order());
        for &slot in &slots {
            let posted = self.post_real_receive(owner, slot);
            posted.map_err(problem("receive of", format_args!("{owner:?}")))?;
        }
        Ok(slots.len())
    }
}
