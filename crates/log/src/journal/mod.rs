//! The journal: chunks of many lanes become durable with one write.
//!
//! A series of files of fixed size. A file is a header and *blocks*, one for each group commit: a
//! directory of *runs* (neighbouring chunks of one group) and their bytes. A file whose runs are all
//! in synced group files is used again under a later number, since overwriting allocated blocks of a file
//! is several times cheaper to sync than growing a new one.
//!
//! A block is written after the one before it is synced. So a block that is not whole is the torn
//! end of the journal if nothing valid follows it, and lost data if something does. No producer can make up
//! a valid block and send it in a chunk: each block carries a secret of the run, which the
//! file's name gives. Only the note of the journal's end reveals a damaged last block ([`end`]), and only the manifest
//! reveals missing files ([`listed`]).
//!
//! The journal knows groups, whose synced positions decide when a file is free, and no lanes.

pub mod damage;
pub mod end;
pub mod file_reader;
pub mod format;
pub mod listed;
pub mod old;
pub mod run;
pub mod writer;
