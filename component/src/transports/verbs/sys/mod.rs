//! Verbs over libibverbs, which is opened when it is first needed: the component loads and works
//! where the library is absent.
//!
//! What the headers define as inline functions (post, poll) goes through the table of operations
//! in the context, as there. Maps that a provider makes of its device are marked so that no child
//! inherits them: a frozen child would keep the adapter's context alive after this process is dead,
//! and peers would still get acknowledgements (docs/adr/0039).

pub mod abi;
mod nearness;

use crate::os::affinity::may_run_on;
use crate::transports::verbs::api::*;
use abi::{Functions, number::*};
use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;
use core::ptr::NonNull;
use std::os::fd::RawFd;
use std::path::Path;

/// In order of preference: the name that its ABI has had since 2009.
const LIBRARY: &CStr = c"libibverbs.so.1";
/// Adapters of this node, as the kernel shows them.
const ADAPTERS: &str = "/sys/class/infiniband";
/// Its NUMA nodes.
const NUMA_NODES: &str = "/sys/devices/system/node";
/// Maps of adapters, as the kernel names them.
const DEVICE_MAPS: &str = "/dev/infiniband/";
/// Completions that are taken in one call.
const POLLED_AT_ONCE: usize = 16;
/// Wait of a sender that found no receive buffer: 0.64 ms.
const MIN_RNR_TIMER: u8 = 12;
/// RDMA READs under way at a time at most, both ways.
const READS_AT_ONCE: u8 = 16;

/// libibverbs.
#[derive(Clone, Copy)]
pub struct Libibverbs {
    functions: Functions,
}

/// An open adapter.
#[derive(Clone, Copy)]
pub struct Device {
    context: NonNull<abi::Context>,
    pd: NonNull<abi::Pd>,
}

/// Pointers of the library, as handles.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)+) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name(NonNull<abi::$name>);

        // SAFETY: libibverbs' objects may be used by any thread; ours are only used by whoever
        // holds the engine.
        unsafe impl Send for $name {}
    )+ };
}

handles! {
    /// Registered memory.
    Mr;
    /// A completion queue.
    Cq;
    /// A shared receive queue.
    Srq;
    /// A queue pair.
    Qp;
}

// SAFETY: as above.
unsafe impl Send for Device {}

/// Has this node any adapters? Looks at names only: no library is loaded for that.
pub fn has_adapters() -> bool {
    std::fs::read_dir(ADAPTERS).is_ok_and(|mut names| names.next().is_some())
}

fn last(what: &'static str, on: impl Into<String>) -> VerbsError {
    VerbsError::call(what, on, crate::os::errno())
}

impl Libibverbs {
    /// Open the library.
    ///
    /// # Errors
    /// It is not installed, or too old.
    pub fn load() -> Result<Self, VerbsError> {
        // Its symbols must not get into the way of the program's own copy, if it has one.
        // SAFETY: a C string; the library's initialisers do nothing that could harm.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: after a call that failed it is a C string.
            let text = unsafe { libc::dlerror() };
            // SAFETY: as above.
            let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
            return Err(VerbsError::Library(format!("libibverbs cannot be loaded: {text}")));
        }
        // SAFETY: the library is open, and is never closed: its providers could not be unloaded.
        let symbol = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
        let functions = Functions::find(symbol).map_err(|missing| {
            VerbsError::Library(format!("libibverbs is too old: it has no {missing}"))
        })?;
        Ok(Self { functions })
    }

    /// For each adapter: what `visit` says of its name and itself.
    fn each_device(&self, mut visit: impl FnMut(&str, *mut abi::Device)) -> Result<(), VerbsError> {
        let mut count: c_int = 0;
        // SAFETY: `count` is writable.
        let list = unsafe { (self.functions.get_device_list)(&mut count) };
        if list.is_null() {
            return Err(last("ibv_get_device_list", "this node"));
        }
        for at in 0..count.max(0) as usize {
            // SAFETY: the list has that many entries.
            let place = unsafe { list.add(at) };
            // SAFETY: as above.
            let device = unsafe { *place };
            // SAFETY: it is an entry.
            let name = unsafe { (self.functions.get_device_name)(device) };
            if !name.is_null() {
                // SAFETY: names are C strings, as long as the list lives.
                let name = unsafe { CStr::from_ptr(name) };
                visit(&name.to_string_lossy(), device);
            }
        }
        // SAFETY: ours, and freed once. Opened devices stay.
        unsafe { (self.functions.free_device_list)(list) };
        Ok(())
    }

    /// No child of this process inherits a map of an adapter.
    fn keep_from_children(&self) {
        for range in device_maps() {
            // A map of somebody else's, of the program's own verbs, may be gone meanwhile: the call
            // fails then, and nothing has to be done. (Ours are not: whoever destroys a queue has
            // the engine.)
            // SAFETY: advice on maps of adapters changes nothing of what they hold.
            unsafe { libc::madvise(range.start as *mut c_void, range.len(), libc::MADV_DONTFORK) };
        }
    }
}

