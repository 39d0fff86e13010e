//! Names of the policies that say which processes fail together, and a number to compare them by.
//!
//! Source: DESIGN §5 (sets). Invariants:
//! 1. Every policy parses back from what it displays.
//! 2. Fingerprints of two nodes are equal where policy, size of the world and, for a file, the sets
//!    that it describes are equal, whatever its path, order of lines, blanks or comments.

use core::fmt;
use rustbtl_fragments::ids::SetId;

/// Which processes form a correlated set.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum SetPolicy {
    /// Those of a node.
    #[default]
    Node,
    /// Each by itself: plain message logging.
    Core,
    /// Those of a NUMA node.
    Numa,
    /// Those of a processor package.
    Socket,
    /// Those that share a third-level cache.
    L3,
    /// All of the job: coordinated checkpointing.
    All,
    /// As the file at this path says ([`crate::parse_set_file`]).
    File(String),
}

/// A text that names no policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PolicyError {
    /// No such name.
    Unknown(String),
    /// `file:` and nothing after it.
    NoPath,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(text) => write!(
                f,
                "unknown policy for correlated sets \"{}\"; choose one of: {}",
                crate::set_file::shown(text),
                SetPolicy::VALID
            ),
            Self::NoPath => write!(
                f,
                "the policy file: for correlated sets needs a path, as in file:/home/me/sets.txt"
            ),
        }
    }
}

impl core::error::Error for PolicyError {}

impl SetPolicy {
    /// What [`Self::parse`] takes.
    pub const VALID: &str = "node, core, none, numa, socket, l3, all, file:PATH";

    /// The policy that a text names.
    ///
    /// # Errors
    /// [`PolicyError`], whose text lists the valid values.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix("file:") {
            return match path {
                "" => Err(PolicyError::NoPath),
                path => Ok(Self::File(path.to_owned())),
            };
        }
        match text.to_ascii_lowercase().as_str() {
            "node" => Ok(Self::Node),
            "core" | "none" => Ok(Self::Core),
            "numa" => Ok(Self::Numa),
            "socket" => Ok(Self::Socket),
            "l3" => Ok(Self::L3),
            "all" => Ok(Self::All),
            _ => Err(PolicyError::Unknown(text.to_owned())),
        }
    }

    /// The file that the driver has to read.
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::File(path) => Some(path),
            _ => None,
        }
    }

    /// First letters of the level in a locality string of Open MPI.
    pub(crate) fn locality_token(&self) -> Option<&'static str> {
        match self {
            Self::Numa => Some("NM"),
            Self::Socket => Some("SK"),
            Self::L3 => Some("L3"),
            Self::Node | Self::Core | Self::All | Self::File(_) => None,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Core => "core",
            Self::Numa => "numa",
            Self::Socket => "socket",
            Self::L3 => "l3",
            Self::All => "all",
            Self::File(_) => "file",
        }
    }
}

impl fmt::Display for SetPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{path}"),
            other => f.write_str(other.name()),
        }
    }
}

/// A number that nodes compare, to find out that they were started with different sets. The same
/// on every machine; `file` is what [`crate::parse_set_file`] gave.
pub fn fingerprint(policy: &SetPolicy, world_size: u32, file: Option<&[SetId]>) -> u64 {
    let mut hash = Fnv::new();
    hash.write(b"rustbtl sets 1\n");
    hash.write(policy.name().as_bytes());
    hash.write(b"\n");
    hash.write(&world_size.to_le_bytes());
    if let (SetPolicy::File(_), Some(sets)) = (policy, file) {
        for set in sets {
            hash.write(&set.0.to_le_bytes());
        }
    }
    hash.0
}

/// FNV-1a, 64 bits: a fixed function, unlike the standard library's hasher.
struct Fnv(u64);

impl Fnv {
    const fn new() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invariant_1_every_policy_parses_back_from_its_name() {
        for text in ["node", "core", "numa", "socket", "l3", "all", "file:/a b/C.txt"] {
            assert_eq!(SetPolicy::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(SetPolicy::parse("none"), Ok(SetPolicy::Core));
        assert_eq!(SetPolicy::parse(" NUMA "), Ok(SetPolicy::Numa));
    }

    #[test]
    fn an_unknown_policy_is_answered_with_the_valid_ones() {
        let table = [
            (
                "nodes",
                "unknown policy for correlated sets \"nodes\"; choose one of: \
                 node, core, none, numa, socket, l3, all, file:PATH",
            ),
            (
                "",
                "unknown policy for correlated sets \"\"; choose one of: \
                 node, core, none, numa, socket, l3, all, file:PATH",
            ),
            (
                "file:",
                "the policy file: for correlated sets needs a path, as in \
                 file:/home/me/sets.txt",
            ),
        ];
        for (text, message) in table {
            assert_eq!(SetPolicy::parse(text).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn every_valid_name_is_in_the_list() {
        for name in SetPolicy::VALID.split(", ") {
            assert!(SetPolicy::parse(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn invariant_2_a_fingerprint_is_a_fixed_number() {
        assert_eq!(fingerprint(&SetPolicy::Node, 4, None), 0x1010_3108_F74C_E8E7);
        let file = |path: &str, sets: &[u32]| {
            let sets: Vec<_> = sets.iter().map(|&set| SetId(set)).collect();
            fingerprint(&SetPolicy::File(path.to_owned()), sets.len() as u32, Some(&sets))
        };
        assert_eq!(file("/a", &[0, 0, 2, 2]), file("/b", &[0, 0, 2, 2]));
        assert_ne!(file("/a", &[0, 0, 2, 2]), file("/a", &[0, 1, 0, 1]));
        let mut all: Vec<u64> = ["node", "core", "numa", "socket", "l3", "all"]
            .iter()
            .flat_map(|name| {
                let policy = SetPolicy::parse(name).unwrap();
                [4, 5].map(|size| fingerprint(&policy, size, None))
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 12);
    }
}
