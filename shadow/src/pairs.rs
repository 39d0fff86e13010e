//! Queue pairs: made, moved through their states, reset, destroyed.

use crate::abi::{QpAttr, QpCap, number::*};
use crate::host::*;
use crate::names::{Name, value_of};
use crate::objects::*;
use crate::queues::{OWNERS_MAX, ReceiveQueue, SendQueue};

/// More room than the program asked for. What it gets is less than what there is by as much.
const fn widened(cap: QpCap, has_srq: bool) -> QpCap {
    let receives = if has_srq { cap.max_recv_wr } else { cap.max_recv_wr + SPARE };
    // A captured message needs one element.
    let elements = if cap.max_recv_sge == 0 { 1 } else { cap.max_recv_sge };
    let elements = if has_srq { cap.max_recv_sge } else { elements };
    QpCap { max_send_wr: cap.max_send_wr + 1, max_recv_wr: receives, max_recv_sge: elements, ..cap }
}

impl<H: Host> Shadow<H> {
    /// `ibv_create_qp`: also its virtual number and what it can hold.
    ///
    /// # Errors
    /// As [`Shadow::open`]; [`Errno::UNSUPPORTED`] for other kinds than RC and UD.
    pub fn create_qp(&mut self, pd: PdId, wish: QpWish) -> Outcome<(QpId, u32, QpCap)> {
        if !matches!(wish.kind, IBV_QPT_RC | IBV_QPT_UD) {
            return Err(Errno::UNSUPPORTED);
        }
        let id = QpId(self.qps.next());
        if id.0 >= OWNERS_MAX || self.qpns.len() == self.job.qps_max() {
            return Err(Errno::FULL);
        }
        let context = self.pds.get(pd.0).ok_or(Errno::INVALID)?.context;
        let (real, real_qpn, cap) = self.create_real_qp(pd, id, &wish)?;
        let numbers = (id.0..).map(|counter| self.job.qpn(counter));
        let Some(qpn) = numbers.into_iter().find(|qpn| !self.qpns.contains_key(qpn)) else {
            return Err(Errno::FULL);
        };
        let spare = if wish.srq.is_some() { 0 } else { SPARE };
        let cap = QpCap {
            max_send_wr: cap.max_send_wr - 1,
            max_recv_wr: cap.max_recv_wr.saturating_sub(spare),
            ..cap
        };
        self.qps.insert(Qp {
            pd,
            context,
            wish: QpWish { cap, ..wish },
            real,
            real_qpn,
            qpn,
            peer: 0,
            state: IBV_QPS_RESET,
            is_broken: false,
            transitions: Vec::new(),
            sends: SendQueue::new(cap.max_send_wr),
            receives: ReceiveQueue::new(cap.max_recv_wr),
            received: 0,
        });
        self.qpns.insert(qpn, id);
        self.has_number(id);
        Ok((id, qpn, cap))
    }

    /// The real one.
    pub(crate) fn create_real_qp(
        &mut self,
        pd: PdId,
        id: QpId,
        wish: &QpWish,
    ) -> Outcome<(H::Handle, u32, QpCap)> {
        let real_pd = self.pds.get(pd.0).ok_or(Errno::INVALID)?.real;
        let srq = match wish.srq {
            Some(srq) => Some(self.srqs.get(srq.0).ok_or(Errno::INVALID)?.real),
            None => None,
        };
        let cq = |cq: CqId| self.cqs.get(cq.0).map(|cq| cq.real).ok_or(Errno::INVALID);
        let spec = QpSpec {
            send_cq: cq(wish.send_cq)?,
            recv_cq: cq(wish.recv_cq)?,
            srq,
            cap: widened(wish.cap, srq.is_some()),
            kind: wish.kind,
            signal_all: wish.signal_all,
        };
        self.host.create_qp(real_pd, id, &spec)
    }

    /// Note and publish a queue pair's real number.
    pub(crate) fn has_number(&mut self, id: QpId) {
        let Some(qp) = self.qps.get(id.0) else { return };
        let (qpn, real, context) = (qp.qpn, qp.real_qpn, qp.context);
        if let Some(context) = self.contexts.get_mut(context.0) {
            context.real_qps.insert(real, id);
        }
        self.publish(Name::Qp(qpn), value_of(real));
    }

