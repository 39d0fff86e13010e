//! How the TCP transport is set up, and what a process publishes for its peers.

use crate::os::OsError;
use core::fmt;
use rustbtl_fragments::ids::PeerId;
use rustbtl_fragments::little_endian::{LittleEndian, take_array};
use rustbtl_fragments::wire::{FrameType, HEADER_BYTES, Header};
use std::net::{IpAddr, SocketAddr};

/// Settings of a [`crate::transports::tcp::Tcp`].
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Who we are.
    pub me: PeerId,
    /// In which incarnation.
    pub incarnation: u16,
    /// Our secret; `None`: drawn from the kernel.
    pub secret: Option<[u8; 32]>,
    /// Interfaces to use: names and networks ("eth0,10.0.0.0/8"). Empty: see `if_exclude`.
    pub if_include: String,
    /// Interfaces not to use. Empty: the loopback, unless there is nothing else.
    pub if_exclude: String,
    /// Use IPv4.
    pub ipv4: bool,
    /// Use IPv6.
    pub ipv6: bool,
    /// SO_SNDBUF and SO_RCVBUF; 0: the kernel tunes them.
    pub socket_buffer_bytes: usize,
    /// Buffer of a connection for reading; it takes at least one frame of `chunk_bytes_max`.
    pub receive_buffer_bytes: usize,
    /// Largest payload of an eager fragment.
    pub eager_bytes_max: u32,
    /// Largest payload of a rendezvous data frame.
    pub chunk_bytes_max: u32,
    /// Frames up to this size are gathered when several are sent without progress in between.
    pub gather_bytes_max: usize,
    /// How long to try to reach a peer, all addresses and repetitions together.
    pub connect_ms_max: u32,
    /// How long an unauthenticated peer may take to prove that it belongs to the job.
    pub handshake_ms_max: u32,
    /// How long `close` waits for the peers to take notice.
    pub linger_ms_max: u32,
    /// A peer that acknowledges nothing for so long is lost; 0: the kernel's own limits, which are
    /// hours. For users of this transport that have no other failure detector.
    pub silence_ms_max: u32,
    /// By the header of a frame: may its payload have a place of its own?
    pub places: fn(&[u8; HEADER_BYTES]) -> bool,
    /// Encrypt what runs over the connections. All peers do, or none.
    pub encrypt: bool,
    /// Version of what runs over the connections; peers with another one are refused.
    pub version: u32,
}

/// Version of handshake, frames and their meaning.
pub const VERSION: u32 = 0x0001_0000 | rustbtl_fragments::wire::VERSION as u32;
/// Added to the version where connections are encrypted: others do not understand it.
const ENCRYPTED: u32 = 0x8000_0000;

impl TcpConfig {
    /// The version that peers must have, too.
    pub(super) fn spoken_version(&self) -> u32 {
        self.version | if self.encrypt { ENCRYPTED } else { 0 }
    }

    /// Longest frame that a peer may send.
    pub(super) fn frame_bytes_max(&self) -> usize {
        let payload = self.chunk_bytes_max.max(self.eager_bytes_max) as usize;
        payload + rustbtl_fragments::wire::ANNOUNCE_BYTES
    }
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            me: PeerId(0),
            incarnation: 0,
            secret: None,
            if_include: String::new(),
            if_exclude: String::new(),
            ipv4: true,
            ipv6: true,
            socket_buffer_bytes: 0,
            receive_buffer_bytes: 512 << 10,
            eager_bytes_max: 64 << 10,
            chunk_bytes_max: 128 << 10,
            gather_bytes_max: 4 << 10,
            connect_ms_max: 30_000,
            handshake_ms_max: 5_000,
            linger_ms_max: 1_000,
            silence_ms_max: 0,
            places: is_data,
            encrypt: false,
            version: VERSION,
        }
    }
}

/// Of the engine's frames, those that bring a part of a payload that was requested.
fn is_data(head: &[u8; HEADER_BYTES]) -> bool {
    Header::decode_alone(head).is_ok_and(|header| header.kind == FrameType::Data)
}

/// What must be known of a process to connect to it.
#[derive(Clone, PartialEq, Eq)]
pub struct TcpPeer {
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
    /// Its secret: who knows it belongs to the job.
    pub secret: [u8; 32],
    /// Its incarnation.
    pub incarnation: u16,
}