/// Maps of adapters in this process.
fn device_maps() -> Vec<Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter(|line| line.contains(DEVICE_MAPS)).filter_map(range_of).collect()
}

/// The range at the start of a line of /proc/self/maps.
fn range_of(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}

fn completion_of(wc: &abi::Wc) -> Completion {
    let has_immediate = wc.wc_flags & IBV_WC_WITH_IMM != 0;
    Completion {
        id: wc.wr_id,
        status: Status(wc.status),
        bytes: wc.byte_len,
        immediate: if has_immediate { u32::from_be(wc.imm_data) } else { 0 },
        qp: wc.qp_num,
    }
}

/// Attributes of a transition, and which of them count.
fn attributes(to: Transition) -> (abi::QpAttr, u32) {
    let mut attr = abi::QpAttr::default();
    let mask = match to {
        Transition::Init { port, access } => {
            attr.qp_state = IBV_QPS_INIT;
            attr.port_num = port;
            attr.qp_access_flags = access;
            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
        }
        Transition::ReadyToReceive(to) => {
            attr.qp_state = IBV_QPS_RTR;
            attr.path_mtu = u32::from(to.mtu);
            attr.dest_qp_num = to.qp;
            attr.rq_psn = to.psn;
            attr.max_dest_rd_atomic = to.reads;
            attr.min_rnr_timer = MIN_RNR_TIMER;
            attr.ah_attr.dlid = to.lid;
            attr.ah_attr.port_num = to.port;
            if let Some(gid) = to.gid {
                attr.ah_attr.is_global = 1;
                attr.ah_attr.dgid = abi::Gid(gid);
                attr.ah_attr.sgid_index = to.gid_index;
                attr.ah_attr.hop_limit = 64;
            }
            let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            IBV_QP_STATE | path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER
        }
        Transition::ReadyToSend { psn, timeout, retries, rnr_retries, reads } => {
            attr.qp_state = IBV_QPS_RTS;
            attr.sq_psn = psn;
            attr.timeout = timeout;
            attr.retry_cnt = retries;
            attr.rnr_retry = rnr_retries;
            attr.max_rd_atomic = reads;
            let limits = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
            IBV_QP_STATE | limits | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC
        }
        Transition::Error => {
            attr.qp_state = IBV_QPS_ERR;
            IBV_QP_STATE
        }
    };
    (attr, mask)
}

impl Verbs for Libibverbs {
    type Device = Device;
    type Region = Mr;
    type Cq = Cq;
    type Srq = Srq;
    type Qp = Qp;

    fn devices(&self) -> Result<Vec<String>, VerbsError> {
        let mut names = Vec::new();
        self.each_device(|name, _| names.push(name.to_owned()))?;
        let (adapters, nodes) = (Path::new(ADAPTERS), Path::new(NUMA_NODES));
        Ok(nearness::near_first(names, adapters, nodes, may_run_on))
    }

    fn open(&self, name: &str) -> Result<Device, VerbsError> {
        let mut opened = Err(VerbsError::call("ibv_open_device", name, libc::ENODEV));
        self.each_device(|other, device| {
            if other == name {
                // SAFETY: it is an entry of the list, which is freed later.
                let context = unsafe { (self.functions.open_device)(device) };
                opened = NonNull::new(context).ok_or_else(|| last("ibv_open_device", name));
            }
        })?;
        let context = opened?;
        // SAFETY: just opened.
        let pd = unsafe { (self.functions.alloc_pd)(context.as_ptr()) };
        let Some(pd) = NonNull::new(pd) else {
            let error = last("ibv_alloc_pd", name);
            // SAFETY: just opened, used by nobody.
            unsafe { (self.functions.close_device)(context.as_ptr()) };
            return Err(error);
        };
        // SAFETY: the context is open.
        let events = unsafe { (*context.as_ptr()).async_fd };
        // SAFETY: two numbers; events are only asked for, never waited for.
        unsafe { libc::fcntl(events, libc::F_SETFL, libc::O_NONBLOCK) };
        self.keep_from_children();
        Ok(Device { context, pd })
    }

