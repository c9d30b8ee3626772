//! The records of a keyed stream, by their keys: in the process or of a server.

pub mod any;
pub mod log;
pub mod server;
