//! The key index of a lane: the newest committed version of each key, in memory.
//!
//! A stream is *keyed* if its setting [`cleanup.policy`](crate::CLEANUP_POLICY) contains `compact`; its records are then found by
//! key. The index is a reader of the lane, and no part of the append path: a lookup first reads the chunks between the end of the
//! last lookup and the last stable offset (LSO), and only then looks into the [`table`]. So a lane without lookups costs nothing.
//!
//! These hold, whatever threads append, look up and remove at the same time:
//!
//! 1. **The table is a function of the log.** With everything before the offset `next` read, it holds for each key the newest
//!    committed record with an offset below `next`, unless that record has no value or retention has removed it. Nothing else
//!    changes it, so a start rebuilds the same table.
//! 2. **A lookup sees what was committed before it began.** It looks into the table only when `next` has reached the LSO of the
//!    lookup's beginning. It may see newer committed records, but never those of open or aborted transactions.
//! 3. **A key has one owner**, the partition that the hash of the key selects. Records of a key in other partitions stay in the
//!    log, are not in the table, and are counted. When the stream grows, owners change, and lanes build their tables anew.
//! 4. **The table says where, and the log says what.** A lookup reads the record from the log, without a lock of the index. If
//!    retention removes the record in between, the key is absent.
//! 5. **One thread reads on, the others wait for it.** It changes the table in short steps, so lookups that need nothing
//!    newer go on meanwhile.
//! 6. **A chunk that cannot be read fails the lookups that need it.** The index never passes over one, since it may hold the
//!    newest version of any key.
//!
//! The right to read on is a lock that is held during reads, so it comes before all locks of the lane. The lock of the table comes
//! after it, and no I/O happens under it.
//!
//! The index knows neither lanes nor how they are read: [`read::keys`](crate::read::keys) does that.

pub mod file;
pub mod index;
pub mod scan;
pub mod table;
