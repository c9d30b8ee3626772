//! Streams of brokers that know no native requests: topics, each partition as a streamlet with one
//! partition.

use millstream_base::{ByteSize, LaneIndex, StreamId, StreamletIndex, Timestamp};
use millstream_wire::messages::create_partitions_request::CreatePartitionsTopic;
use millstream_wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use millstream_wire::messages::delete_topics_request::DeleteTopicState;
use millstream_wire::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest, MetadataRequest,
};
use millstream_wire::native::{
    DescribeStreamResponse, Durability, LaneDescription, ListedStream, StreamSettings,
};
use millstream_wire::{ResponseError, StrBytes};
use tokio::time::{Instant, sleep};

use crate::client::{Client, text, topic_name};
use crate::error::ClientError;
use crate::offsets::{Isolation, Start, TopicPartition};

/// The settings that hold the retention and the largest chunk.
const SETTINGS: [&str; 3] = ["retention.ms", "retention.bytes", "max.message.bytes"];

/// Leaves the number of replicas to the broker's default.
const REPLICAS_DEFAULT: i16 = -1;

/// The largest chunk that a Kafka broker accepts by default.
const CHUNK_BYTES_MAX: ByteSize = ByteSize(1 << 20);

impl Client {
    pub(super) async fn create_topic(
        &self,
        name: &str,
        settings: &StreamSettings,
    ) -> Result<(), ClientError> {
        check_settings(name, settings)?;
        let retention = [
            ("retention.ms", settings.retention_ms),
            (
                "retention.bytes",
                settings.retention_bytes.map(|size| size.0),
            ),
        ];
        let retention = retention
            .into_iter()
            .filter_map(|(name, value)| Some((text(name), text(&value?.to_string()))));
        let further = settings.further.iter();
        let further = further.map(|setting| (setting.name.clone(), setting.value.clone()));
        let configs = retention.chain(further).map(|(name, value)| {
            CreatableTopicConfig::default()
                .with_name(name)
                .with_value(Some(value))
        });
        let count = partitions(settings.streamlets, settings.lanes);
        let topic = CreatableTopic::default()
            .with_name(topic_name(name))
            .with_num_partitions(count)
            .with_replication_factor(REPLICAS_DEFAULT)
            .with_configs(configs.collect());
        let request = CreateTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(self.timeout_ms());
        for topic in self.controller().await?.ask(request).await?.topics {
            let message = topic.error_message.as_deref();
            ClientError::check(topic.error_code, message, format!("stream {name}"))
                .map_err(|error| error.needing("Create"))?;
        }
        self.await_partitions(name, count).await
    }

    /// Waits until the servers know the new partitions: Kafka's servers learn of them after the
    /// answer.
    async fn await_partitions(&self, name: &str, count: i32) -> Result<(), ClientError> {
        let started_at = Instant::now();
        loop {
            let found = match self.refresh(&[name]).await {
                Ok(()) => self
                    .topic(name)
                    .await
                    .and_then(|topic| topic.leader(count - 1)),
                Err(error) => Err(error),
            };
            match found {
                Ok(_) => return Ok(()),
                Err(error) => {
                    let is_over = started_at.elapsed() >= self.config().unknown_timeout;
                    if is_over || !error.is_retriable() {
                        return Err(error);
                    }
                }
            }
            sleep(self.config().backoff).await;
        }
    }