    fn port(&self, device: Device, port: u8) -> Result<Port, VerbsError> {
        let mut attr = abi::PortAttr::default();
        // SAFETY: the device is open, `attr` writable.
        let code = unsafe { (self.functions.query_port)(device.context.as_ptr(), port, &mut attr) };
        if code != 0 {
            return Err(VerbsError::call("ibv_query_port", format!("port {port}"), code));
        }
        let is_ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
        Ok(Port {
            is_active: attr.state == IBV_PORT_ACTIVE,
            link_layer: if is_ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand },
            lid: attr.lid,
            mtu: attr.active_mtu as u8,
            gids: attr.gid_tbl_len.max(0) as u32,
        })
    }

    fn gid(&self, device: Device, port: u8, index: u32) -> Result<GidEntry, VerbsError> {
        let mut entry = abi::GidEntry::default();
        let (context, port) = (device.context.as_ptr(), u32::from(port));
        let bytes = size_of::<abi::GidEntry>();
        // SAFETY: the device is open, `entry` is writable and has these bytes.
        let code =
            unsafe { (self.functions.query_gid_ex)(context, port, index, &mut entry, 0, bytes) };
        if code != 0 {
            return Err(VerbsError::call("ibv_query_gid_ex", format!("gid {index}"), code));
        }
        let is_roce_v2 = entry.gid_type == IBV_GID_TYPE_ROCE_V2;
        Ok(GidEntry { gid: entry.gid.0, is_roce_v2 })
    }

    fn reads_at_once(&self, device: Device) -> u8 {
        // A child would share pages that are registered, and the first write here would leave the
        // adapter with the child's (before Linux 5.12).
        // SAFETY: no arguments.
        let is_copied = |is: unsafe extern "C" fn() -> c_int| unsafe { is() } == IBV_FORK_UNNEEDED;
        if !self.functions.is_fork_initialized.is_some_and(is_copied) {
            return 0;
        }
        let mut attr = abi::DeviceAttr::default();
        // SAFETY: the device is open, `attr` writable.
        let code = unsafe { (self.functions.query_device)(device.context.as_ptr(), &mut attr) };
        if code != 0 {
            return 0;
        }
        let most = attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom);
        most.clamp(0, READS_AT_ONCE.into()) as u8
    }

    unsafe fn register(
        &self,
        device: Device,
        start: *mut u8,
        len: usize,
        access: u32,
    ) -> Result<Mr, VerbsError> {
        let pd = device.pd.as_ptr();
        // SAFETY: the device is open; the memory is mapped, by the caller's promise.
        let mr = unsafe { (self.functions.reg_mr)(pd, start.cast(), len, access as c_int) };
        NonNull::new(mr).map(Mr).ok_or_else(|| last("ibv_reg_mr", format!("{len} bytes")))
    }

    fn keys(&self, region: Mr) -> (u32, u32) {
        // SAFETY: the region exists.
        let region = unsafe { region.0.as_ref() };
        (region.lkey, region.rkey)
    }

    fn deregister(&self, region: Mr) {
        // SAFETY: the region exists and is not used any more.
        unsafe { (self.functions.dereg_mr)(region.0.as_ptr()) };
    }

    fn create_cq(&self, device: Device, entries: u32) -> Result<Cq, VerbsError> {
        let (context, null) = (device.context.as_ptr(), core::ptr::null_mut());
        // SAFETY: the device is open; no channel, no cookie.
        let cq = unsafe { (self.functions.create_cq)(context, entries as c_int, null, null, 0) };
        let cq = NonNull::new(cq).ok_or_else(|| last("ibv_create_cq", format!("{entries}")))?;
        self.keep_from_children();
        Ok(Cq(cq))
    }

    fn create_srq(&self, device: Device, receives: u32) -> Result<Srq, VerbsError> {
        let mut attr = abi::SrqInitAttr {
            srq_context: core::ptr::null_mut(),
            max_wr: receives,
            max_sge: 1,
            srq_limit: 0,
        };
        // SAFETY: the device is open, `attr` writable.
        let srq = unsafe { (self.functions.create_srq)(device.pd.as_ptr(), &mut attr) };
        let srq = NonNull::new(srq).ok_or_else(|| last("ibv_create_srq", format!("{receives}")))?;
        self.keep_from_children();
        Ok(Srq(srq))
    }

    fn create_qp(
        &self,
        device: Device,
        (sends, receives): (Cq, Cq),
        srq: Srq,
        sizes: QpSizes,
    ) -> Result<(Qp, u32), VerbsError> {
        let mut inline_bytes = sizes.inline_bytes;
        loop {
            let mut attr = abi::QpInitAttr {
                qp_context: core::ptr::null_mut(),
                send_cq: sends.0.as_ptr(),
                recv_cq: receives.0.as_ptr(),
                srq: srq.0.as_ptr(),
                cap: abi::QpCap {
                    max_send_wr: sizes.sends,
                    max_recv_wr: 0,
                    max_send_sge: 1,
                    max_recv_sge: 0,
                    max_inline_data: inline_bytes,
                },
                qp_type: IBV_QPT_RC,
                sq_sig_all: 0,
            };
            // SAFETY: the device is open, the queues exist, `attr` is writable.
            let qp = unsafe { (self.functions.create_qp)(device.pd.as_ptr(), &mut attr) };
            if let Some(qp) = NonNull::new(qp) {
                self.keep_from_children();
                return Ok((Qp(qp), attr.cap.max_inline_data));
            }
            let error = last("ibv_create_qp", format!("{} sends", sizes.sends));
            if inline_bytes == 0 {
                return Err(error);
            }
            // Not every adapter takes that much inline.
            inline_bytes /= 2;
        }
    }

    fn qp_number(&self, qp: Qp) -> u32 {
        // SAFETY: the queue pair exists.
        unsafe { qp.0.as_ref() }.qp_num
    }

    fn modify(&self, qp: Qp, to: Transition) -> Result<(), VerbsError> {
        let (mut attr, mask) = attributes(to);
        // SAFETY: the queue pair exists, `attr` is writable.
        let code = unsafe { (self.functions.modify_qp)(qp.0.as_ptr(), &mut attr, mask as c_int) };
        match code {
            0 => Ok(()),
            code => Err(VerbsError::call("ibv_modify_qp", format!("{to:?}"), code)),
        }
    }

    #[inline]
    unsafe fn post_send(&self, qp: Qp, work: &SendWork) -> Result<(), i32> {
        let piece = work.piece;
        let mut sge = abi::Sge { addr: piece.start, length: piece.len, lkey: piece.lkey };
        let signaled = if work.signaled { IBV_SEND_SIGNALED } else { 0 };
        let inline = if work.inline { IBV_SEND_INLINE } else { 0 };
        let (opcode, imm_data, remote_addr, rkey) = match work.work {
            Work::Send { immediate } => (IBV_WR_SEND_WITH_IMM, immediate.to_be(), 0, 0),
            Work::Read { start, rkey } => (IBV_WR_RDMA_READ, 0, start, rkey),
        };
        let mut wr = abi::SendWr {
            wr_id: work.id,
            next: core::ptr::null_mut(),
            sg_list: &mut sge,
            num_sge: 1,
            opcode,
            send_flags: signaled | inline,
            imm_data,
            remote_addr,
            rkey,
            rest: [0; 9],
        };
        let mut bad = core::ptr::null_mut();
        // SAFETY: the queue pair exists.
        let context = unsafe { qp.0.as_ref() }.context;
        // SAFETY: so does its context.
        let post = unsafe { (*context).ops.post_send };
        // SAFETY: the list of one work request is complete; its memory is as the caller promises.
        match unsafe { post(qp.0.as_ptr(), &mut wr, &mut bad) } {
            0 => Ok(()),
            code => Err(code),
        }
    }

    #[inline]
    unsafe fn post_receives(&self, srq: Srq, work: &[ReceiveWork]) -> Result<(), i32> {
        // SAFETY: the queue exists.
        let context = unsafe { srq.0.as_ref() }.context;
        // SAFETY: so does its context.
        let post = unsafe { (*context).ops.post_srq_recv };
        for work in work {
            let piece = work.piece;
            let mut sge = abi::Sge { addr: piece.start, length: piece.len, lkey: piece.lkey };
            let next = core::ptr::null_mut();
            let mut wr = abi::RecvWr { wr_id: work.id, next, sg_list: &mut sge, num_sge: 1 };
            let mut bad = core::ptr::null_mut();
            // SAFETY: as in `post_send`.
            let code = unsafe { post(srq.0.as_ptr(), &mut wr, &mut bad) };
            if code != 0 {
                return Err(code);
            }
        }
        Ok(())
    }

    #[inline]
    fn poll(&self, cq: Cq, into: &mut [Completion]) -> Result<usize, i32> {
        let mut raw = [const { core::mem::MaybeUninit::<abi::Wc>::uninit() }; POLLED_AT_ONCE];
        let most = into.len().min(POLLED_AT_ONCE);
        // SAFETY: the queue exists.
        let context = unsafe { cq.0.as_ref() }.context;
        // SAFETY: so does its context.
        let poll = unsafe { (*context).ops.poll_cq };
        // SAFETY: there is room for that many.
        let taken = unsafe { poll(cq.0.as_ptr(), most as c_int, raw[0].as_mut_ptr()) };
        if taken < 0 {
            return Err(-taken);
        }
        for (into, raw) in into.iter_mut().zip(&raw).take(taken as usize) {
            // SAFETY: the library has written so many.
            *into = completion_of(unsafe { raw.assume_init_ref() });
        }
        Ok(taken as usize)
    }

    fn async_event(&self, device: Device) -> Option<AsyncEvent> {
        let mut event = abi::AsyncEvent { element: core::ptr::null_mut(), event_type: 0 };
        // SAFETY: the device is open, its descriptor does not block.
        let code = unsafe { (self.functions.get_async_event)(device.context.as_ptr(), &mut event) };
        if code != 0 {
            return None;
        }
        // A union with the number of a port.
        let port = event.element as usize as u8;
        let happened = match event.event_type {
            IBV_EVENT_PORT_ACTIVE => AsyncEvent::PortActive(port),
            IBV_EVENT_PORT_ERR => AsyncEvent::PortDown(port),
            IBV_EVENT_DEVICE_FATAL => AsyncEvent::DeviceFatal,
            IBV_EVENT_QP_LAST_WQE_REACHED => {
                // SAFETY: of this kind of event it is a queue pair that exists: to destroy it waits
                // for the acknowledgement below.
                AsyncEvent::LastReceive(unsafe { (*event.element.cast::<abi::Qp>()).qp_num })
            }
            other => AsyncEvent::Other(other),
        };
        // SAFETY: the event that was just taken, once.
        unsafe { (self.functions.ack_async_event)(&mut event) };
        Some(happened)
    }

    fn destroy_qp(&self, qp: Qp) {
        // SAFETY: it exists and is not used any more.
        unsafe { (self.functions.destroy_qp)(qp.0.as_ptr()) };
    }

    fn destroy_srq(&self, srq: Srq) {
        // SAFETY: as above.
        unsafe { (self.functions.destroy_srq)(srq.0.as_ptr()) };
    }

    fn destroy_cq(&self, cq: Cq) {
        // SAFETY: as above.
        unsafe { (self.functions.destroy_cq)(cq.0.as_ptr()) };
    }

    fn close(&self, device: Device) {
        // SAFETY: everything of it is destroyed.
        unsafe { (self.functions.dealloc_pd)(device.pd.as_ptr()) };
        // SAFETY: as above.
        unsafe { (self.functions.close_device)(device.context.as_ptr()) };
    }

    fn descriptors(&self, device: Device) -> Vec<RawFd> {
        // SAFETY: the device is open.
        let context = unsafe { device.context.as_ref() };
        vec![context.cmd_fd, context.async_fd]
    }

    fn mapped(&self) -> Vec<Range<usize>> {
        device_maps()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_maps_are_read() {
        let line = "7f12a000-7f12c000 rw-s 00000000 00:05 12 /dev/infiniband/uverbs0";
        assert_eq!(range_of(line), Some(0x7F12_A000..0x7F12_C000));
        assert_eq!(range_of("nothing"), None);
    }

    #[test]
    fn an_adapter_that_does_not_exist_is_an_error_with_its_name() {
        match Libibverbs::load() {
            Err(error) => assert!(matches!(error, VerbsError::Library(_)), "{error}"),
            Ok(verbs) if has_adapters() => {
                let error = verbs.open("no-such-adapter").err().expect("there is none");
                assert!(error.to_string().contains("no-such-adapter"), "{error}");
            }
            // No adapter, or a kernel without InfiniBand.
            Ok(verbs) => assert!(verbs.devices().map_or(true, |names| names.is_empty())),
        }
    }
}
