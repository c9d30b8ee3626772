//! Compaction: closed groups of a keyed stream are rewritten, so that only the newest record of each key stays.
//!
//! A pass works on a *range* of adjacent closed groups of a lane, all of which have key files. It merges these files, so it finds
//! for each key the newest record in the range, the *live* one ([`live`]). Groups with other records form *runs* ([`runs`]), and
//! each run is [rewritten](rewrite) into one group, which has the same offsets with fewer records. One record of the manifest
//! then puts this group in the place of the old ones ([`commit`]), whose files stay until no reader needs them ([`remove`]).
//!
//! [Holds](crate::lane::holds) divide a range into [stretches], and a pass works on each of them by itself.
//!
//! A lookup meets every key file of a lane, so groups are [joined](joins) where they are many, though a pass would leave them. For
//! that only their own key files are merged: a record stays if it is the newest one of its key in the joined groups.
//!
//! Memory is bounded whatever the number of keys: a merge returns the smallest live offsets from where the rewrite stands, up to
//! a bound, and runs again from there.
//!
//! One thread makes one pass at a time ([`step`]). A [schedule] knows the lanes that are [due], and finds the most urgent one.
//! [`limits`] bound the memory and the bandwidth of a pass.

mod commit;
pub mod compactor;
pub mod due;
mod join;
mod joins;
pub mod limits;
pub mod live;
mod output;
pub mod pass;
mod remove;
pub mod rewrite;
pub mod runs;
pub mod schedule;
pub mod stats;
pub mod step;
mod stretches;
pub mod time;

pub use pass::PassReport;

#[cfg(test)]
mod tests;
