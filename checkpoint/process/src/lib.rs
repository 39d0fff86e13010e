//! Images of processes, and processes restored from images, at user level.
//!
//! [`freeze`] is linked into the process that is checkpointed; [`dump`] and [`restore`] run in
//! another process of the same user. The format is `rustbtl_checkpoint::image`. Sources: DESIGN §6,
//! FACTS-image. `DESIGN.md` in this folder shows the API in use and lists what is refused.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("images of processes exist for x86-64 Linux only");

mod build_id;
mod compression;
pub mod dump;
mod error;
pub mod file_undo;
pub mod freeze;
mod mmap_vec;
mod pages;
pub mod private_files;
mod proc_files;
mod processor;
mod raw;
pub mod restore;
mod restore_args;
pub mod scheduling;
pub mod session_folders;

pub use error::ProcessImageError;
