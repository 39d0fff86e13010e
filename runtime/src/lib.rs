//! The processes around a job: guardians, agents, the coordinator, and the `rustbtl` command.
//!
//! `DESIGN.md` in this folder names the parts and their rules.

/// A line on standard error. Where nobody reads it any more, that is no reason to end: a guardian's
/// program would end with it.
macro_rules! say {
    ($($words:tt)*) => {{
        // In one piece: others write to the same place at the same time.
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
pub mod jobs;
pub mod link;
pub mod local;
pub mod node;
pub mod os;
pub mod pmix;
pub mod settings;
pub mod spare;
pub mod store;
pub mod trace;
