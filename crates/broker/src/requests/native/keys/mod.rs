//! Records of keyed streams, by their keys.

mod change;
mod find;
mod get;
mod history;
mod look_up;
mod put;
mod scan;
mod secondary;
mod together;

use millstream_log::KEY_BYTES_MAX;
use millstream_wire::ResponseError;
use millstream_wire::native::KeyVersion;

use crate::native::refused::Refused;

/// The most keys of one request.
const KEYS_MAX: usize = 1024;

fn check_key(key: &[u8]) -> Result<(), Refused> {
    match key.len() {
        0..=KEY_BYTES_MAX => Ok(()),
        bytes => Err(Refused::new(
            ResponseError::InvalidRequest,
            format!("the key has {bytes} bytes, and may have at most {KEY_BYTES_MAX}"),
        )),
    }
}

/// The error of a request that ended without a result.
pub fn not_done() -> Refused {
    Refused::new(
        ResponseError::UnknownServerError,
        "the request was not carried out: see the log of the server",
    )
}

fn wire_version(version: millstream_log::KeyVersion) -> KeyVersion {
    KeyVersion {
        version: version.offset,
        timestamp: version.timestamp,
        value: version.value,
        expires_at: version.expires_at,
    }
}
