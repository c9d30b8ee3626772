//! The stream of the records of a flow's checkpoints.

/// The key of the last record.
pub const RECORD: &[u8] = b"checkpoint";

/// Returns the stream's name.
pub fn stream_name(flow: &str) -> String {
    format!("{flow}.checkpoints")
}
