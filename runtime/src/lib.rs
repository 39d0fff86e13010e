//! The processes around a job: guardians, agents, the coordinator, and the `rustbtl` command.
//!
//! `DESIGN.md` in this folder names the parts and their rules.

/// A line on standard error. Where nobody reads it any more, that is no reason to end: a guardian's
/// program would end with it.
macro_rules! say {
    ($($words:tt)*) => {{
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!("rustbtl: {}\n", format_args!($($words)*)),
        );
    }};
}

pub mod agent;
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
pub mod prove;
pub mod settings;
pub mod spare;
pub mod store;