    pub(super) async fn describe_topic(
        &self,
        name: &str,
    ) -> Result<DescribeStreamResponse, ClientError> {
        self.refresh(&[name]).await?;
        let topic = self.topic(name).await?;
        let count = i32::try_from(topic.leaders.len()).unwrap_or(i32::MAX);
        let places = (0..count).map(|partition| TopicPartition {
            topic: topic.name.clone(),
            partition,
        });
        let places: Vec<TopicPartition> = places.collect();
        let asked = |start| places.iter().map(|place| (place.clone(), start)).collect();
        let asked: [Vec<(TopicPartition, Start)>; 2] =
            [asked(Start::Earliest), asked(Start::Latest)];
        let settings = self.settings(name, &SETTINGS).await?;
        // A negative value means "unbounded".
        let number = |name| settings.get(name)?.parse::<u64>().ok();
        let chunk_bytes_max = number("max.message.bytes").map(ByteSize);
        let firsts = self.offsets(&asked[0], Isolation::Uncommitted).await?;
        let ends = self.offsets(&asked[1], Isolation::Uncommitted).await?;
        let stable = self.offsets(&asked[1], Isolation::Committed).await?;
        let lanes = (0..).zip(&places).map(|(number, place)| LaneDescription {
            partition: number,
            streamlet: StreamletIndex(number),
            lane: LaneIndex(0),
            earliest: firsts.get(place).copied().unwrap_or_default(),
            durable: ends.get(place).copied().unwrap_or_default(),
            stable: stable.get(place).copied().unwrap_or_default(),
            oldest_transaction: Timestamp(-1),
            groups: 0,
            bytes: ByteSize(0),
            cut_bytes: ByteSize(0),
            fault: None,
            misplaced: 0,
            compaction: None,
        });
        Ok(DescribeStreamResponse {
            name: text(name),
            uuid: topic.id,
            settings: StreamSettings {
                streamlets: u32::try_from(places.len()).unwrap_or(u32::MAX),
                lanes: 1,
                virtual_logs: 1,
                segment_bytes: CHUNK_BYTES_MAX,
                retention_ms: number("retention.ms"),
                retention_bytes: number("retention.bytes").map(ByteSize),
                chunk_bytes_max,
                ..StreamSettings::default()
            },
            chunk_bytes_max: chunk_bytes_max.unwrap_or(CHUNK_BYTES_MAX),
            lanes: lanes.collect(),
            ..DescribeStreamResponse::default()
        })
    }

    pub(super) async fn list_topics(&self, prefix: &str) -> Result<Vec<ListedStream>, ClientError> {
        let request = MetadataRequest::default()
            .with_topics(None)
            .with_allow_auto_topic_creation(false);
        let topics = self.ask(request).await?.topics.into_iter();
        let of_users = topics.filter(|topic| !topic.is_internal && topic.error_code == 0);
        let streams = of_users.filter_map(|topic| {
            let name: StrBytes = topic.name?.0;
            name.starts_with(prefix).then(|| ListedStream {
                name,
                stream: StreamId::default(),
                uuid: topic.topic_id,
                streamlets: u32::try_from(topic.partitions.len()).unwrap_or(u32::MAX),
                lanes: 1,
            })
        });
        let mut streams: Vec<ListedStream> = streams.collect();
        streams.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(streams)
    }

    pub(super) async fn grow_topic(
        &self,
        name: &str,
        streamlets: u32,
        lanes: u32,
    ) -> Result<(), ClientError> {
        let count = partitions(streamlets, lanes);
        let topic = CreatePartitionsTopic::default()
            .with_name(topic_name(name))
            .with_count(count)
            .with_assignments(None);
        let request = CreatePartitionsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(self.timeout_ms());
        for result in self.controller().await?.ask(request).await?.results {
            let message = result.error_message.as_deref();
            ClientError::check(result.error_code, message, format!("stream {name}"))?;
        }
        self.await_partitions(name, count).await
    }

    pub(super) async fn delete_topic(&self, name: &str) -> Result<(), ClientError> {
        let topic = DeleteTopicState::default().with_name(Some(topic_name(name)));
        let request = DeleteTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(self.timeout_ms());
        for result in self.controller().await?.ask(request).await?.responses {
            let message = result.error_message.as_deref();
            ClientError::check(result.error_code, message, format!("stream {name}"))?;
        }
        Ok(())
    }

    fn timeout_ms(&self) -> i32 {
        i32::try_from(self.config().request_timeout.as_millis()).unwrap_or(i32::MAX)
    }
}

/// Refuses the settings that a topic cannot have: its brokers' set-up decides its durability, and
/// it has one log for each partition.
fn check_settings(name: &str, settings: &StreamSettings) -> Result<(), ClientError> {
    let is_possible = settings.durability == Durability::Sync && settings.virtual_logs <= 1;
    match is_possible {
        true => Ok(()),
        false => Err(ClientError::Refused {
            what: format!("stream {name}"),
            error: ResponseError::InvalidConfig,
            message: Some(
                "durability and virtual logs are settings of Millstream's servers, and this is a server of another kind"
                    .to_owned(),
            ),
        }),
    }
}

fn partitions(streamlets: u32, lanes: u32) -> i32 {
    i32::try_from(u64::from(streamlets) * u64::from(lanes)).unwrap_or(i32::MAX)
}