    /// `ibv_destroy_qp`. Its completions go with it.
    ///
    /// # Errors
    /// As [`Shadow::open`].
    pub fn destroy_qp(&mut self, id: QpId) -> Outcome<()> {
        let qp = self.qps.get(id.0).ok_or(Errno::INVALID)?;
        let (qpn, real_qpn, context) = (qp.qpn, qp.real_qpn, qp.context);
        self.host.destroy_qp(qp.real)?;
        self.reset(id);
        self.qps.remove(id.0);
        self.qpns.remove(&qpn);
        self.known.remove(&Name::Qp(qpn));
        if let Some(context) = self.contexts.get_mut(context.0) {
            context.real_qps.remove(&real_qpn);
        }
        Ok(())
    }

    /// `ibv_modify_qp`.
    ///
    /// # Errors
    /// As [`Shadow::open`].
    pub fn modify_qp(&mut self, id: QpId, attr: &QpAttr, mask: u32) -> Outcome<()> {
        self.modify_real_qp(id, attr, mask)?;
        let qp = self.qps.get_mut(id.0).ok_or(Errno::INVALID)?;
        if mask & IBV_QP_DEST_QPN != 0 {
            qp.peer = attr.dest_qp_num;
        }
        if mask & IBV_QP_STATE != 0 {
            qp.state = attr.qp_state;
            match attr.qp_state {
                IBV_QPS_RESET => self.reset(id),
                IBV_QPS_ERR => qp.is_broken = true,
                _ => {}
            }
        }
        let qp = self.qps.get_mut(id.0).ok_or(Errno::INVALID)?;
        if qp.state != IBV_QPS_RESET {
            qp.transitions.push((*attr, mask));
        }
        Ok(())
    }

    /// A queue pair that is reset has nothing posted, and completions of it are gone.
    fn reset(&mut self, id: QpId) {
        let Some(qp) = self.qps.get_mut(id.0) else { return };
        qp.transitions.clear();
        let marker = u32::from(qp.sends.has_marker);
        qp.sends.clear();
        let captures = qp.receives.clear();
        (qp.received, qp.is_broken, qp.peer) = (0, false, 0);
        let (qpn, wish) = (qp.qpn, qp.wish);
        if let Some(cq) = self.cqs.get_mut(wish.send_cq.0) {
            cq.own -= marker;
        }
        for (capture, cq) in captures {
            if let Some(cq) = self.cqs.get_mut(cq.0) {
                cq.own -= 1;
            }
            self.host.captured(capture, 0);
        }
        self.drop_completions(qpn);
    }

    /// Completions of a queue pair that is reset or gone.
    fn drop_completions(&mut self, qpn: u32) {
        for cq in self.cqs.values_mut() {
            cq.private.retain(|completion| completion.qp_num != qpn);
        }
    }

    /// The same to the adapter, with real names.
    pub(crate) fn modify_real_qp(&mut self, id: QpId, attr: &QpAttr, mask: u32) -> Outcome<()> {
        let qp = self.qps.get(id.0).ok_or(Errno::INVALID)?;
        let (real, kind) = (qp.real, qp.wish.kind);
        let mut translated = *attr;
        let peer = if mask & IBV_QP_DEST_QPN != 0 { attr.dest_qp_num } else { qp.peer };
        let process = self.job.process_of(peer);
        if mask & IBV_QP_DEST_QPN != 0 {
            translated.dest_qp_num = self.real_qpn(attr.dest_qp_num);
        }
        if mask & IBV_QP_AV != 0 {
            translated.ah_attr = self.real_address(&attr.ah_attr, process);
        }
        if mask & IBV_QP_ALT_PATH != 0 {
            translated.alt_ah_attr = self.real_address(&attr.alt_ah_attr, process);
        }
        if mask & IBV_QP_ACCESS_FLAGS != 0 && kind == IBV_QPT_RC {
            // Markers are writes of nothing.
            translated.qp_access_flags |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE;
        }
        self.host.modify_qp(real, &translated, mask)
    }

    /// What the program knows of it: its peer, what it can hold, its state.
    pub fn qp(&self, id: QpId) -> Option<(u32, QpCap, u32)> {
        let qp = self.qps.get(id.0)?;
        Some((qp.peer, qp.wish.cap, qp.state))
    }

    /// The real object, for calls that change nothing.
    pub fn real_qp(&self, id: QpId) -> Option<H::Handle> {
        Some(self.qps.get(id.0)?.real)
    }

    /// The same of a context.
    pub fn real_context(&self, id: ContextId) -> Option<H::Handle> {
        Some(self.contexts.get(id.0)?.real)
    }

    /// The same of a channel.
    pub fn real_channel(&self, id: ChannelId) -> Option<H::Handle> {
        Some(self.channels.get(id.0)?.real)
    }

    /// The same of a shared receive queue.
    pub fn real_srq(&self, id: SrqId) -> Option<H::Handle> {
        Some(self.srqs.get(id.0)?.real)
    }
}
