//! The system, to the shadow: calls of the real libibverbs, memory, channels, the directory.

use crate::abi::*;
use crate::channels::Channels;
use crate::names::Names;
use crate::real::{name_of, real};
use core::ffi::{c_int, c_void};
use rustbtl_shadow::abi::{number::IBV_ACCESS_LOCAL_WRITE, *};
use rustbtl_shadow::*;

/// Maps and descriptors of adapters, as the kernel names them, and those of adapters in software
/// that share memory.
pub const DEVICES: [&str; 2] = ["/dev/infiniband/", "/dev/shm/infiniband/"];
/// GIDs of a port that are looked at; RoCE's tables are long and mostly empty.
const GIDS_MAX: c_int = 16;

/// A real object: its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Real(usize);

impl Real {
    fn of<T>(pointer: *mut T) -> Outcome<Self> {
        if pointer.is_null() { Err(errno()) } else { Ok(Self(pointer as usize)) }
    }

    /// As what it is.
    pub fn pointer<T>(self) -> *mut T {
        self.0 as *mut T
    }
}

/// The error of the last call.
pub fn errno() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// What a call returned that says 0 or an error's number (or -1, as old ones did).
fn outcome(code: c_int) -> Outcome<()> {
    match code {
        0 => Ok(()),
        ..0 => Err(errno()),
        _ => Err(Errno(code)),
    }
}

/// A number that the real object carries for us: of the shadow's object.
fn cookie(id: u32) -> Pointer {
    (id as usize + 1) as Pointer
}

/// The number in it.
pub fn number_in(cookie: Pointer) -> Option<u32> {
    (cookie as usize).checked_sub(1).map(|id| id as u32)
}

/// What the shadow uses of this process.
pub struct System {
    /// Completion channels.
    pub channels: Channels,
    /// Names of all processes.
    pub directory: Names,
}

/// No child of this process inherits a map of an adapter: it would keep the adapter's context.
fn keep_from_children() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for line in maps.lines().filter(|line| DEVICES.iter().any(|device| line.contains(device))) {
        let Some((start, end)) = line.split(' ').next().and_then(|range| range.split_once('-'))
        else {
            continue;
        };
        let number = |text| usize::from_str_radix(text, 16);
        if let (Ok(start), Ok(end)) = (number(start), number(end)) {
            // SAFETY: advice on maps of adapters changes nothing of what they hold.
            unsafe { libc::madvise(start as *mut c_void, end - start, libc::MADV_DONTFORK) };
        }
    }
}

impl Host for System {
    type Handle = Real;

    fn open(&mut self, name: &str) -> Outcome<Real> {
        let mut count = 0;
        // SAFETY: `count` is writable.
        let list = unsafe { (real().get_device_list)(&mut count) };
        if list.is_null() {
            return Err(errno());
        }
        let mut opened = Err(Errno(libc::ENODEV));
        for at in 0..count.max(0) as usize {
            // SAFETY: the list has that many entries.
            let place = unsafe { list.add(at) };
            // SAFETY: as above.
            let device = unsafe { *place };
            // SAFETY: as above.
            if unsafe { name_of(device) } == name {
                // SAFETY: an entry of the list, which is freed later.
                opened = Real::of(unsafe { (real().open_device)(device) });
            }
        }
        // SAFETY: ours, and freed once. Opened devices stay.
        unsafe { (real().free_device_list)(list) };
        keep_from_children();
        opened
    }

    fn close(&mut self, context: Real) -> Outcome<()> {
        // SAFETY: a context of this incarnation.
        outcome(unsafe { (real().close_device)(context.pointer()) })
    }

    fn ports(&mut self, context: Real) -> Vec<Port> {
        // SAFETY: zeroes are numbers.
        let mut attr: DeviceAttr = unsafe { core::mem::zeroed() };
        // SAFETY: an open context, a writable structure.
        unsafe { (real().query_device)(context.pointer(), &mut attr) };
        let mut ports = Vec::new();
        for number in 1..=attr.phys_port_cnt {
            let mut port = PortAttr::default();
            // SAFETY: as above.
            if unsafe { (real().query_port)(context.pointer(), number, &mut port) } != 0 {
                continue;
            }
            let mut gids = Vec::new();
            for index in 0..port.gid_tbl_len.min(GIDS_MAX) {
                let mut gid = Gid::default();
                // SAFETY: as above.
                let code =
                    unsafe { (real().query_gid)(context.pointer(), number, index, &mut gid) };
                if code == 0 && gid != Gid::default() {
                    gids.push(gid.0);
                }
            }
            ports.push(Port { number, lid: port.lid, gids });
        }
        ports
    }

