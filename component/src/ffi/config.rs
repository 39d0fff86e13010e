//! Parameters and the job as C hands them over, in Rust's types.

use crate::ffi::table::{Config, JobInfo};
use core::ffi::{CStr, c_char};
use rustbtl_fragments::ids::PeerId;
use std::path::PathBuf;

/// A string of C's, "" for null.
///
/// # Safety
/// Null or a C string.
pub(crate) unsafe fn text(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

/// The parameters that are strings.
pub struct TextParameters {
    pub(crate) sets: String,
    pub(crate) report: String,
    pub(crate) budget: String,
    pub(crate) spill: String,
    /// How large messages cross the node.
    pub single_copy: String,
    /// Directory of the segment.
    pub shm_directory: String,
    /// Networks to use.
    pub if_include: String,
    /// Networks not to use.
    pub if_exclude: String,
    /// Are queue pairs to be used?
    pub verbs: String,
    /// Adapters and ports.
    pub verbs_if_include: String,
    /// Index of the GID.
    pub verbs_gid_index: String,
}

impl TextParameters {
    /// # Safety
    /// `config` is as glue.h says.
    pub(crate) unsafe fn read(config: &Config) -> Self {
        // SAFETY: the caller's promise: null or C strings.
        let read = |from| unsafe { text(from) };
        Self {
            sets: read(config.sets),
            report: read(config.report),
            budget: read(config.log_budget),
            spill: read(config.log_spill_dir),
            single_copy: read(config.single_copy),
            shm_directory: read(config.shm_directory),
            if_include: read(config.tcp_if_include),
            if_exclude: read(config.tcp_if_exclude),
            verbs: read(config.verbs),
            verbs_if_include: read(config.verbs_if_include),
            verbs_gid_index: read(config.verbs_gid_index),
        }
    }
}

/// What C says about this process, in Rust's types.
pub(crate) struct JobPlace {
    pub(crate) node: String,
    pub(crate) session: Option<PathBuf>,
    pub(crate) ranks: Vec<PeerId>,
    pub(crate) localities: Vec<Option<String>>,
}

impl JobPlace {
    /// # Safety
    /// `job` is as glue.h says.
    pub(crate) unsafe fn read(job: &JobInfo) -> Self {
        let count = job.local_size as usize;
        // SAFETY: glue.h: `local_size` ranks and as many places.
        let ranks = unsafe { core::slice::from_raw_parts(job.local_ranks, count) };
        // SAFETY: as above.
        let places = unsafe { core::slice::from_raw_parts(job.localities, count) };
        let place = |&from: &*const c_char| {
            // SAFETY: null or a C string.
            (!from.is_null()).then(|| unsafe { text(from) })
        };
        // SAFETY: null or a C string.
        let session = unsafe { text(job.session_dir) };
        Self {
            // SAFETY: null or a C string.
            node: unsafe { text(job.node) },
            session: (!session.is_empty()).then(|| PathBuf::from(session)),
            ranks: ranks.iter().map(|&rank| PeerId(rank)).collect(),
            localities: places.iter().map(place).collect(),
        }
    }
}
