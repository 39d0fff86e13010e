//! How a blocking call waits, and the thread that makes progress while the program computes.

pub mod pace;
pub mod progress_thread;
pub mod wait;
