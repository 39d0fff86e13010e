//! Mirror of `glue-c/include/glue.h`, the C interface. Sizes and offsets are asserted there and
//! here.

use core::ffi::{c_char, c_void};
use memoffset::offset_of;
use static_assertions::const_assert_eq;

/// Complete; the operation will not be completed again.
pub const DONE: i32 = 0;
/// The operation completes later.
pub const PENDING: i32 = 1;
/// A help text has said why.
pub const FAILED: i32 = -1;
/// The payload log has no room.
pub const LOG_FULL: i32 = -2;

/// `Operation::kind`: a blocking call waits for `state`.
pub const ON_STACK: u32 = 0;
/// `Operation::kind`: part of an MPI request.
pub const IN_REQUEST: u32 = 1;

/// `Operation::kind`: fetches data from a window; `outcome` is an error of `enum rustbtl_rma`.
pub const FETCHES: u32 = 2;
/// `Operation::kind`: a message of one-sided communication. Only in Rust.
pub const OF_WINDOW: u32 = 3;

/// `Operation::outcome`: the message was longer than the buffer.
pub const TRUNCATED: u32 = 1;
/// `Operation::outcome`: the receive was cancelled.
pub const CANCELLED: u32 = 2;

/// `Operation::state`: not complete. Anything but this and [`STATE_COMPLETE`]: a waiting thread.
pub const STATE_PENDING: usize = 0;
/// `Operation::state`: complete.
pub const STATE_COMPLETE: usize = 1;

/// MPI_ANY_SOURCE and MPI_ANY_TAG.
pub const ANY: i32 = -1;

/// A send or receive. It stays where it is from post to completion.
#[repr(C)]
#[derive(Debug)]
pub struct Operation {
    /// As `ompi_request_t.req_complete`.
    pub state: usize,
    /// Contiguous memory; ignored with a convertor.
    pub start: *mut u8,
    /// Send: packed bytes of the message; receive: packed bytes of the buffer.
    pub bytes: u64,
    /// Null: the memory is contiguous.
    pub convertor: *mut c_void,
    /// The engine's name for it while it is pending.
    pub id: u64,
    /// Receive: bytes of the message.
    pub received: u64,
    /// Receive: sender's rank in the communicator.
    pub source: i32,
    /// Receive: the message's tag.
    pub tag: i32,
    /// [`TRUNCATED`], [`CANCELLED`].
    pub outcome: u32,
    /// [`ON_STACK`] or [`IN_REQUEST`].
    pub kind: u32,
}

const_assert_eq!(size_of::<Operation>(), 64);
const_assert_eq!(offset_of!(Operation, convertor), 24);
const_assert_eq!(offset_of!(Operation, source), 48);
const_assert_eq!(offset_of!(Operation, kind), 60);

/// Envelope of a message, as a probe finds it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Envelope {
    /// Claimed messages: its name.
    pub message: u64,
    /// Length.
    pub bytes: u64,
    /// Sender's rank in the communicator.
    pub source: i32,
    /// Tag.
    pub tag: i32,
}

const_assert_eq!(size_of::<Envelope>(), 24);

/// Name of a process in the whole universe of jobs.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Name {
    /// Open MPI's job id.
    pub job: u32,
    /// Rank in that job's world.
    pub rank: u32,
}

const_assert_eq!(size_of::<Name>(), 8);

/// MCA parameters (see `glue-c/vprotocol/vprotocol_correlated_params.c` for their meaning).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Config {
    pub sets: *const c_char,
    pub log_budget: *const c_char,
    pub log_spill_dir: *const c_char,
    pub single_copy: *const c_char,
    pub shm_directory: *const c_char,
    pub tcp_if_include: *const c_char,
    pub tcp_if_exclude: *const c_char,
    pub report: *const c_char,
    pub verbs: *const c_char,
    pub verbs_if_include: *const c_char,
    pub verbs_gid_index: *const c_char,
    pub log_segment_max: u64,
    pub log_prefault: u64,
    pub shm_ring: u64,
    pub tcp_socket_buffer: u64,
    pub tcp_receive_buffer: u64,
    pub file_undo_max: u64,
    pub shm_eager_limit: u32,
    pub tcp_eager_limit: u32,
    pub tcp_chunk: u32,
    pub tcp_connect_timeout: u32,
    pub spin: u32,
    pub spin_oversubscribed: u32,
    pub tcp_poll_interval: u32,
    pub peer_loss_timeout: u32,
    pub verbose: u32,
    pub overhead_max: u32,
    pub verbs_mtu: u32,
    pub verbs_read_min: u32,
    pub shm: u8,
    pub tcp_ipv4: u8,
    pub tcp_ipv6: u8,
    pub summary: u8,
    pub huge_pages: u8,
    pub record_clock: u8,
    pub verify_sends: u8,
    pub piggyback: u8,
    pub trim_received: u8,
    pub log_full: u8,
    pub tcp_encrypt: u8,
}

