//! The native requests, over the network: their effects and their errors.

mod chunks;
mod client;
mod groups;
mod keys;
mod objects;
mod reading;
mod streams;
mod watch;
