//! The client's side of a connection, for requests whose making and reading is not measured.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use millstream_base::Timestamp;
use millstream_record::{ChunkBuilder, Compression};
use millstream_wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use millstream_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use millstream_wire::messages::metadata_request::MetadataRequestTopic;
use millstream_wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use millstream_wire::messages::{
    CreateTopicsRequest, DeleteTopicsRequest, IncrementalAlterConfigsRequest, MetadataRequest,
    ProduceRequest, TopicName,
};
use millstream_wire::{
    ApiKey, Request, RequestHeader, Response, StrBytes, Uuid, decode_response, encode_request,
    take_frame,
};

/// The size of a record's value.
pub const RECORD_BYTES: usize = 100;

/// Both brokers speak these.
pub const PRODUCE_VERSION: i16 = 9;
const CREATE_TOPICS_VERSION: i16 = 5;
const DELETE_TOPICS_VERSION: i16 = 5;
const ALTER_CONFIGS_VERSION: i16 = 1;
const METADATA_VERSION: i16 = 12;

/// Kinds of resources with settings.
pub const TOPIC: i8 = 2;
pub const GROUP: i8 = 32;

const ANSWER_BYTES_MAX: usize = 64 << 20;
const ANSWER_MAX: Duration = Duration::from_secs(60);

pub struct Connection {
    stream: TcpStream,
    received: BytesMut,
}

impl Connection {
    pub fn to(address: SocketAddr) -> Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(Connection {
            stream,
            received: BytesMut::new(),
        })
    }

    /// Another handle of the same connection.
    pub fn sender(&self) -> Result<TcpStream> {
        Ok(self.stream.try_clone()?)
    }

    pub fn send(&mut self, frame: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(frame)?)
    }

    /// The next answer, without the length before it.
    pub fn receive(&mut self) -> Result<Bytes> {
        loop {
            if let Some(frame) = take_frame(&mut self.received, ANSWER_BYTES_MAX)? {
                return Ok(frame);
            }
            let filled = self.received.len();
            self.received.resize(filled + (256 << 10), 0);
            let read = self.stream.read(&mut self.received[filled..])?;
            self.received.truncate(filled + read);
            ensure!(read > 0, "the broker has ended the connection");
        }
    }

    /// Sends a request, and waits for its answer.
    pub fn ask(&mut self, version: i16, request: Request) -> Result<Response> {
        let api = request.api();
        self.send(&frame(version, request)?)?;
        Ok(decode_response(api, version, self.receive()?)?.1)
    }

    /// Creates a topic; an existing one stays unchanged.
    pub fn create_topic(
        &mut self,
        name: &str,
        partitions: i32,
        settings: &[(&str, &str)],
    ) -> Result<()> {
        const TOPIC_ALREADY_EXISTS: i16 = 36;
        let settings = settings.iter().map(|(name, value)| {
            CreatableTopicConfig::default()
                .with_name(text(name))
                .with_value(Some(text(value)))
        });
        let topic = CreatableTopic::default()
            .with_name(TopicName(text(name)))
            .with_num_partitions(partitions)
            .with_replication_factor(1)
            .with_configs(settings.collect());
        let request = CreateTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(30_000);
        match self.ask(CREATE_TOPICS_VERSION, request.into())? {
            Response::CreateTopics(response) => {
                let topic = response.topics.first().context("no topic in the answer")?;
                let is_there = [0, TOPIC_ALREADY_EXISTS].contains(&topic.error_code);
                ensure!(is_there, "the topic is refused: {}", topic.error_code);
                Ok(())
            }
            _ => bail!("another answer than to CreateTopics"),
        }
    }

    /// Changes settings of a topic or a group.
    pub fn alter(&mut self, kind: i8, name: &str, settings: &[(&str, &str)]) -> Result<()> {
        let settings = settings.iter().map(|(name, value)| {
            AlterableConfig::default()
                .with_name(text(name))
                .with_value(Some(text(value)))
        });
        let resource = AlterConfigsResource::default()
            .with_resource_type(kind)
            .with_resource_name(text(name))
            .with_configs(settings.collect());
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        match self.ask(ALTER_CONFIGS_VERSION, request.into())? {
            Response::IncrementalAlterConfigs(response) => {
                let refused = response.responses.iter().find(|one| one.error_code != 0);
                ensure!(refused.is_none(), "the settings are refused: {refused:?}");
                Ok(())
            }
            _ => bail!("another answer than to IncrementalAlterConfigs"),
        }
    }

    /// Returns the id of a topic.
    pub fn topic_id(&mut self, name: &str) -> Result<Uuid> {
        let topic = MetadataRequestTopic::default().with_name(Some(TopicName(text(name))));
        let request = MetadataRequest::default().with_topics(Some(vec![topic]));
        match self.ask(METADATA_VERSION, request.into())? {
            Response::Metadata(response) => {
                let topic = response.topics.first().context("no topic in the answer")?;
                ensure!(
                    topic.error_code == 0,
                    "no topic {name}: {}",
                    topic.error_code
                );
                Ok(topic.topic_id)
            }
            _ => bail!("another answer than to Metadata"),
        }
    }

    pub fn delete_topic(&mut self, name: &str) -> Result<()> {
        let request = DeleteTopicsRequest::default()
            .with_topic_names(vec![TopicName(text(name))])
            .with_timeout_ms(30_000);
        self.ask(DELETE_TOPICS_VERSION, request.into())?;
        Ok(())
    }

    pub fn produce_one(&mut self, topic: &str) -> Result<()> {
        self.send(&produce_frame(topic, &[0], &chunk(1)?)?)?;
        check_produced(self.receive()?)
    }
}

