//! The key index of a lane: the newest committed version of each key.
//!
//! A stream is *keyed* if its setting [`cleanup.policy`](crate::CLEANUP_POLICY) contains `compact`; its records are then found by
//! key. Closed groups have sorted key [`file`]s, which together have all records before some offset. A [`table`] in memory has the
//! keys of the records behind it. The index is a reader of the lane, and no part of the append path: a lookup first reads the
//! chunks between the end of the last lookup and the last stable offset (LSO), and only then looks into the table, and then into
//! the key files, from new to old. So a lane without lookups costs no memory.
//!
//! These hold, whatever threads append, look up and remove at the same time:
//!
//! 1. **The index is a function of the log.** Key files have everything before the offset `covered`, and the table has, for each
//!    key with records from there up to the offset `next`, the newest committed one, also if that has no value: then it hides
//!    those in key files. Nothing else changes it, so a start finds or makes the same files, and reads the rest again.
//! 2. **A lookup sees all records committed before it began.** It looks into the table only when `next` has reached the LSO of the
//!    lookup's beginning. It may see newer committed records, but never records of open or aborted transactions.
//! 3. **A key has one owner**, the partition that the hash of the key selects. Records of a key in other partitions stay in the
//!    log, are not in the table, and are counted. Key files have them, and lookups pass over them. When the stream grows, owners
//!    change, and lanes build their tables anew.
//! 4. **The index has places, and the log has values.** A lookup reads the record from the log, without a lock of the index. If
//!    retention removes the record in between, the key is absent.
//! 5. **One thread reads on, the others wait for it.** It changes the table in short steps, so lookups that need nothing
//!    newer go on meanwhile.
//! 6. **A chunk that cannot be read fails the lookups that need it.** The index never passes over one, since it may hold the
//!    newest version of any key.
//!
//! 7. **A key file is made of a group that is closed and synced, when all transactions with records in it have ended for good**, in
//!    the background, in the order of the groups. A lookup makes one itself where it would otherwise read the whole group into
//!    memory, and where a file is damaged or lost. It reads the group into memory if no file can be written.
//!
//! The right to read on is a lock that is held during reads, so it comes before all locks of the lane. The right to make a key file
//! comes after it, and then the lock of the table; no I/O happens under that one.
//!
//! The index knows neither lanes nor how they are read: [`read::keys`](crate::read::keys) does that.

pub mod expiry;
pub mod file;
pub mod index;
pub mod kind;
pub mod scan;
pub mod secondary;
pub mod table;
pub mod tail;
