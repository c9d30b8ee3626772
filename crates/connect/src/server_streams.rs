//! Streams that are made on a server as in a log.

use millstream_client::native::{Durability, FurtherSetting, StreamSettings};
use millstream_client::{Client, ClientError, ResponseError, StrBytes};
use millstream_log::{Durability as LogDurability, StreamConfig};

/// Makes a stream unless it exists: then its settings stay. The same as [`stream_or_create`] of a log.
///
/// # Errors
/// When the server refuses the name or the settings, or does not answer.
///
/// [`stream_or_create`]: millstream_log::Log::stream_or_create
pub async fn stream_or_create(
    client: &Client,
    name: &str,
    config: &StreamConfig,
) -> Result<(), ClientError> {
    // Users need no right to create a stream that exists.
    match client.refresh(&[name]).await {
        Err(error) if error.is_unknown_stream() => {}
        found => return found,
    }
    match client.create_stream(name, settings(config)).await {
        Err(error) if error.response_error() == Some(ResponseError::TopicAlreadyExists) => Ok(()),
        created => created,
    }
}

fn settings(config: &StreamConfig) -> StreamSettings {
    let further = config.settings.iter().map(|(name, value)| FurtherSetting {
        name: StrBytes::from_string(name.clone()),
        value: StrBytes::from_string(value.clone()),
    });
    StreamSettings {
        streamlets: config.streamlets,
        lanes: config.lanes,
        virtual_logs: config.virtual_logs,
        durability: match config.durability {
            LogDurability::Sync => Durability::Sync,
            LogDurability::Written => Durability::Written,
            LogDurability::Async => Durability::Async,
            LogDurability::Memory => Durability::Memory,
        },
        group_segments: config.group_segments,
        segment_bytes: config.segment,
        retention_ms: config.retention_ms,
        retention_bytes: config.retention,
        chunk_bytes_max: config.chunk_bytes_max,
        further: further.collect(),
    }
}
