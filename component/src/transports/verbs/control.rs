//! What the two ends of a channel tell each other over the connection beside it, and what they
//! publish. Golden bytes are below.
//!
//! A control message travels as a frame of a kind that no engine has (wire.rs leaves kinds from
//! 0xF0 on to transports):
//!
//! ```text
//!  0  header of 32 bytes: length, version, kind 0xFD, rest zero
//! 32  u8 message
//! 33  Setup: u8 1 if the sender's port has come back, u16 grant, u32 queue pair, u32 psn, port;
//!            u8 1 if there is a second port, then u32 queue pair, u32 psn, port of that
//!     Ready: u32 the receiver's queue pair, which may send now
//!     Leave: u64 messages that were sent by the queue pair
//! port: u8 link layer, u8 mtu, u8 reads, u16 lid, 16 bytes gid
//! ```

use crate::transports::verbs::api::{Gid, LinkLayer};
use crate::transports::verbs::credits::GRANT_MIN;
use rustbtl_fragments::little_endian::{LittleEndian, take_array};
use rustbtl_fragments::wire::{HEADER_BYTES, VERSION};

/// Kind of a frame between transports.
const KIND: u8 = 0xFD;
/// Version of what is published.
const ADDRESS_VERSION: u8 = 2;

/// Where a port is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortAddress {
    /// See there.
    pub link_layer: LinkLayer,
    /// Its largest packet, as in `Port`.
    pub mtu: u8,
    /// RDMA READs that a queue pair there answers, and may have under way, at a time.
    pub reads: u8,
    /// On InfiniBand.
    pub lid: u16,
    /// On both.
    pub gid: Gid,
}

impl PortAddress {
    fn append(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.link_layer as u8, self.mtu, self.reads]);
        self.lid.append(out);
        out.extend_from_slice(&self.gid);
    }

    fn take_from(from: &mut &[u8]) -> Option<Self> {
        let [link_layer, mtu, reads] = take_array(from)?;
        let link_layer = match link_layer {
            1 => LinkLayer::InfiniBand,
            2 => LinkLayer::Ethernet,
            _ => return None,
        };
        let (lid, gid) = (u16::take_from(from)?, take_array(from)?);
        (1..=5).contains(&mtu).then_some(Self { link_layer, mtu, reads, lid, gid })
    }

    /// Is it on the same fabric, as far as addresses tell? An InfiniBand subnet has a prefix; of
    /// RoCE only that both have, or have not, an IPv4 address.
    pub fn reaches(&self, other: &Self) -> bool {
        let is_ipv4 = |gid: &Gid| gid[..10] == [0; 10] && gid[10..12] == [0xFF; 2];
        self.link_layer == other.link_layer
            && match self.link_layer {
                LinkLayer::InfiniBand => self.gid[..8] == other.gid[..8],
                LinkLayer::Ethernet => is_ipv4(&self.gid) == is_ipv4(&other.gid),
            }
    }
}

/// A queue pair at the second port of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SecondPort {
    /// Its number.
    pub qp: u32,
    /// Number of its first packet.
    pub psn: u32,
    /// Its port.
    pub port: PortAddress,
}

/// A control message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// This is my queue pair for you.
    Setup {
        /// My port was down and has come back.
        is_fresh: bool,
        /// Messages that you may send before I have consumed any.
        grant: u16,
        /// Its number.
        qp: u32,
        /// Number of its first packet.
        psn: u32,
        /// Its port.
        port: PortAddress,
        /// My queue pair for long payloads at another port.
        second: Option<SecondPort>,
    },
    /// My queue pair takes what this one of yours sends.
    Ready {
        /// Yours.
        qp: u32,
    },
    /// From here on I send by the queue pair.
    Switch,
    /// I will not, or cannot: we stay with this connection.
    Refuse,
    /// I send nothing more by the queue pair.
    Leave {
        /// Messages that I have sent by it.
        sent: u64,
    },
}

