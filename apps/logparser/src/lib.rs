//! The log parser counts the words of files that start with a prefix.
//!
//! Ordo's authors measured their scheduler with this application (Ordo, section 3.3): a reader of files, a
//! stage that splits lines into words, one that filters them, one that counts. Here it runs in two
//! forms ([`Staging`]): fused into one loop, as a user would write it, and as four stages joined by
//! rings, so that the scheduler has decisions to make.
//!
//! A word is a run of bytes without ASCII white space ([`for_each_word`]); it need not be text.
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
//! [`WordCount`] is a second flow, which counts each word on any number of ranks.

mod count;
mod flow;
mod read;
mod split;
mod words;

pub use count::WordCount;
pub use flow::{FLOW, LogParser, Staging, Totals};
pub use split::{for_each_word, starts_with};
