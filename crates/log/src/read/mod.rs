//! Reads: from the segments in memory, or from the groups' files where these are evicted.
//!
//! Reads of one [`group`] find their bytes in memory or through [`catch_up`]; reads of a client may begin where no chunk
//! starts ([`from_cursor`]); a [`fetch`] and a [`seek`] find the group and the
//! chunk of an offset, with the indexes that [`index_cache`] keeps; [`keys`] finds the newest record of a key. Reads need no more of the log than the [`context`].
//!
//! Bytes from disk are checked before they are given out; damage is reported once and stays an error ([`damage_reports`]). Reads
//! never change a lane. They know neither the catalog nor commits.

pub mod aborted;
pub mod catch_up;
pub mod context;
pub mod damage_reports;
pub mod fetch;
pub mod from_cursor;
pub mod group;
pub mod index_cache;
pub mod keys;
pub mod seek;
pub mod timestamps;
