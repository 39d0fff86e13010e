//! Who is who: endpoints that processes publish, how they are fetched, and what each peer is
//! reached by.

pub mod endpoint;
pub mod modex;
pub mod table;
pub mod transport_setup;
