//! What names stand for: a folder that processes share knows it, or the job's coordinator, over the
//! component that is loaded into this process.

use crate::directory::Directory;
use crate::in_job;
use rustbtl_shadow::{Name, Value};

/// Who knows.
pub enum Names {
    /// Without a protected job.
    Folder(Directory),
    /// In one.
    Job,
}

impl Names {
    /// Tell the others what a name stands for.
    pub fn publish(&self, epoch: u32, name: Name, value: Value) {
        match self {
            Self::Folder(directory) => directory.publish(epoch, name, value),
            Self::Job => in_job::publish(epoch, name, value),
        }
    }

    /// What a name stands for.
    pub fn find(&self, epoch: u32, name: Name) -> Option<Value> {
        match self {
            Self::Folder(directory) => directory.find(epoch, name),
            Self::Job => in_job::find(epoch, name),
        }
    }
}
