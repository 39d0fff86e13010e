//! One suite for every transport: what the trait promises, as tests that are generic over a
//! [`Fabric`]. `tests/*.rs` instantiate it with [`conformance!`] for each mechanism.
//!
//! All ends of a fabric are driven by one thread, which is enough for everything but races; the
//! races have tests of their own beside the instantiation. No test measures time: the only limit is
//! [`TIMEOUT`], after which something hangs.

pub mod carrier;
pub mod driver;
pub mod suite;

pub use driver::{Driver, TIMEOUT, frame, payload};

use rustbtl_component::transports::Transport;

/// A mechanism under test.
pub trait Fabric {
    /// One end of it.
    type End: Transport;

    /// `n` transports that can reach each other; number `i` belongs to peer [`id`]`(i)`.
    fn ends(&self, n: usize) -> Vec<Self::End>;

    /// Can payloads be pulled?
    fn pulls(&self) -> bool;

    /// Does who pulls find out that something is no longer on offer? If not, the engine does not
    /// ask for it.
    fn knows_what_is_withdrawn(&self) -> bool {
        true
    }

    /// A payload of so many bytes is pulled: by default more than the kernel moves at once.
    fn large_bytes(&self) -> usize {
        (2 << 30) + (1 << 20) + 13
    }

    /// Close an end as a crash would: without goodbye.
    fn crash(&self, end: Self::End) {
        drop(end);
    }

    /// Let the end find out that a peer has failed.
    fn detect_failed_peers(&self, end: &mut Self::End) {
        let _ = end;
    }
}

/// Ids are not dense and not in order of the index: nothing may rely on that.
pub fn id(index: usize) -> rustbtl_fragments::ids::PeerId {
    rustbtl_fragments::ids::PeerId(100 + 3 * (index as u32 ^ 1))
}

/// All tests of the suite for one fabric: `conformance!(name, expression that makes a Fabric)`.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $fabric:expr) => {
        mod $name {
            use super::*;
            $crate::conformance!(@tests $fabric,
                frames_of_a_pair_keep_their_order,
                every_size_up_to_the_limits_arrives_whole,
                packed_payloads_arrive_like_contiguous_ones,
                a_full_channel_says_so_and_drains,
                a_frame_taken_in_part_is_finished_by_offering_it_again,
                both_directions_at_once_do_not_block_each_other,
                ends_that_sleep_in_turn_lose_nothing,
                many_peers_are_served_in_turn,
                a_new_peer_is_served_while_another_floods,
                what_happens_between_peek_and_consume_does_no_harm,
                all_to_all_traffic_arrives_once,
                a_peeked_frame_stays_until_it_is_consumed,
                nothing_arrives_where_nothing_was_sent,
                an_unknown_peer_is_down,
                exposed_memory_can_be_pulled,
                wrong_ids_ranges_and_pullers_are_refused,
                a_large_payload_is_pulled_whole,
                many_exposures_at_a_time_do_not_mix,
                a_goodbye_is_reported_after_the_last_frame,
                a_crash_is_reported_and_is_no_goodbye,
                a_close_after_a_close_is_harmless,
            );
        }
    };
    (@tests $fabric:expr, $($test:ident),* $(,)?) => {
        $(
            #[test]
            fn $test() {
                $crate::suite::$test(&$fabric);
            }
        )*
    };
}