/// Makes a chunk of `records` records.
pub fn chunk(records: usize) -> Result<Bytes> {
    let mut builder = ChunkBuilder::new(Compression::None);
    let value: Vec<u8> = (0..RECORD_BYTES).map(|n| (n * 7) as u8).collect();
    for _ in 0..records {
        let time = Timestamp(1_700_000_000_000);
        builder.push(time, None, Some(&value), &[])?;
    }
    Ok(Bytes::copy_from_slice(builder.finish(None)?))
}

/// A request that sends a chunk to each of these partitions.
pub fn produce_request(topic: &str, partitions: &[i32], chunk: &Bytes) -> ProduceRequest {
    let data = partitions.iter().map(|partition| {
        PartitionProduceData::default()
            .with_index(*partition)
            .with_records(Some(chunk.clone()))
    });
    let topic = TopicProduceData::default()
        .with_name(TopicName(text(topic)))
        .with_partition_data(data.collect());
    ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![topic])
}

/// Encodes a request as [`produce_request`] makes it.
pub fn produce_frame(topic: &str, partitions: &[i32], chunk: &Bytes) -> Result<Bytes> {
    let request = produce_request(topic, partitions, chunk);
    frame(PRODUCE_VERSION, request.into())
}

/// Checks that the broker accepted all chunks of a request.
pub fn check_produced(answer: Bytes) -> Result<()> {
    match decode_response(ApiKey::Produce, PRODUCE_VERSION, answer)?.1 {
        Response::Produce(response) => {
            let topics = response.responses.iter();
            let mut partitions = topics.flat_map(|topic| &topic.partition_responses);
            match partitions.find(|partition| partition.error_code != 0) {
                Some(refused) => bail!("records are refused: {}", refused.error_code),
                None => Ok(()),
            }
        }
        _ => bail!("another answer than to Produce"),
    }
}

pub fn frame(version: i16, request: Request) -> Result<Bytes> {
    let header = RequestHeader {
        api: request.api(),
        version,
        correlation_id: 1,
        client_id: Some("bench".into()),
    };
    Ok(encode_request(&header, &request)?.into_bytes())
}

pub fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}
