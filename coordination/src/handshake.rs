//! Who is at the other end: a mutual proof that both know the target's secret. Pure: bytes in,
//! bytes out.
//!
//! ```text
//! initiator                              target
//!   Hello (64)      ── names, nonce ──>
//!                  <── names, nonce, mac ── Challenge (96)
//!   Proof (32)      ── mac ──>
//!                  <── verdict, mac ──     Welcome (40)
//! ```
//!
//! Every message has a fixed size and nothing after it is read before it is checked. All macs are
//! HMAC-SHA256 under the target's secret, over a label, the Hello and the Challenge, so that none
//! can be used for another message or another connection. The first 12 bytes of Hello and Challenge
//! (magic, version) stay the same in all versions, so that a mismatch can be named.
//!
//! Where the connection is encrypted afterwards, the nonces are the public keys of
//! [`crate::session_keys`].
//!
//! `generation` counts the connections of a pair that an end has seen opened. It distinguishes a
//! peer that has lost the connection, and opens a new one, from one that does not know yet that
//! there is one (both connected at the same time).

use hmac::{Hmac, Mac};
use rustbtl_fragments::ids::PeerId;
use rustbtl_fragments::little_endian::LittleEndian;
use sha2::Sha256;

/// Version of connections that carry control messages; not the number of any version of the
/// component's own connections.
pub const CONTROL: u32 = 0x0003_0000 | crate::control::VERSION as u32;
/// The coordinator's name.
pub const COORDINATOR: PeerId = PeerId(0xFFFF_FFFE);
/// The name of everybody who connects to it.
pub const CLIENT: PeerId = PeerId(0xFFFF_FFFD);

/// Bytes of a Hello.
pub const HELLO: usize = 64;
/// Bytes of a Challenge.
pub const CHALLENGE: usize = HELLO + MAC;
/// Bytes of a Proof.
pub const PROOF: usize = MAC;
/// Bytes of a Welcome.
pub const WELCOME: usize = 8 + MAC;
/// Largest message.
pub const MESSAGE_MAX: usize = CHALLENGE;

const MAC: usize = 32;
const MAGIC: [u8; 8] = *b"rustbtl/";

/// What an end says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Names {
    /// Version of what it speaks.
    pub version: u32,
    /// Who it is.
    pub from: PeerId,
    /// Whom it wants to talk to.
    pub to: PeerId,
    /// Its incarnation.
    pub incarnation: u16,
    /// Connections of this pair that it has seen.
    pub generation: u32,
    /// Random, and used once: a number or a public key.
    pub nonce: [u8; 32],
}

/// Why a message is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Not one of ours at all.
    Garbage,
    /// Another version.
    Version(u32),
    /// The secret is not the one of this job.
    Secret,
    /// Meant for another process.
    NotForMe(PeerId),
}

/// The target's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The connection is open, with this generation.
    Accepted(u32),
    /// Another connection of this pair survives.
    Duplicate,
}

impl Names {
    /// As they are sent.
    pub fn encode(&self) -> [u8; HELLO] {
        let mut out = [0; HELLO];
        out[..8].copy_from_slice(&MAGIC);
        self.version.write_at(&mut out, 8);
        self.from.0.write_at(&mut out, 12);
        self.to.0.write_at(&mut out, 16);
        self.incarnation.write_at(&mut out, 20);
        self.generation.write_at(&mut out, 24);
        out[32..].copy_from_slice(&self.nonce);
        out
    }

    /// Read them, if they are of this version.
    pub fn decode(bytes: &[u8; HELLO], version: u32) -> Result<Self, Refusal> {
        let u32_at = |at| u32::read_at(bytes, at);
        if bytes[..8] != MAGIC {
            return Err(Refusal::Garbage);
        }
        if u32_at(8) != version {
            return Err(Refusal::Version(u32_at(8)));
        }
        let mut nonce = [0; 32];
        nonce.copy_from_slice(&bytes[32..]);
        Ok(Self {
            version,
            from: PeerId(u32_at(12)),
            to: PeerId(u32_at(16)),
            incarnation: u16::read_at(bytes, 20),
            generation: u32_at(24),
            nonce,
        })
    }
}

fn mac(secret: &[u8; 32], label: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(secret).expect("any key length is valid");
    mac.update(&[label.len() as u8]);
    mac.update(label);
    for part in parts {
        mac.update(part);
    }
    mac
}

fn tag(mac: Hmac<Sha256>) -> [u8; MAC] {
    mac.finalize().into_bytes().into()
}

/// The target's Challenge: its names, and its proof.
pub fn challenge(secret: &[u8; 32], hello: &[u8; HELLO], mine: &Names) -> [u8; CHALLENGE] {
    let names = mine.encode();
    let mut out = [0; CHALLENGE];
    out[..HELLO].copy_from_slice(&names);
    out[HELLO..].copy_from_slice(&tag(mac(secret, b"target", &[hello, &names])));
    out
}

/// Check a Challenge: the target's names.
pub fn check_challenge(
    secret: &[u8; 32],
    hello: &Names,
    challenge: &[u8; CHALLENGE],
) -> Result<Names, Refusal> {
    let Some((names, proof)) = challenge.split_first_chunk::<HELLO>() else {
        return Err(Refusal::Garbage);
    };
    let theirs = Names::decode(names, hello.version)?;
    // Constant time.
    mac(secret, b"target", &[&hello.encode(), names])
        .verify_slice(proof)
        .map_err(|_| Refusal::Secret)?;
    if theirs.from != hello.to || theirs.to != hello.from {
        return Err(Refusal::NotForMe(theirs.from));
    }
    Ok(theirs)
}

