//! Pictures of processes (images) and processes from pictures, at user level.
//!
//! [`inside`] is linked into the process that is pictured, [`outside`] runs in another process of
//! the same user. The format is `rustbtl_checkpoint::image`. Sources: DESIGN §6, FACTS-image.
//! `DESIGN.md` in this folder shows the API in use and lists what is refused.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("images of processes exist for x86-64 Linux only");

pub mod inside;
pub mod outside;
mod raw;
pub mod scheduling;
