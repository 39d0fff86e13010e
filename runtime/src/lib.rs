//! The processes around a job: guardians, agents, the coordinator, and the `rustbtl` command.
//!
//! `DESIGN.md` in this folder names the parts and their rules.

pub mod agent;
pub mod command;
pub mod coordinator;
pub mod guardian;
pub mod jobs;
pub mod link;
pub mod node;
pub mod os;
pub mod prove;
pub mod settings;
pub mod store;