impl fmt::Debug for TcpPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpPeer({:?}, incarnation {})", self.addresses, self.incarnation)
    }
}

const ENDPOINT_MAGIC: [u8; 4] = *b"RBT1";
const ADDRESSES_MAX: usize = 64;

impl TcpPeer {
    /// As published: magic, incarnation u16, number of addresses u16, secret, then for each
    /// address its family (4 or 6), port u16, and 4 or 16 bytes. Little endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = ENDPOINT_MAGIC.to_vec();
        self.incarnation.append(&mut out);
        let count = self.addresses.len().min(ADDRESSES_MAX);
        (count as u16).append(&mut out);
        out.extend_from_slice(&self.secret);
        for address in &self.addresses[..count] {
            out.push(if address.is_ipv4() { 4 } else { 6 });
            address.port().append(&mut out);
            match address.ip() {
                IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
                IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
            }
        }
        out
    }

    /// The reverse.
    pub fn decode(mut from: &[u8]) -> Result<Self, TcpError> {
        let bad = || TcpError::Address;
        if take_array::<4>(&mut from).ok_or_else(bad)? != ENDPOINT_MAGIC {
            return Err(bad());
        }
        let incarnation = u16::take_from(&mut from).ok_or_else(bad)?;
        let count = usize::from(u16::take_from(&mut from).ok_or_else(bad)?);
        let secret = take_array(&mut from).ok_or_else(bad)?;
        if count > ADDRESSES_MAX {
            return Err(bad());
        }
        let mut addresses = Vec::with_capacity(count);
        for _ in 0..count {
            let family = u8::take_from(&mut from).ok_or_else(bad)?;
            let port = u16::take_from(&mut from).ok_or_else(bad)?;
            let ip = match family {
                4 => IpAddr::from(take_array::<4>(&mut from).ok_or_else(bad)?),
                6 => IpAddr::from(take_array::<16>(&mut from).ok_or_else(bad)?),
                _ => return Err(bad()),
            };
            addresses.push(SocketAddr::new(ip, port));
        }
        if !from.is_empty() {
            return Err(bad());
        }
        Ok(Self { addresses, secret, incarnation })
    }
}

/// Why there is no TCP transport.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TcpError {
    /// A system call failed.
    #[error(transparent)]
    Os(#[from] OsError),
    /// `if_include` or `if_exclude` names an interface that does not exist.
    #[error(
        "{parameter} names the interface {name:?}, which does not exist on this host; there are: \
         {existing}"
    )]
    UnknownInterface {
        /// Which parameter.
        parameter: &'static str,
        /// The name.
        name: String,
        /// What there is.
        existing: String,
    },
    /// An entry is neither a name nor a network.
    #[error(
        "{parameter}: {entry:?} is neither the name of an interface nor a network like 10.0.0.0/8"
    )]
    BadEntry {
        /// Which parameter.
        parameter: &'static str,
        /// The entry.
        entry: String,
    },
    /// Both parameters are set.
    #[error("if_include and if_exclude are both set; choose one of them")]
    IncludeAndExclude,
    /// Nothing is left to listen on.
    #[error(
        "no network interface is left to use; this host has: {existing}; look at if_include and \
         if_exclude"
    )]
    NoInterface {
        /// What there is.
        existing: String,
    },
    /// What a peer published cannot be read.
    #[error(
        "the TCP address that a peer published cannot be read; it runs another version of this \
         component"
    )]
    Address,
    /// Sizes that make no sense.
    #[error("{0}")]
    Arguments(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_survives_publishing_and_damage_is_noticed() {
        let from = TcpPeer {
            addresses: vec!["10.1.2.3:4567".parse().unwrap(), "[fd00::1]:89".parse().unwrap()],
            secret: [9; 32],
            incarnation: 3,
        };
        let bytes = from.encode();
        assert_eq!(TcpPeer::decode(&bytes), Ok(from));
        for len in 0..bytes.len() {
            assert_eq!(TcpPeer::decode(&bytes[..len]), Err(TcpError::Address));
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(TcpPeer::decode(&longer), Err(TcpError::Address));
    }

    #[test]
    fn a_secret_is_not_printed() {
        let from = TcpPeer { addresses: vec![], secret: [0xAB; 32], incarnation: 0 };
        assert!(!format!("{from:?}").to_lowercase().contains("171"));
    }
}