    fn alloc_pd(&mut self, context: Real) -> Outcome<Real> {
        // SAFETY: an open context.
        Real::of(unsafe { (real().alloc_pd)(context.pointer()) })
    }

    fn dealloc_pd(&mut self, pd: Real) -> Outcome<()> {
        // SAFETY: a domain of this incarnation.
        outcome(unsafe { (real().dealloc_pd)(pd.pointer()) })
    }

    fn register(&mut self, pd: Real, spec: &RegionSpec) -> Outcome<(Real, Keys)> {
        let (start, bytes) = (spec.start as Pointer, spec.bytes as usize);
        let mr = match spec.iova {
            // SAFETY: a domain; libibverbs and the kernel check the range.
            None => unsafe { (real().reg_mr)(pd.pointer(), start, bytes, spec.access as c_int) },
            // SAFETY: as above.
            Some(iova) => unsafe {
                (real().reg_mr_iova2)(pd.pointer(), start, bytes, iova, spec.access)
            },
        };
        let region = Real::of(mr)?;
        // SAFETY: just made.
        let mr = unsafe { &*mr };
        Ok((region, Keys { local: mr.lkey, remote: mr.rkey }))
    }

    fn deregister(&mut self, region: Real) -> Outcome<()> {
        // SAFETY: a region of this incarnation.
        outcome(unsafe { (real().dereg_mr)(region.pointer()) })
    }

    fn create_channel(&mut self, context: Real, id: ChannelId) -> Outcome<Real> {
        // SAFETY: an open context.
        let made = unsafe { (real().create_comp_channel)(context.pointer()) };
        let channel = Real::of(made)?;
        // SAFETY: just made.
        let fd = unsafe { (*made).fd };
        if let Err(error) = self.channels.watch(id, fd) {
            // SAFETY: just made.
            unsafe { (real().destroy_comp_channel)(made) };
            return Err(error);
        }
        Ok(channel)
    }

    fn destroy_channel(&mut self, channel: Real) -> Outcome<()> {
        // SAFETY: a channel of this incarnation.
        outcome(unsafe { (real().destroy_comp_channel)(channel.pointer()) })
    }

    fn create_cq(
        &mut self,
        context: Real,
        channel: Option<Real>,
        id: CqId,
        entries: u32,
        vector: u32,
    ) -> Outcome<(Real, u32)> {
        let channel = channel.map_or(core::ptr::null_mut(), Real::pointer);
        let (entries, vector) = (entries as c_int, vector as c_int);
        // SAFETY: objects of this incarnation.
        let made = unsafe {
            (real().create_cq)(context.pointer(), entries, cookie(id.0), channel, vector)
        };
        let cq = Real::of(made)?;
        keep_from_children();
        // SAFETY: just made.
        Ok((cq, unsafe { (*made).cqe } as u32))
    }

    fn resize_cq(&mut self, cq: Real, entries: u32) -> Outcome<u32> {
        // SAFETY: a queue of this incarnation.
        outcome(unsafe { (real().resize_cq)(cq.pointer(), entries as c_int) })?;
        // SAFETY: as above.
        Ok(unsafe { (*cq.pointer::<Cq>()).cqe } as u32)
    }

    fn destroy_cq(&mut self, cq: Real) -> Outcome<()> {
        // SAFETY: a queue of this incarnation.
        outcome(unsafe { (real().destroy_cq)(cq.pointer()) })
    }

    fn create_srq(&mut self, pd: Real, id: SrqId, attr: &SrqAttr) -> Outcome<(Real, SrqAttr)> {
        let mut init = SrqInitAttr { srq_context: cookie(id.0), attr: *attr };
        // SAFETY: a domain, a writable structure.
        let srq = Real::of(unsafe { (real().create_srq)(pd.pointer(), &mut init) })?;
        keep_from_children();
        // Some providers leave what they were asked for.
        let max_wr = init.attr.max_wr.max(attr.max_wr);
        Ok((srq, SrqAttr { max_wr, ..init.attr }))
    }

