//! Records that servers push to consumers, through memory that they share with this process.
//!
//! A server of Millstream on this machine that runs as the same user lets consumers read chunks in place in its memory,
//! and sends their positions through a ring (crate `share`). A connection over the server's socket for local clients
//! stands for the subscription: it stays open while any record from the subscription is in use.

mod lease;
mod session;
mod subscriber;

pub(crate) use self::lease::{DamagedRecords, Lease, Torn, give};
pub(crate) use self::session::{Delivered, Offer, Piece, Session, SharedSource, Terms};
pub use self::subscriber::{LocalConfig, LocalSource, LocalSubscriber, Pushed};
pub(crate) use self::subscriber::{lane, refused};
