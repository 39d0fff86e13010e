//! A process' endpoint: what the others must know before they can send it messages. It is published
//! through Open MPI's modex and read by peers that may run another version: everything is checked.
//!
//! ```text
//! "RBTLCARD", version of the component, u8 wire format, node      <- the same in all versions
//! u32 rank, u32 size, u32 pid, u16 incarnation, u64 policy fingerprint, u32 set,
//! policy, name of the node's segment,
//! u8 number of networks, for each: its name, address
//! u16 number of shared objects, u64 each
//! ```
//! Strings and blobs: u16 length, then the bytes. Integers are little endian.

use rustbtl_fragments::ids::{Incarnation, SetId};
use rustbtl_fragments::little_endian::{LittleEndian, take_bytes};
use rustbtl_fragments::wire;
use std::collections::BTreeMap;

const MAGIC: &[u8; 8] = b"RBTLCARD";

/// Version of this component.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// See the module's documentation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Endpoint {
    /// Name of the node.
    pub node: String,
    /// Rank in the world of its job.
    pub rank: u32,
    /// Processes of its job.
    pub size: u32,
    /// Process id.
    pub pid: u32,
    /// Incarnation.
    pub incarnation: Incarnation,
    /// `coordination::fingerprint` of its set policy.
    pub policy: u64,
    /// Its set policy, for messages.
    pub policy_text: String,
    /// Its correlated set.
    pub set: SetId,
    /// Name of the node's shared-memory segment; empty but for the process that made it.
    pub segment: String,
    /// By the name of each network that it has: the network's own encoding.
    pub addresses: BTreeMap<String, Vec<u8>>,
    /// Of one that was restored: memory that it shares with others of its node
    /// (`checkpoint::parted_memory`).
    pub shared_memory: Vec<u64>,
}

/// Why an endpoint is of no use.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EndpointError {
    /// Not an endpoint at all.
    #[error("what it published cannot be read")]
    Damaged,
    /// Another version of the component.
    #[error("version {version} (wire format {wire:#x}) on node {node}")]
    Version {
        /// Its version.
        version: String,
        /// Its wire format.
        wire: u8,
        /// Where it runs.
        node: String,
    },
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = bytes.len().min(usize::from(u16::MAX));
    (length as u16).append(out);
    out.extend_from_slice(&bytes[..length]);
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], EndpointError> {
        take_bytes(&mut self.0, bytes).ok_or(EndpointError::Damaged)
    }
    fn number<N: LittleEndian>(&mut self) -> Result<N, EndpointError> {
        N::take_from(&mut self.0).ok_or(EndpointError::Damaged)
    }
    fn blob(&mut self) -> Result<&'a [u8], EndpointError> {
        let length: u16 = self.number()?;
        self.take(usize::from(length))
    }
    fn addresses(&mut self) -> Result<BTreeMap<String, Vec<u8>>, EndpointError> {
        let count: u8 = self.number()?;
        (0..count).map(|_| Ok((self.text()?, self.blob()?.to_vec()))).collect()
    }
    fn numbers(&mut self) -> Result<Vec<u64>, EndpointError> {
        let count: u16 = self.number()?;
        (0..count).map(|_| self.number()).collect()
    }
    fn text(&mut self) -> Result<String, EndpointError> {
        String::from_utf8(self.blob()?.to_vec()).map_err(|_| EndpointError::Damaged)
    }
}

impl Endpoint {
    /// Its address in this network; empty: it has none.
    pub fn address(&self, network: &str) -> &[u8] {
        self.addresses.get(network).map_or(&[], Vec::as_slice)
    }

    /// As it is published.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put(&mut out, VERSION.as_bytes());
        out.push(wire::VERSION);
        put(&mut out, self.node.as_bytes());
        for number in [self.rank, self.size, self.pid] {
            number.append(&mut out);
        }
        self.incarnation.0.append(&mut out);
        self.policy.append(&mut out);
        self.set.0.append(&mut out);
        put(&mut out, self.policy_text.as_bytes());
        put(&mut out, self.segment.as_bytes());
        out.push(self.addresses.len() as u8);
        for (name, address) in &self.addresses {
            put(&mut out, name.as_bytes());
            put(&mut out, address);
        }
        let shared = &self.shared_memory[..self.shared_memory.len().min(usize::from(u16::MAX))];
        (shared.len() as u16).append(&mut out);
        shared.iter().for_each(|object| object.append(&mut out));
        out
    }

    /// Read an endpoint of this version; name the version of another.
    pub fn decode(bytes: &[u8]) -> Result<Self, EndpointError> {
        let mut reader = Reader(bytes);
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(EndpointError::Damaged);
        }
        let version = reader.text()?;
        let wire: u8 = reader.number()?;
        let node = reader.text()?;
        if version != VERSION || wire != wire::VERSION {
            return Err(EndpointError::Version { version, wire, node });
        }
        let endpoint = Self {
            node,
            rank: reader.number()?,
            size: reader.number()?,
            pid: reader.number()?,
            incarnation: Incarnation(reader.number()?),
            policy: reader.number()?,
            set: SetId(reader.number()?),
            policy_text: reader.text()?,
            segment: reader.text()?,
            addresses: reader.addresses()?,
            shared_memory: reader.numbers()?,
        };
        if reader.0.is_empty() { Ok(endpoint) } else { Err(EndpointError::Damaged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Endpoint {
        Endpoint {
            node: "n1".into(),
            rank: 3,
            size: 8,
            pid: 4711,
            incarnation: Incarnation(2),
            policy: 0x0123_4567_89AB_CDEF,
            policy_text: "node".into(),
            set: SetId(2),
            segment: "rustbtl-0-aa".into(),
            addresses: BTreeMap::from([("tcp".into(), vec![1, 2, 3])]),
            shared_memory: vec![7, u64::MAX],
        }
    }

    #[test]
    fn what_is_encoded_decodes() {
        assert_eq!(Endpoint::decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn every_cut_and_every_addition_is_refused() {
        let good = sample().encode();
        for length in 0..good.len() {
            assert_eq!(Endpoint::decode(&good[..length]), Err(EndpointError::Damaged), "{length}");
        }
        let mut longer = good;
        longer.push(0);
        assert_eq!(Endpoint::decode(&longer), Err(EndpointError::Damaged));
    }

    #[test]
    fn another_version_is_named_whatever_follows() {
        let mut other = MAGIC.to_vec();
        put(&mut other, b"9.9.9");
        other.push(0xB7);
        put(&mut other, b"n7");
        other.extend_from_slice(b"something else");
        let expected =
            EndpointError::Version { version: "9.9.9".into(), wire: 0xB7, node: "n7".into() };
        assert_eq!(Endpoint::decode(&other), Err(expected));
    }
}
