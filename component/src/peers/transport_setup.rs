//! The parameters of all transports, as they are opened at the start and again after a restart,
//! when the node, its ranks and every socket are others.

use crate::ffi::config::TextParameters;
use crate::ffi::table::{Config, Glue};
use crate::transports::shm::{Segment, SegmentOptions, Shm, ShmError};
use crate::transports::tcp::TcpConfig;
use crate::transports::verbs::{Sizes, Usage, VerbsConfig};
use rustbtl_fragments::ids::PeerId;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Sockets are polled once in so many rounds while no process of another node was ever reached.
pub const NETWORK_UNUSED_INTERVAL: u32 = 4096;
/// How long the leader of a node may take to make the segment after a restart.
const SEGMENT_WAIT: Duration = Duration::from_secs(60);

/// The transport within a node: every rank of it attaches the same memory.
pub type NodeTransport = Shm;
/// The memory, before there is a transport over it.
pub type NodeSegment = Segment;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct TransportSetup {
    use_node_memory: bool,
    segment: SegmentOptions,
    tcp: TcpConfig,
    verbs: VerbsConfig,
    network_poll_interval: u32,
    size: u32,
    /// Processors that this node's ranks may use.
    pub processors: u32,
}

impl TransportSetup {
    /// From the parameters, for process `me` of `size`.
    pub fn new(
        glue: &Glue,
        config: &Config,
        texts: &TextParameters,
        me: PeerId,
        size: u32,
        processors: u32,
    ) -> Self {
        let single_copy = match texts.single_copy.as_str() {
            "auto" | "cma" | "" => true,
            "none" => false,
            other => glue.fatal("bad-value", &["single_copy", other, "auto, cma, none"]),
        };
        let defaults = TcpConfig::default();
        let or = |value: u32, default: u32| if value == 0 { default } else { value };
        let tcp = TcpConfig {
            me,
            incarnation: 0,
            if_include: texts.if_include.clone(),
            if_exclude: texts.if_exclude.clone(),
            ipv4: config.tcp_ipv4 != 0,
            ipv6: config.tcp_ipv6 != 0,
            encrypt: config.tcp_encrypt != 0,
            socket_buffer_bytes: config.tcp_socket_buffer as usize,
            receive_buffer_bytes: config.tcp_receive_buffer as usize,
            eager_bytes_max: or(config.tcp_eager_limit, defaults.eager_bytes_max),
            chunk_bytes_max: or(config.tcp_chunk, defaults.chunk_bytes_max),
            connect_ms_max: or(config.tcp_connect_timeout, defaults.connect_ms_max),
            ..defaults
        };
        let usage = match texts.verbs.as_str() {
            "auto" => Usage::Auto,
            "0" | "" => Usage::Never,
            "1" => Usage::Always,
            other => glue.fatal("bad-value", &["verbs", other, "auto, 0, 1"]),
        };
        let gid_index = match texts.verbs_gid_index.as_str() {
            "auto" | "" => None,
            index => match index.parse() {
                Ok(index) => Some(index),
                Err(_) => glue.fatal("bad-value", &["verbs_gid_index", index, "auto, 0 to 255"]),
            },
        };
        let read_bytes_min = config.verbs_read_min as usize;
        let verbs = VerbsConfig {
            usage,
            if_include: texts.verbs_if_include.clone(),
            gid_index,
            mtu: config.verbs_mtu,
            sizes: Sizes { read_bytes_min, ..Sizes::default() },
            tcp: tcp.clone(),
        };
        let segment = SegmentOptions {
            directory: PathBuf::from(&texts.shm_directory),
            ring_bytes: config.shm_ring as usize,
            eager_bytes_max: config.shm_eager_limit,
            single_copy,
        };
        Self {
            use_node_memory: config.shm != 0,
            segment,
            tcp,
            verbs,
            network_poll_interval: config.tcp_poll_interval,
            size,
            processors,
        }
    }

    /// Do `local` ranks of a node use shared memory?
    pub fn uses_node_memory(&self, local: usize) -> bool {
        self.use_node_memory && local > 1
    }

    /// Does every rank of the job reach all others without a network?
    pub fn all_reached(&self, local: usize) -> bool {
        self.size == 1 || (self.uses_node_memory(local) && local == self.size as usize)
    }

    /// Make the node's segment. Ends the job if that fails.
    pub fn create_segment(&self, glue: &Glue, local: usize, index: usize) -> NodeSegment {
        let segment = Segment::create(local, index, &self.segment)
            .unwrap_or_else(|error| glue.fatal("shm", &[&error.to_string()]));
        // The last rank to attach removes it; this is for jobs that die before.
        glue.remove_at_end(&self.segment.directory.join(segment.name()));
        segment
    }

    /// Attach the node's segment, which the first rank has made. Ends the job if that fails.
    pub fn attach_segment(
        &self,
        glue: &Glue,
        name: &str,
        local: usize,
        index: usize,
    ) -> NodeSegment {
        Segment::attach(name, local, index, &self.segment)
            .unwrap_or_else(|error| glue.fatal("shm", &[&error.to_string()]))
    }

    /// After a restart: the segment under a name that all ranks of the node know and nobody else
    /// can guess. The first rank makes it, the others wait for it. Ends the job if that fails.
    pub fn new_segment(
        &self,
        glue: &Glue,
        secret: u128,
        local: usize,
        index: usize,
    ) -> NodeSegment {
        self.try_new_segment(secret, local, index)
            .unwrap_or_else(|error| glue.fatal("shm", &[&error.to_string()]))
    }

    fn try_new_segment(
        &self,
        secret: u128,
        local: usize,
        index: usize,
    ) -> Result<NodeSegment, ShmError> {
        if index == 0 {
            return Segment::create_named(secret, local, index, &self.segment);
        }
        let name = Segment::name_of(secret);
        let give_up = Instant::now() + SEGMENT_WAIT;
        loop {
            match Segment::attach(&name, local, index, &self.segment) {
                Err(ShmError::Os(error)) if matches!(error.code, libc::ENOENT | libc::EINVAL) => {}
                Err(ShmError::NotASegment(_)) => {}
                result => return result,
            }
            if Instant::now() > give_up {
                return Segment::attach(&name, local, index, &self.segment);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Networks are polled once in so many rounds while only shared memory is busy.
    pub fn network_interval(&self, local: usize) -> u32 {
        if self.all_reached(local) {
            self.network_poll_interval.max(NETWORK_UNUSED_INTERVAL)
        } else {
            self.network_poll_interval
        }
    }
}

// What each network is opened with.

impl AsRef<TcpConfig> for TransportSetup {
    fn as_ref(&self) -> &TcpConfig {
        &self.tcp
    }
}

impl AsRef<VerbsConfig> for TransportSetup {
    fn as_ref(&self) -> &VerbsConfig {
        &self.verbs
    }
}
