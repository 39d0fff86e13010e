//! The program asks for a checkpoint itself (`MPIX_Correlated_checkpoint`).

use crate::checkpoint::state::Checkpoint;
use crate::sync::checkpoint_requests::CheckpointRequest;
use rustbtl_coordination::control::FromRank;

impl Checkpoint {
    /// Pass on what the program wants.
    pub(crate) fn pass_on_requests(&self) {
        for (number, CheckpointRequest { all, then_exit, wait }) in
            Self::signals().requests.unsent()
        {
            self.send(&FromRank::RequestCheckpoint { number, all, then_exit, wait });
        }
    }
}