/// The initiator's Proof.
pub fn proof(secret: &[u8; 32], hello: &[u8; HELLO], challenge: &[u8; CHALLENGE]) -> [u8; PROOF] {
    tag(mac(secret, b"initiator", &[hello, challenge]))
}

/// Check a Proof (constant time).
pub fn check_proof(
    secret: &[u8; 32],
    hello: &[u8; HELLO],
    challenge: &[u8; CHALLENGE],
    proof: &[u8; PROOF],
) -> Result<(), Refusal> {
    mac(secret, b"initiator", &[hello, challenge]).verify_slice(proof).map_err(|_| Refusal::Secret)
}

/// The target's Welcome.
pub fn welcome(
    secret: &[u8; 32],
    hello: &[u8; HELLO],
    challenge: &[u8; CHALLENGE],
    verdict: Verdict,
) -> [u8; WELCOME] {
    let (code, generation) = match verdict {
        Verdict::Accepted(generation) => (1u32, generation),
        Verdict::Duplicate => (2, 0),
    };
    let mut out = [0; WELCOME];
    code.write_at(&mut out, 0);
    generation.write_at(&mut out, 4);
    let (verdict, sealed) = out.split_at_mut(8);
    sealed.copy_from_slice(&tag(mac(secret, b"welcome", &[hello, challenge, verdict])));
    out
}

/// Check a Welcome.
pub fn check_welcome(
    secret: &[u8; 32],
    hello: &[u8; HELLO],
    challenge: &[u8; CHALLENGE],
    welcome: &[u8; WELCOME],
) -> Result<Verdict, Refusal> {
    let (verdict, sealed) = welcome.split_at(8);
    mac(secret, b"welcome", &[hello, challenge, verdict])
        .verify_slice(sealed)
        .map_err(|_| Refusal::Secret)?;
    let generation = u32::read_at(verdict, 4);
    match verdict[0] {
        1 => Ok(Verdict::Accepted(generation)),
        2 => Ok(Verdict::Duplicate),
        _ => Err(Refusal::Garbage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; 32] = [7; 32];

    fn names(from: u32, to: u32, nonce: u8) -> Names {
        let (from, to) = (PeerId(from), PeerId(to));
        Names { version: 5, from, to, incarnation: 3, generation: 9, nonce: [nonce; 32] }
    }

    #[test]
    fn both_ends_convince_each_other() {
        let hello = names(1, 2, 10);
        let sent = hello.encode();
        assert_eq!(Names::decode(&sent, 5), Ok(hello));
        let challenged = challenge(&SECRET, &sent, &names(2, 1, 20));
        assert_eq!(check_challenge(&SECRET, &hello, &challenged), Ok(names(2, 1, 20)));
        let answer = proof(&SECRET, &sent, &challenged);
        assert_eq!(check_proof(&SECRET, &sent, &challenged, &answer), Ok(()));
        for verdict in [Verdict::Accepted(4), Verdict::Duplicate] {
            let welcomed = welcome(&SECRET, &sent, &challenged, verdict);
            assert_eq!(check_welcome(&SECRET, &sent, &challenged, &welcomed), Ok(verdict));
        }
    }

    #[test]
    fn every_flipped_bit_and_another_secret_are_refused() {
        let hello = names(1, 2, 10);
        let sent = hello.encode();
        let challenged = challenge(&SECRET, &sent, &names(2, 1, 20));
        let other = [8; 32];
        assert_eq!(check_challenge(&other, &hello, &challenged), Err(Refusal::Secret));
        for bit in 0..CHALLENGE * 8 {
            let mut damaged = challenged;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(check_challenge(&SECRET, &hello, &damaged).is_err(), "bit {bit}");
        }
        let answer = proof(&SECRET, &sent, &challenged);
        assert_eq!(check_proof(&other, &sent, &challenged, &answer), Err(Refusal::Secret));
        for bit in 0..PROOF * 8 {
            let mut damaged = answer;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(check_proof(&SECRET, &sent, &challenged, &damaged), Err(Refusal::Secret));
        }
        let welcomed = welcome(&SECRET, &sent, &challenged, Verdict::Accepted(1));
        for bit in 0..WELCOME * 8 {
            let mut damaged = welcomed;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(check_welcome(&SECRET, &sent, &challenged, &damaged).is_err());
        }
    }

    #[test]
    fn a_targets_answer_is_no_proof_of_an_initiator() {
        let sent = names(1, 2, 10).encode();
        let challenged = challenge(&SECRET, &sent, &names(2, 1, 20));
        let mut reflected = [0; PROOF];
        reflected.copy_from_slice(&challenged[HELLO..]);
        assert_eq!(check_proof(&SECRET, &sent, &challenged, &reflected), Err(Refusal::Secret));
    }

    #[test]
    fn another_version_and_garbage_are_distinguished() {
        let sent = names(1, 2, 10).encode();
        assert_eq!(Names::decode(&sent, 6), Err(Refusal::Version(5)));
        assert_eq!(Names::decode(&[0x47; HELLO], 5), Err(Refusal::Garbage));
    }
}
