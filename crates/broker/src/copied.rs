//! Text that outlives the request that it came in.

use millstream_wire::StrBytes;

/// Copies text, so that it does not hold the frame that it came in.
pub fn copy_of(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}
