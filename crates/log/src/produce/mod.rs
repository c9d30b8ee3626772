//! The way of a chunk from its producer to the answer: [`append`] it, then [`wait`] until it is as durable as the stream asks.
//!
//! Both wait for the background: appends for memory, producers for a commit. Where no threads do the background work,
//! they do it themselves, step by step.

pub mod append;
pub mod wait;
