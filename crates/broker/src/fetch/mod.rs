//! The state of fetches: their sessions, and the pace of reads of old data.

mod old_data;
pub mod session;

pub use self::old_data::OldData;
pub use self::session::Sessions;
