//! The native requests: streams, chunks, groups, keys, objects and subscriptions.

mod chunks;
mod groups;
mod holds;
mod keys;
mod objects;
mod push;
mod read;
mod streams;
mod unknown;