    fn modify_srq(&mut self, srq: Real, attr: &SrqAttr, mask: u32) -> Outcome<()> {
        let mut attr = *attr;
        // SAFETY: a queue of this incarnation, a writable structure.
        outcome(unsafe { (real().modify_srq)(srq.pointer(), &mut attr, mask as c_int) })
    }

    fn destroy_srq(&mut self, srq: Real) -> Outcome<()> {
        // SAFETY: a queue of this incarnation.
        outcome(unsafe { (real().destroy_srq)(srq.pointer()) })
    }

    fn create_ah(&mut self, pd: Real, attr: &AhAttr) -> Outcome<Real> {
        let mut attr = *attr;
        // SAFETY: a domain, a writable structure.
        Real::of(unsafe { (real().create_ah)(pd.pointer(), &mut attr) })
    }

    fn destroy_ah(&mut self, ah: Real) -> Outcome<()> {
        // SAFETY: an address of this incarnation.
        outcome(unsafe { (real().destroy_ah)(ah.pointer()) })
    }

    fn create_qp(
        &mut self,
        pd: Real,
        id: QpId,
        spec: &QpSpec<Real>,
    ) -> Outcome<(Real, u32, QpCap)> {
        let mut init = QpInitAttr {
            qp_context: cookie(id.0),
            send_cq: spec.send_cq.pointer(),
            recv_cq: spec.recv_cq.pointer(),
            srq: spec.srq.map_or(core::ptr::null_mut(), Real::pointer),
            cap: spec.cap,
            qp_type: spec.kind,
            sq_sig_all: spec.signal_all.into(),
        };
        // SAFETY: objects of this incarnation, a writable structure.
        let made = unsafe { (real().create_qp)(pd.pointer(), &mut init) };
        let qp = Real::of(made)?;
        keep_from_children();
        // SAFETY: just made.
        Ok((qp, unsafe { (*made).qp_num }, init.cap))
    }

    fn modify_qp(&mut self, qp: Real, attr: &QpAttr, mask: u32) -> Outcome<()> {
        let mut attr = *attr;
        // SAFETY: a queue pair of this incarnation, a writable structure.
        outcome(unsafe { (real().modify_qp)(qp.pointer(), &mut attr, mask as c_int) })
    }

    fn destroy_qp(&mut self, qp: Real) -> Outcome<()> {
        // SAFETY: a queue pair of this incarnation.
        outcome(unsafe { (real().destroy_qp)(qp.pointer()) })
    }

