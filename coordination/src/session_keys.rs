//! The keys of one connection: agreed on in its handshake, known to nobody else. Pure.
//!
//! The random number that each end puts into its `Hello` or `Challenge` is a public key (X25519,
//! RFC 7748), made for this connection only. The handshake proves under the secret that both come
//! from who knows it; from what the two agree on, the secret and both messages the keys are derived
//! (HKDF with SHA-256, RFC 5869).
//!
//! 1. Who knows the secret and reads everything does not get the keys: he lacks the private halves,
//!    which are gone with the connection.
//! 2. Who does not know the secret and changes anything does not get to this: the handshake fails.
//! 3. Each direction has a key of its own, so that nothing can be sent back to where it came from.

use crate::handshake::{CHALLENGE, HELLO};
use hkdf::Hkdf;
use sha2::Sha256;
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};

/// Bytes of a key.
pub const KEY: usize = 32;

/// This end's private half, for one connection.
pub struct KeyAgreement {
    private: [u8; KEY],
}

/// Without the secret.
impl core::fmt::Debug for KeyAgreement {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("KeyAgreement").finish_non_exhaustive()
    }
}

/// The keys of a connection.
pub struct SessionKeys {
    /// For what the initiator sends.
    pub to_target: [u8; KEY],
    /// For what the target sends.
    pub to_initiator: [u8; KEY],
}

impl KeyAgreement {
    /// Of 32 random bytes, which nobody else knows and which are used for nothing else.
    pub const fn new(random: [u8; KEY]) -> Self {
        Self { private: random }
    }

    /// The public half: the nonce of this end's names in the handshake.
    pub fn nonce(&self) -> [u8; KEY] {
        x25519(self.private, X25519_BASEPOINT_BYTES)
    }

    /// After the handshake has succeeded. `theirs` is the nonce of the other end's names. `None`:
    /// that is no public key.
    pub fn agree(
        &self,
        theirs: &[u8; KEY],
        secret: &[u8; KEY],
        hello: &[u8; HELLO],
        challenge: &[u8; CHALLENGE],
    ) -> Option<SessionKeys> {
        let shared = x25519(self.private, *theirs);
        // What everybody can work out (RFC 7748, section 6.1).
        if shared == [0; KEY] {
            return None;
        }
        let derived = Hkdf::<Sha256>::new(Some(secret), &shared);
        let key = |label: &[u8]| {
            let mut key = [0; KEY];
            let info: [&[u8]; 3] = [label, hello, challenge];
            derived.expand_multi_info(&info, &mut key).ok().map(|()| key)
        };
        Some(SessionKeys { to_target: key(b"to target")?, to_initiator: key(b"to initiator")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; KEY] = [7; KEY];

    fn keys(secrets: [[u8; KEY]; 2], hellos: [[u8; HELLO]; 2]) -> [SessionKeys; 2] {
        let (one, two) = (KeyAgreement::new([1; KEY]), KeyAgreement::new([2; KEY]));
        let (of_one, of_two) = (one.nonce(), two.nonce());
        let challenge = [4; CHALLENGE];
        [
            one.agree(&of_two, &secrets[0], &hellos[0], &challenge).unwrap(),
            two.agree(&of_one, &secrets[1], &hellos[1], &challenge).unwrap(),
        ]
    }

    #[test]
    fn both_ends_have_the_same_two_keys() {
        let [one, two] = keys([SECRET; 2], [[3; HELLO]; 2]);
        assert!(one.to_target == two.to_target && one.to_initiator == two.to_initiator);
        assert_ne!(one.to_target, one.to_initiator, "3");
    }

    #[test]
    fn keys_depend_on_the_secret_and_on_what_was_said() {
        let [one, two] = keys([SECRET, [8; KEY]], [[3; HELLO]; 2]);
        assert_ne!(one.to_target, two.to_target);
        let [one, two] = keys([SECRET; 2], [[3; HELLO], [5; HELLO]]);
        assert_ne!(one.to_target, two.to_target);
    }

    #[test]
    fn a_key_with_which_everybody_knows_the_outcome_is_refused() {
        let low_order = [[0; KEY], {
            let mut one = [0; KEY];
            one[0] = 1;
            one
        }];
        for theirs in low_order {
            let one = KeyAgreement::new([1; KEY]);
            assert!(one.agree(&theirs, &SECRET, &[3; HELLO], &[4; CHALLENGE]).is_none());
        }
    }
}
