//! Streams, by native requests; where the broker does not know these, by Kafka's (`topics.rs`).

use millstream_base::StreamId;
use millstream_wire::native::{
    CreateStreamRequest, DeleteStreamRequest, DescribeStreamRequest, DescribeStreamResponse,
    GrowStreamRequest, ListStreamsRequest, ListedStream, StreamSettings,
};

use crate::client::{Client, text};
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
    }

    /// All that is known of a stream, with its lanes.
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
        ClientError::check(answer.error_code, message, format!("stream {name}"))?;
        Ok(answer)
    }

    /// The streams whose names start with `prefix`, by name.
    ///
    /// # Errors
    /// When nobody answers.
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

    /// Gives a stream more streamlets or lanes.
    ///
    /// # Errors
    /// When there is none of this name, or these are fewer.
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

    /// Deletes a stream with all that it holds.
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
