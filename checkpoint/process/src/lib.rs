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

/// Is this a file in which an earlier restore has put shared memory together? It has a name only
/// until that restore is over, so it is to be saved like one without a name.
pub(crate) fn is_shared_place(path: &[u8]) -> bool {
    let has = |part: &[u8]| path.windows(part.len()).any(|window| window == part);
    has(b"/rustbtl-") && has(b"-shared-")
}
