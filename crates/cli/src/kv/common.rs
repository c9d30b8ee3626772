//! Common to the commands of `millstream kv`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use millstream_client::{ClientError, KeyRange, KeyVersion, KeyedStream};
use serde_json::{Value, json};

use crate::args::RangeArgs;
use crate::consume::text;
use crate::remote::Remote;

/// Returns the range of keys that options name.
pub fn range_of(args: &RangeArgs) -> KeyRange {
    let bytes = |text: &Option<OsString>| text.as_ref().map(|text| text.as_bytes().to_vec());
    match bytes(&args.prefix) {
        Some(prefix) => KeyRange::prefix(prefix),
        None => KeyRange::new(bytes(&args.from).unwrap_or_default(), bytes(&args.to)),
    }
}

/// Returns a version of a key as JSON.
pub fn document(key: &[u8], found: &KeyVersion) -> Value {
    let fields = [
        text("key", Some(key)),
        ("partition".to_owned(), json!(found.partition)),
        ("version".to_owned(), json!(found.version)),
        ("timestamp".to_owned(), json!(found.timestamp)),
        text("value", Some(&found.value)),
    ];
    let end = found.expires_at;
    let end = end.map(|end| ("expires_at".to_owned(), json!(end)));
    Value::Object(fields.into_iter().chain(end).collect())
}

/// Waits for an answer. The error for an unknown stream names the nearest existing one.
pub fn wait<T>(
    remote: &Remote,
    stream: &KeyedStream,
    answer: impl Future<Output = Result<T, ClientError>>,
) -> anyhow::Result<T> {
    match remote.runtime().block_on(answer) {
        Err(error) if error.is_unknown_stream() => {
            remote.stream(stream.name())?;
            Err(error.into())
        }
        answer => remote.wait(std::future::ready(answer)),
    }
}