const_assert_eq!(size_of::<Config>(), 200);
const_assert_eq!(offset_of!(Config, shm_eager_limit), 136);
const_assert_eq!(offset_of!(Config, shm), 184);

/// `log_full`: a full log asks for a checkpoint that lets it be trimmed.
pub const LOG_CHECKPOINT: u8 = 1;
/// `log_full`: a full log goes to a file.
pub const LOG_SPILL: u8 = 2;

/// Where this process is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct JobInfo {
    /// Name of the node.
    pub node: *const c_char,
    /// Session directory of the process, or null.
    pub session_dir: *const c_char,
    /// World ranks on this node, ascending, own one included.
    pub local_ranks: *const u32,
    /// Locality string of each, null where unknown.
    pub localities: *const *const c_char,
    /// This process.
    pub me: Name,
    /// Processes of the job.
    pub size: u32,
    /// Processes of the job on this node.
    pub local_size: u32,
    /// Processors that they may use.
    pub processors: u32,
    /// MPI_THREAD_MULTIPLE was given.
    pub threads: u8,
    /// MPI_THREAD_SERIALIZED was given.
    pub serialized: u8,
    /// Zero.
    pub reserved: [u8; 2],
}

const_assert_eq!(size_of::<JobInfo>(), 56);
const_assert_eq!(offset_of!(JobInfo, threads), 52);

/// A function of MPI that is interposed: `rustbtl_interposed_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct InterposedFunction {
    /// As MPI has it. Null: behind the last.
    pub name: *const core::ffi::c_char,
    /// For tools that have their own of the first name.
    pub second_name: *const core::ffi::c_char,
    /// Open MPI's: only its address is of use.
    pub stock: *const (),
    /// Ours.
    pub own: *const (),
}

const_assert_eq!(size_of::<InterposedFunction>(), 32);

/// Bytes in a row of the target's memory.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Bytes from the place of the access.
    pub at: i64,
    /// How many.
    pub bytes: u64,
}

const_assert_eq!(size_of::<Row>(), 16);

/// An access to a target's memory: `rustbtl_access_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// What is sent, packed.
    pub data: *const u8,
    /// How many bytes; 0 where nothing is sent.
    pub bytes: u64,
    /// Rows of one element of the target's type, in their order; null: primitives in a row.
    pub rows: *const Row,
    /// How many.
    pub row_count: u64,
    /// Elements of the target's type, or primitives.
    pub count: u64,
    /// Bytes from one element to the next.
    pub extent: i64,
    /// In units of the target; dynamic windows: an address.
    pub displacement: i64,
    /// Where fetched data goes; of kind [`ON_STACK`] it is only read, else [`FETCHES`] and kept
    /// until it is complete.
    pub result: *mut Operation,
    /// Its name.
    pub window: u32,
    /// Rank of the target.
    pub target: u32,
    /// What is done: `enum rustbtl_access_kind`.
    pub kind: u32,
    /// How data is combined: `enum rustbtl_op`.
    pub op: u32,
    /// What the target consists of: `enum rustbtl_primitive`.
    pub primitive: u32,
    /// Zero.
    pub reserved: u32,
}

const_assert_eq!(size_of::<Access>(), 88);
const_assert_eq!(offset_of!(Access, result), 56);

