//! What the program wants itself (`MPIX_Correlated_checkpoint`), and what it is told.

use crate::checkpoint::state::Checkpoint;
use crate::files::recorder;
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

    /// A file that will not be put back, once.
    pub(crate) fn name_file(&mut self) {
        if let Some(file) = recorder::NOTICE.get().filter(|_| !self.file_named) {
            self.file_named = true;
            let text = format!(
                "{file}: more of this file is changed between two checkpoints than is recorded \
                 (vprotocol_correlated_file_undo_max), or it cannot be recorded. If this rank is \
                 rolled back the file is not put back; if the program has read it since the \
                 checkpoint, the job ends then. Later files are named when that happens"
            );
            self.shared.glue.show("notice", &[&text]);
        }
    }
}
