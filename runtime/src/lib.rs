//! The processes around a job: guardians, agents, the coordinator, and the `rustbtl` command.
//!
//! `DESIGN.md` in this folder names the parts and their rules.

/// Writes a line to standard error. A failure is ignored: a guardian that ended because nobody
/// reads it would end its program, too.
macro_rules! report {
    ($($words:tt)*) => {{
        // One write: other processes write to the same descriptor.
        let text = format!("rustbtl: {}\n", format_args!($($words)*));
        let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
    }};
}

pub mod agent;
pub mod auth;
pub mod cli;
pub mod command;
pub mod coordinator;
pub mod guardian;
pub mod half_open;
pub mod job_secret;
pub mod jobs;
pub mod link;
pub mod listen;
pub mod local;
pub mod node;
pub mod os;
pub mod pmix;
pub mod settings;
pub mod spare;
pub mod store;
pub mod suspended;
pub mod trace;
