//! The log parser: how many words of some files start with a prefix?
//!
//! The application that Ordo's scheduler was measured on (Ordo, section 3.3): a reader of files, a
//! stage that splits lines into words, one that filters them, one that counts. Here it runs in two
//! ways ([`Staging`]): fused into one loop, as a user would write it, and as four stages joined by
//! rings, which gives the scheduler something to decide.
//!
//! A word is a run of bytes that are no white space of ASCII ([`for_each_word`]); it need not be text.
//!
//! ```
//! use millstream_base::SystemDisk;
//! use millstream_flow::FlowSettings;
//! use millstream_flow::sources::{LineFiles, LineLimits};
//! use millstream_logparser::{LogParser, Staging};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("log");
//! std::fs::write(&path, "an apple\nand a pear\nan")?;
//!
//! for staging in [Staging::Fused, Staging::Separate] {
//!     let files = LineFiles::open(&SystemDisk, [path.clone()], LineLimits::default())?;
//!     let parser = LogParser::start(files, b"an", staging, FlowSettings::default())?;
//!     parser.running().join()?;
//!     assert_eq!((parser.count(), parser.words(), parser.bytes()), (3, 6, 22));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Beside it is a word count over any number of ranks, [`WordCount`].

mod count;
mod flow;
mod read;
mod split;
mod words;

pub use count::WordCount;
pub use flow::{FLOW, LogParser, Staging, Totals};
pub use split::{for_each_word, starts_with};
