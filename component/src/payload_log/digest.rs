//! Digests of payloads, by the vector instructions that this processor has.

use rustbtl_fragments::payload_digest::{PayloadDigest, WIDE_BYTES_MIN};

/// The digest of the payload of message `sequence` of its stream.
#[inline]
pub fn digest(payload: &[u8], sequence: u64) -> PayloadDigest {
    if payload.len() >= WIDE_BYTES_MIN && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: this processor has these instructions.
        return unsafe { of_avx2(payload, sequence) };
    }
    PayloadDigest::of(payload, sequence)
}

#[target_feature(enable = "avx2")]
fn of_avx2(payload: &[u8], sequence: u64) -> PayloadDigest {
    PayloadDigest::of_inlined(payload, sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_instructions_give_the_same() {
        for length in (0..3000).step_by(7).chain([65_536, 65_537, 200_001]) {
            let payload: Vec<u8> = (0..length).map(|at| (at * 13 + at / 255) as u8).collect();
            let of = PayloadDigest::of(&payload, length as u64);
            assert_eq!(digest(&payload, length as u64), of, "{length} bytes");
        }
    }
}