impl Default for Access {
    fn default() -> Self {
        Self {
            data: core::ptr::null(),
            bytes: 0,
            rows: core::ptr::null(),
            row_count: 0,
            count: 0,
            extent: 0,
            displacement: 0,
            result: core::ptr::null_mut(),
            window: 0,
            target: 0,
            kind: 0,
            op: 0,
            primitive: 0,
            reserved: 0,
        }
    }
}

/// A window that is made: `rustbtl_window_setup_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WindowSetup {
    /// Bytes of each rank's memory.
    pub bytes: *const u64,
    /// What one of a displacement stands for, at each rank.
    pub units: *const u32,
    /// Own memory.
    pub base: *mut u8,
    /// The engine's number for its communicator.
    pub comm: u32,
    /// Own rank.
    pub rank: u32,
    /// Ranks.
    pub size: u32,
    /// As MPI_WIN_CREATE_FLAVOR.
    pub flavor: u32,
    /// The info key.
    pub no_locks: u32,
    /// Zero.
    pub reserved: u32,
}

const_assert_eq!(size_of::<WindowSetup>(), 48);
const_assert_eq!(offset_of!(WindowSetup, comm), 24);

/// What C does for Rust.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Glue {
    /// An operation is complete. No lock may be held; calls back.
    pub complete: unsafe extern "C" fn(*mut Operation),
    /// The same for an operation in a request that nobody wants to be called for; 0: it is not one,
    /// nothing has happened. The program's thread, without others; does not call back.
    pub complete_now: unsafe extern "C" fn(*mut Operation) -> i32,
    /// Is an operation in a request a step of a nonblocking collective?
    pub is_step: unsafe extern "C" fn(*mut Operation) -> i32,
    /// Packed bytes of a send's memory: convertor, offset, into, bytes.
    pub pack: unsafe extern "C" fn(*mut c_void, u64, *mut u8, u64),
    /// The reverse: convertor, offset, from, bytes.
    pub unpack: unsafe extern "C" fn(*mut c_void, u64, *const u8, u64),
    /// Which process is this rank of the communicator? Of an intercommunicator: of its remote
    /// group, or of its local one if the third is not 0.
    pub resolve: unsafe extern "C" fn(*mut c_void, u32, i32, *mut Name),
    /// A copy of that process' endpoint, or null.
    pub endpoint_of: unsafe extern "C" fn(*const Name, *mut usize) -> *mut u8,
    /// Give such a copy back.
    pub release: unsafe extern "C" fn(*mut c_void),
    /// Open MPI's progress.
    pub progress: unsafe extern "C" fn(),
    /// Does Open MPI want waiting processes to yield?
    pub yields: unsafe extern "C" fn() -> i32,
    /// Show a help text.
    pub help: unsafe extern "C" fn(
        *const c_char,
        *const c_char,
        *const c_char,
        *const c_char,
        *const c_char,
    ),
    /// End the job with an error. Does not return.
    pub abort: unsafe extern "C" fn(),
    /// Have the node's daemon remove this file when the process has ended.
    pub cleanup: unsafe extern "C" fn(*const c_char),
    /// 0: in MPI_Init; 1: after it; 2: in or after MPI_Finalize.
    pub stage: unsafe extern "C" fn() -> i32,
    /// This process has a guardian: survive the loss of the PMIx server once `restored`,
    /// and have MPI_Finalize wait for the others by `rustbtl_fence`.
    pub protect: unsafe extern "C" fn() -> i32,
    /// The process was restored: it has no PMIx server any more.
    pub restored: unsafe extern "C" fn(),
    /// The fence that `rustbtl_fence` began is complete.
    pub fenced: unsafe extern "C" fn(),
    /// Open MPI's own MPI_Wtime.
    pub wtime: unsafe extern "C" fn() -> f64,
    /// The functions that are interposed; the last has no name.
    pub interposed: *const InterposedFunction,
    /// Is an endpoint only fetched, from the daemon of its process, when somebody needs it? 0: no.
    pub endpoints_on_demand: i32,
    /// A line on the component's own output stream: see [`crate::ffi::verbose`].
    pub verbose: unsafe extern "C" fn(i32, *const c_char),
}

const_assert_eq!(size_of::<Glue>(), 168);

/// Which counter a performance variable shows, in the order of `enum rustbtl_pvar`.
pub const PVARS: usize = 15;
