//! What files of the program held at a checkpoint can be put back: what it changes in them is
//! recorded first (docs/adr/0031). The machine is `rustbtl_checkpoint::file_undo`, journals are
//! `rustbtl_process::file_undo`.

pub mod descriptors;
pub mod epoch;
pub mod folders;
pub mod functions;
mod held;
pub mod names;
pub mod reads;
pub mod recorder;
pub mod shared_io;
mod status;
pub mod streams;
pub mod system;
pub mod watched;
