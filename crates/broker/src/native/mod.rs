//! The state of native requests, and the streams that they name.
//!
//! The broker's internal streams are hidden from all of them: they answer as if these did not exist.

mod applications;
pub mod find;
pub mod refused;
mod shared;
pub mod upload;

pub use self::find::{keyed_stream, stream_named};
pub use self::shared::Shared;
pub use self::upload::Upload;
