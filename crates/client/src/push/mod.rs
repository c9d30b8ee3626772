//! What servers push to consumers, through memory that they share with this process.
//!
//! A server of Millstream on this machine, of the same user, lets consumers read chunks where they lie in its
//! memory, and says in a ring where that is (crate `share`). A connection over the server's socket for local clients
//! stands for the subscription: it is kept for as long as anything is read that came from it.

mod lease;
mod session;
mod subscriber;

pub(crate) use self::lease::{DamagedRecords, Lease, Torn, give};
pub(crate) use self::session::{Handed, Session, SharedSource, Terms};
pub use self::subscriber::{LocalConfig, LocalSource, LocalSubscriber, Pushed};
pub(crate) use self::subscriber::{lane, refused};
