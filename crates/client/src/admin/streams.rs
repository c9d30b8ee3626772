//! Streams, by native requests; by Kafka's requests (`topics.rs`) if the broker does not know the
//! native ones.

use millstream_base::StreamId;
use millstream_wire::native::{
    CreateStreamRequest, DeleteStreamRequest, DescribeStreamRequest, DescribeStreamResponse,
    GrowStreamRequest, ListStreamsRequest, ListedStream, StreamSettings,
};

use crate::client::{Client, DESCRIBE, text};
use crate::error::ClientError;

/// The most streams in one answer.
const PAGE_MAX: u32 = 1000;

impl Client {
    /// Creates a stream.
    ///
    /// # Errors
    /// When there is one of this name, or the settings are refused.
    pub async fn create_stream(
        &self,
        name: &str,
        settings: StreamSettings,
    ) -> Result<(), ClientError> {
        let request = CreateStreamRequest {
            name: text(name),
            settings: settings.clone(),
            or_existing: false,
        };
        let answer = match self.ask(request).await {
            Err(ClientError::Unsupported { .. }) => {
                return self.create_topic(name, &settings).await;
            }
            answer => answer?,
        };
        let message = answer.error_message.as_deref();
        ClientError::check(answer.error_code, message, format!("stream {name}"))
            .map_err(|error| error.needing("Create"))
    }

    /// Returns the description of a stream, with its partitions.
    ///
    /// # Errors
    /// When there is none of this name.
    pub async fn stream(&self, name: &str) -> Result<DescribeStreamResponse, ClientError> {
        let request = DescribeStreamRequest {
            name: Some(text(name)),
            stream: StreamId::default(),
            with_lanes: true,
        };
        let answer = match self.ask(request).await {
            Err(ClientError::Unsupported { .. }) => return self.describe_topic(name).await,
            answer => answer?,
        };
        let message = answer.error_message.as_deref();
        ClientError::check(answer.error_code, message, format!("stream {name}"))
            .map_err(|error| error.needing(DESCRIBE))?;
        Ok(answer)
    }

    /// Returns the streams whose names start with `prefix`, by name.
    ///
    /// # Errors
    /// When no server answers.
    pub async fn streams(&self, prefix: &str) -> Result<Vec<ListedStream>, ClientError> {
        let mut streams: Vec<ListedStream> = Vec::new();
        loop {
            let request = ListStreamsRequest {
                prefix: text(prefix),
                after: streams.last().map(|stream| stream.name.clone()),
                streams_max: PAGE_MAX,
            };
            let answer = match self.ask(request).await {
                Err(ClientError::Unsupported { .. }) => return self.list_topics(prefix).await,
                answer => answer?,
            };
            let message = answer.error_message.as_deref();
            ClientError::check(answer.error_code, message, "listing streams")?;
            let has_more = answer.has_more && !answer.streams.is_empty();
            streams.extend(answer.streams);
            if !has_more {
                return Ok(streams);
            }
        }
    }

    /// Raises the number of streamlets or partitions of a stream.
    ///
    /// # Errors
    /// When there is none of this name, or the new numbers are smaller, or the stream is keyed: the number of partitions
    /// decides which one owns a key.
    pub async fn grow_stream(
        &self,
        name: &str,
        streamlets: u32,
        lanes: u32,
    ) -> Result<(), ClientError> {
        let request = GrowStreamRequest {
            name: text(name),
            streamlets,
            lanes,
        };
        let answer = match self.ask(request).await {
            Err(ClientError::Unsupported { .. }) => {
                return self.grow_topic(name, streamlets, lanes).await;
            }
            answer => answer?,
        };
        let message = answer.error_message.as_deref();
        ClientError::check(answer.error_code, message, format!("stream {name}"))
    }

    /// Deletes a stream with all its records.
    ///
    /// # Errors
    /// When there is none of this name.
    pub async fn delete_stream(&self, name: &str) -> Result<(), ClientError> {
        let answer = match self.ask(DeleteStreamRequest { name: text(name) }).await {
            Err(ClientError::Unsupported { .. }) => return self.delete_topic(name).await,
            answer => answer?,
        };
        let message = answer.error_message.as_deref();
        ClientError::check(answer.error_code, message, format!("stream {name}"))
    }
}