impl Control {
    /// As a frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; HEADER_BYTES];
        match *self {
            Self::Setup { is_fresh, grant, qp, psn, port, second } => {
                out.extend_from_slice(&[1, u8::from(is_fresh)]);
                grant.append(&mut out);
                qp.append(&mut out);
                psn.append(&mut out);
                port.append(&mut out);
                out.push(u8::from(second.is_some()));
                if let Some(SecondPort { qp, psn, port }) = second {
                    qp.append(&mut out);
                    psn.append(&mut out);
                    port.append(&mut out);
                }
            }
            Self::Ready { qp } => {
                out.push(2);
                qp.append(&mut out);
            }
            Self::Switch => out.push(3),
            Self::Refuse => out.push(4),
            Self::Leave { sent } => {
                out.push(5);
                sent.append(&mut out);
            }
        }
        (out.len() as u32).write_at(&mut out, 0);
        out[4..6].copy_from_slice(&[VERSION, KIND]);
        out
    }

    /// Is a frame one of these?
    #[inline]
    pub fn is_in(frame: &[u8]) -> bool {
        frame.get(5) == Some(&KIND)
    }

    /// Read one. `None`: it is damaged.
    pub fn decode(frame: &[u8]) -> Option<Self> {
        let mut rest = frame.get(HEADER_BYTES..)?;
        let from = &mut rest;
        let control = match u8::take_from(from)? {
            1 => {
                let is_fresh = match u8::take_from(from)? {
                    0 => false,
                    1 => true,
                    _ => return None,
                };
                let (grant, qp) = (u16::take_from(from)?, u32::take_from(from)?);
                let (psn, port) = (u32::take_from(from)?, PortAddress::take_from(from)?);
                let second = match u8::take_from(from)? {
                    0 => None,
                    1 => Some(SecondPort {
                        qp: u32::take_from(from)?,
                        psn: u32::take_from(from)?,
                        port: PortAddress::take_from(from)?,
                    }),
                    _ => return None,
                };
                (u32::from(grant) >= GRANT_MIN).then_some(Self::Setup {
                    is_fresh,
                    grant,
                    qp,
                    psn,
                    port,
                    second,
                })?
            }
            2 => Self::Ready { qp: u32::take_from(from)? },
            3 => Self::Switch,
            4 => Self::Refuse,
            5 => Self::Leave { sent: u64::take_from(from)? },
            _ => return None,
        };
        rest.is_empty().then_some(control)
    }
}

/// What is published: the port, then the address of the connection.
pub fn encode_address(port: &PortAddress, carrier: &[u8]) -> Vec<u8> {
    let mut out = vec![ADDRESS_VERSION];
    port.append(&mut out);
    out.extend_from_slice(carrier);
    out
}

/// Read it. `None`: there is none, or it cannot be read.
pub fn decode_address(mut address: &[u8]) -> Option<(PortAddress, &[u8])> {
    let from = &mut address;
    let version = u8::take_from(from)?;
    let port = PortAddress::take_from(from)?;
    (version == ADDRESS_VERSION).then_some((port, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port() -> PortAddress {
        let gid = core::array::from_fn(|at| at as u8);
        PortAddress { link_layer: LinkLayer::InfiniBand, mtu: 5, reads: 16, lid: 0x102, gid }
    }

    fn all() -> [Control; 6] {
        let (qp, psn) = (0x11, 0x00AB_CDEF);
        let (is_fresh, grant, port) = (true, 32, port());
        let second = Some(SecondPort { qp: 0x12, psn: 1, port });
        [
            Control::Setup { is_fresh, grant, qp, psn, port, second: None },
            Control::Setup { is_fresh, grant, qp, psn, port, second },
            Control::Ready { qp },
            Control::Switch,
            Control::Refuse,
            Control::Leave { sent: 7 },
        ]
    }

    #[test]
    fn what_is_encoded_decodes_and_nothing_else_does() {
        for control in all() {
            let frame = control.encode();
            assert_eq!(Control::decode(&frame), Some(control));
            for length in 0..frame.len() {
                assert_eq!(Control::decode(&frame[..length]), None);
            }
            assert_eq!(Control::decode(&[&frame[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn golden_bytes() {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let zeros = "00".repeat(26);
        let gid = "000102030405060708090a0b0c0d0e0f";
        let expected = [
            format!("42000000b4fd{zeros}0101200011000000efcdab000105100201{gid}00"),
            format!(
                "5f000000b4fd{zeros}0101200011000000efcdab000105100201{gid}\
                 0112000000010000000105100201{gid}"
            ),
            format!("25000000b4fd{zeros}0211000000"),
            format!("21000000b4fd{zeros}03"),
            format!("21000000b4fd{zeros}04"),
            format!("29000000b4fd{zeros}050700000000000000"),
        ];
        for (control, expected) in all().iter().zip(expected) {
            assert_eq!(hex(&control.encode()), expected, "{control:?}");
        }
        assert_eq!(hex(&encode_address(&port(), b"tcp")), format!("020105100201{gid}746370"));
    }

    #[test]
    fn addresses_are_read_back_and_damaged_ones_are_refused() {
        let address = encode_address(&port(), b"tcp");
        assert_eq!(decode_address(&address), Some((port(), &b"tcp"[..])));
        for length in 0..22 {
            assert_eq!(decode_address(&address[..length]), None);
        }
        for (at, value) in [(0, 1), (1, 3), (2, 0), (2, 6)] {
            let mut damaged = address.clone();
            damaged[at] = value;
            assert_eq!(decode_address(&damaged), None, "byte {at}");
        }
    }

    #[test]
    fn ports_of_one_fabric_reach_each_other() {
        let mut other = port();
        other.gid[15] ^= 1;
        assert!(port().reaches(&other));
        other.gid[0] ^= 1;
        assert!(!port().reaches(&other), "another subnet");
        let roce = |gid| PortAddress { link_layer: LinkLayer::Ethernet, gid, ..port() };
        let mut ipv4 = [0; 16];
        ipv4[10..12].fill(0xFF);
        assert!(roce(ipv4).reaches(&roce(ipv4)) && !roce(ipv4).reaches(&roce(port().gid)));
        assert!(!port().reaches(&roce(port().gid)));
    }
}
