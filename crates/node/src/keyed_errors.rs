//! The errors of keyed streams, as requests over HTTP see them.

use millstream_broker::TogetherError;
use millstream_log::LogError;
use millstream_serve::KeyedError;

/// The error of an operation of the log that failed.
pub fn failed(error: LogError) -> KeyedError {
    match error {
        LogError::UnknownStream { name } => KeyedError::UnknownStream(name),
        LogError::NotKeyed { .. } | LogError::NoSecondaryIndex { .. } => {
            KeyedError::NotKeyed(error.to_string())
        }
        LogError::VersionNotKept { .. } | LogError::HoldOutgrown { .. } => {
            KeyedError::NotKept(error.to_string())
        }
        LogError::UnknownHold { .. } => KeyedError::UnknownHold(error.to_string()),
        LogError::ReadBudget
        | LogError::DecompressionBusy { .. }
        | LogError::PoolExhausted { .. }
        | LogError::KeysBusy { .. }
        | LogError::TooManyUndecided { .. } => KeyedError::Busy(error.to_string()),
        LogError::ChunkTooLarge { bytes_max, .. } => KeyedError::TooLarge {
            bytes_max: bytes_max.as_usize(),
        },
        LogError::DiskFull { .. } => KeyedError::DiskFull(error.to_string()),
        error => KeyedError::Failed(error.to_string()),
    }
}

/// Adds to the error of a write that is stored, but not durable, that it is not undone.
pub fn may_take_effect(error: KeyedError) -> KeyedError {
    let told = |text| format!("{text}; the write may take effect all the same: read the key first");
    match error {
        KeyedError::DiskFull(text) => KeyedError::DiskFull(told(text)),
        KeyedError::Failed(text) => KeyedError::Failed(told(text)),
        error => error,
    }
}

/// The error of a request that ended without a result.
pub fn ended() -> KeyedError {
    KeyedError::Failed("the request failed: see the log of the node".to_owned())
}

/// The error of changes that were not made together.
pub fn not_made(error: TogetherError) -> KeyedError {
    match error {
        TogetherError::Refused(error @ LogError::SameKey { .. }) => {
            KeyedError::NotChangeable(error.to_string())
        }
        TogetherError::Refused(error) => failed(error),
        TogetherError::NoTransaction(_) => KeyedError::Busy(error.to_string()),
        TogetherError::Unknown(_) => KeyedError::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use millstream_base::ByteSize;

    use super::*;

    #[test]
    fn errors_of_stored_writes_say_that_they_may_take_effect() {
        let full = LogError::DiskFull {
            dir: "data".into(),
            bytes: ByteSize(1),
        };
        for (error, is_full) in [(full, true), (LogError::Closed, false)] {
            let told = may_take_effect(failed(error));
            assert_eq!(matches!(told, KeyedError::DiskFull(_)), is_full, "{told:?}");
            assert!(told.to_string().contains("read the key first"), "{told}");
        }
    }

    #[test]
    fn errors_that_the_client_can_fix_are_not_server_failures() {
        let [bytes, bytes_max] = [9, 7].map(ByteSize);
        let full = failed(LogError::DiskFull {
            dir: "/data".into(),
            bytes,
        });
        assert!(matches!(full, KeyedError::DiskFull(text) if text.contains("/data")));
        let large = failed(LogError::ChunkTooLarge { bytes, bytes_max });
        assert!(matches!(large, KeyedError::TooLarge { bytes_max: 7 }));
        let busy = failed(LogError::PoolExhausted {
            pool: bytes,
            waited_ms: 1,
        });
        assert!(matches!(busy, KeyedError::Busy(_)));
        assert!(matches!(failed(LogError::Closed), KeyedError::Failed(_)));
    }
}
