//! What the coordinator knows of the job: plain data.

pub(crate) mod checkpoint_requests;