    fn post_send(&mut self, qp: Real, send: &Send<'_, Real>) -> Outcome<()> {
        let wr = match send.target {
            Target::Receive => {
                Wr { atomic: Atomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 } }
            }
            Target::Memory { address, key } => {
                Wr { rdma: Rdma { remote_addr: address, rkey: key } }
            }
            Target::Atomic { address, key, compare_add, swap } => {
                Wr { atomic: Atomic { remote_addr: address, compare_add, swap, rkey: key } }
            }
            Target::Datagram { ah, qpn, qkey } => {
                Wr { ud: Ud { ah: ah.pointer(), remote_qpn: qpn, remote_qkey: qkey } }
            }
        };
        let mut request = SendWr {
            wr_id: send.id,
            next: core::ptr::null_mut(),
            sg_list: send.sges.as_ptr().cast_mut(),
            num_sge: send.sges.len() as c_int,
            opcode: send.opcode,
            send_flags: send.flags,
            imm_data: send.imm,
            wr,
            rest: [0; 7],
        };
        let mut bad = core::ptr::null_mut();
        let pointer = qp.pointer::<Qp>();
        // SAFETY: a queue pair of this incarnation.
        let context = unsafe { (*pointer).context };
        // SAFETY: its context is open.
        let post = unsafe { (*context).ops.post_send }.ok_or(Errno::UNSUPPORTED)?;
        // SAFETY: as above; the elements outlive the call.
        outcome(unsafe { post(pointer, &mut request, &mut bad) })
    }

    fn post_receive(&mut self, qp: Real, id: u64, sges: &[Sge]) -> Outcome<()> {
        let mut request = receive(id, sges);
        let mut bad = core::ptr::null_mut();
        let pointer = qp.pointer::<Qp>();
        // SAFETY: a queue pair of this incarnation.
        let context = unsafe { (*pointer).context };
        // SAFETY: its context is open.
        let post = unsafe { (*context).ops.post_recv }.ok_or(Errno::UNSUPPORTED)?;
        // SAFETY: as above; the elements outlive the call.
        outcome(unsafe { post(pointer, &mut request, &mut bad) })
    }

    fn post_srq_receive(&mut self, srq: Real, id: u64, sges: &[Sge]) -> Outcome<()> {
        let mut request = receive(id, sges);
        let mut bad = core::ptr::null_mut();
        let pointer = srq.pointer::<Srq>();
        // SAFETY: a queue of this incarnation.
        let context = unsafe { (*pointer).context };
        // SAFETY: its context is open.
        let post = unsafe { (*context).ops.post_srq_recv }.ok_or(Errno::UNSUPPORTED)?;
        // SAFETY: as above; the elements outlive the call.
        outcome(unsafe { post(pointer, &mut request, &mut bad) })
    }

    fn poll(&mut self, cq: Real, into: &mut [Completion]) -> Outcome<usize> {
        let pointer = cq.pointer::<Cq>();
        // SAFETY: a queue of this incarnation.
        let context = unsafe { (*pointer).context };
        // SAFETY: its context is open.
        let poll = unsafe { (*context).ops.poll_cq }.ok_or(Errno::UNSUPPORTED)?;
        // SAFETY: as above; there is room for so many.
        let count = unsafe { poll(pointer, into.len() as c_int, into.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| Errno(libc::EIO))
    }

    fn arm(&mut self, cq: Real, solicited_only: bool) -> Outcome<()> {
        let pointer = cq.pointer::<Cq>();
        // SAFETY: a queue of this incarnation.
        let context = unsafe { (*pointer).context };
        // SAFETY: its context is open.
        let arm = unsafe { (*context).ops.req_notify_cq }.ok_or(Errno::UNSUPPORTED)?;
        // SAFETY: as above.
        outcome(unsafe { arm(pointer, solicited_only.into()) })
    }

    fn capture(&mut self, pd: Real, bytes: u32) -> Outcome<Capture<Real>> {
        let memory = Box::into_raw(vec![0u8; bytes.max(1) as usize].into_boxed_slice());
        let (start, access) = (memory.cast::<u8>() as u64, IBV_ACCESS_LOCAL_WRITE);
        let spec = RegionSpec { start, bytes: bytes.max(1).into(), iova: None, access };
        match self.register(pd, &spec) {
            Ok((region, keys)) => {
                let sge = Sge { addr: start, length: bytes.max(1), lkey: keys.local };
                Ok(Capture { region, sge })
            }
            Err(error) => {
                // SAFETY: just made, and given to nobody.
                drop(unsafe { Box::from_raw(memory) });
                Err(error)
            }
        }
    }

    fn captured(&mut self, capture: Capture<Real>, bytes: u32) -> Vec<u8> {
        let Sge { addr, length, .. } = capture.sge;
        let memory = core::ptr::slice_from_raw_parts_mut(addr as *mut u8, length as usize);
        if self.deregister(capture.region).is_err() {
            // The adapter may still write there: better lost than used again.
            // SAFETY: `capture` made it, and its message is there.
            return unsafe { &*memory }[..bytes.min(length) as usize].to_vec();
        }
        // SAFETY: `capture` made it, and it is given up once.
        let mut message = unsafe { Box::from_raw(memory) }.into_vec();
        message.truncate(bytes as usize);
        message
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        // SAFETY: memory that the program has registered and posted for a message.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    }

    fn raise(&mut self, channel: ChannelId, cq: CqId) {
        self.channels.raise(channel, cq);
    }

    fn publish(&mut self, epoch: u32, name: Name, value: Value) {
        self.directory.publish(epoch, name, value);
    }

    fn find(&mut self, epoch: u32, name: Name) -> Option<Value> {
        self.directory.find(epoch, name)
    }
}

fn receive(id: u64, sges: &[Sge]) -> RecvWr {
    RecvWr {
        wr_id: id,
        next: core::ptr::null_mut(),
        sg_list: sges.as_ptr().cast_mut(),
        num_sge: sges.len() as c_int,
    }
}
