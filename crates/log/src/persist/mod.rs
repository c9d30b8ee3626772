//! Persistence: the persistence manager moves durable chunks to their groups' files, and gives memory and disk back.
//!
//! A [`round`] empties the journal where it is full ([`write_back`]) and gives memory back where the pool is short
//! ([`evict`]). Now and then the manager applies [`retention`].
//!
//! Nothing is evicted that is not in a synced file, except of streams that are never written to disk. The files of a
//! lane are a gapless series: its groups are written and removed in their order, and one that fails gives up those
//! behind it.
//!
//! Persistence knows neither the journal's format nor readers, but for their positions.

pub mod disk_full;
pub mod evict;
pub mod finish_recovery;
pub mod key_files;
pub mod key_turn;
pub mod make_room;
pub mod remove;
pub mod retention;
pub mod round;
pub mod write_back;
