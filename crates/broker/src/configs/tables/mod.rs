//! The tables of settings: each setting is one entry, with its values, default and documentation, and with the functions
//! that read it, put it into effect and check it.

pub mod client_metrics;
pub mod groups;
pub mod topics;
pub mod without_effect;
