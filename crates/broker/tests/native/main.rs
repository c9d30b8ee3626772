//! The native requests, over the network: what they do, and how they are refused.

mod chunks;
mod client;
mod groups;
mod objects;
mod reading;
mod streams;
