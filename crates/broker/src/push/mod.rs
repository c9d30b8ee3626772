//! Subscriptions: the broker pushes chunks to clients as they become durable.
//!
//! A client on the local socket, on this machine and as the same user, gets chunks through shared
//! memory ([`shared`]): it maps the log's pool, and learns the places of the chunks in it. Every
//! other client asks for the next chunks before they exist ([`on_request`]); each request is the credit
//! for one answer.

pub mod on_request;
pub mod outlet;
pub mod shared;
pub mod subscriptions;
mod thread;

pub use self::subscriptions::Subscriptions;
