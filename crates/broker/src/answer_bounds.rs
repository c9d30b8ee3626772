//! The bound of each answer: the memory that it takes from the budget before it is built.
//!
//! A bound covers the answer as a structure, the encoded answer, and the growth of the buffer that
//! it is encoded into. Records and contents of objects are not in it: they are sent from where they
//! lie. A new request does not compile until it stands here.

use millstream_log::{HOLDS_MAX, NAMED_RECORDS_MAX};
use millstream_wire::Request;
use millstream_wire::messages::produce_response::BatchIndexAndErrorMessage;
use millstream_wire::messages::{MetadataRequest, OffsetFetchRequest, ProduceRequest};

use crate::broker::Broker;
use crate::client::Client;
use crate::topics::Named;

/// The bound of an answer's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// At most this many bytes. They are taken before the request begins.
    Bytes(usize),
    /// The answer describes parts of the broker's state whose size is not known before. It is built
    /// while no other one of these is, encoded at once, and then waits for memory of its size.
    State,
    /// The request may wait for long, so it takes memory when the wait is over: for reads, before
    /// records are read; for groups, before the answer is encoded. Until then the answer of a group
    /// consists of references to the group's state.
    Late,
}

/// An answer without lists: an error and its message, numbers, a few names.
const PLAIN_BYTES: usize = 2 << 10;

/// An element of a list: its numbers, and references to names.
const ELEMENT_BYTES: usize = 320;

/// An element that may come with a message.
const TOLD_BYTES: usize = ELEMENT_BYTES + (2 << 10);

/// A partition of a Produce answer. Errors with longer messages are rare, and shorter answers let a
/// producer have more requests in progress.
const PRODUCED_BYTES: usize = 256;

/// A record without a key in a Produce answer: its structure, and its number in the answer and in a buffer that grows.
const NAMED_RECORD_BYTES: usize = size_of::<BatchIndexAndErrorMessage>() + ECHOES * 6;

/// A created topic, with all its settings.
const CREATED_BYTES: usize = 32 << 10;

/// A partition in an answer to Metadata. Lists of one broker lie in the partition itself.
const METADATA_PARTITION_BYTES: usize = 192;

/// A topic's own part of a description, with its name.
const TOPIC_BYTES: usize = 1 << 10;

/// A partition of a DescribeTopicPartitions answer, with its four lists.
const DESCRIBED_PARTITION_BYTES: usize = 512;

/// A partition of a DescribeStream answer, with a fault.
const DESCRIBED_LANE_BYTES: usize = 1 << 10;

/// A hold of a stream in an answer, without its offsets.
const HOLD_BYTES: usize = 4 << 10;

/// The most elements of a page of native lists.
const PAGE_MAX: usize = 1000;

/// The most partitions in a page of DescribeTopicPartitions.
pub const PAGE_PARTITIONS_MAX: i32 = 2_000;

/// How often a name of the request may be in the answer: in a message, and in a buffer that grows.
const ECHOES: usize = 4;

/// Returns the bound of the answer to a request, whose frame has `request_bytes` bytes.
pub fn bound(
    broker: &Broker,
    client: &mut Client,
    version: i16,
    request_bytes: usize,
    request: &Request,
) -> Bound {
    // Names that the answer repeats are in the request's bytes.
    let list = |count: usize, each: usize| {
        let elements = count.saturating_mul(each);
        let echoed = request_bytes.saturating_mul(ECHOES);
        Bound::Bytes(PLAIN_BYTES.saturating_add(elements).saturating_add(echoed))
    };
    let elements = |count: usize| list(count, ELEMENT_BYTES);
    let told = |count: usize| list(count, TOLD_BYTES);
    let plain = elements(0);
    match request {
        Request::Produce(request) => Bound::Bytes(produced(client, version, request)),
        Request::WriteChunks(request) => {
            Bound::Bytes(PLAIN_BYTES + request.chunks.len() * ELEMENT_BYTES)
        }
        Request::Fetch(_)
        | Request::ShareFetch(_)
        | Request::ReadChunks(_)
        | Request::GetKeys(_)
        | Request::ScanKeys(_)
        | Request::FindKeys(_)
        | Request::KeyHistory(_)
        | Request::Receive(_) => Bound::Late,
        Request::JoinGroup(_)
        | Request::SyncGroup(_)
        | Request::ConsumerGroupHeartbeat(_)
        | Request::ShareGroupHeartbeat(_)
        | Request::StreamsGroupHeartbeat(_) => Bound::Late,

        Request::Metadata(request) => Bound::Bytes(metadata(broker, client, version, request))
            .and(elements(request.topics.as_ref().map_or(0, Vec::len))),
        Request::DescribeTopicPartitions(request) => {
            let page = request
                .response_partition_limit
                .clamp(1, PAGE_PARTITIONS_MAX) as usize;
            let page = page.min(broker.log().partition_count() as usize);
            Bound::Bytes(page * (DESCRIBED_PARTITION_BYTES + TOPIC_BYTES))
                .and(elements(request.topics.len()))
        }

        Request::ListOffsets(request) => {
            elements(nested(&request.topics, |topic| topic.partitions.len()))
        }
        Request::OffsetForLeaderEpoch(request) => {
            elements(nested(&request.topics, |topic| topic.partitions.len()))
        }
        Request::DeleteRecords(request) => {
            elements(nested(&request.topics, |topic| topic.partitions.len()))
        }
        Request::OffsetCommit(request) => {
            elements(nested(&request.topics, |topic| topic.partitions.len()))
        }
        Request::TxnOffsetCommit(request) => {
            elements(nested(&request.topics, |topic| topic.partitions.len()))
        }
        Request::OffsetDelete(request) => {
            elements(nested(&request.topics, |topic| topic.partitions.len()))
        }
        Request::AddPartitionsToTxn(request) => {
            let of_old = &request.v3_and_below_topics;
            let transactions = nested(&request.transactions, |transaction| {
                nested(&transaction.topics, |topic| topic.partitions.len())
            });
            elements(transactions + nested(of_old, |topic| topic.partitions.len()))
        }
        Request::WriteTxnMarkers(request) => elements(nested(&request.markers, |marker| {
            nested(&marker.topics, |topic| topic.partition_indexes.len())
        })),
        Request::ShareAcknowledge(request) => {
            told(nested(&request.topics, |topic| topic.partitions.len()))
        }
        Request::AlterShareGroupOffsets(request) => {
            told(nested(&request.topics, |topic| topic.partitions.len()))
        }
        Request::DeleteShareGroupOffsets(request) => told(request.topics.len()),
        Request::AlterPartitionReassignments(request) => {
            told(nested(&request.topics, |topic| topic.partitions.len()))
        }
        Request::AlterReplicaLogDirs(request) => elements(nested(&request.dirs, |dir| {
            nested(&dir.topics, |topic| topic.partitions.len())
        })),
        Request::DescribeQuorum(request) => {
            told(nested(&request.topics, |topic| topic.partitions.len()))
        }
        Request::ElectLeaders(request) => match &request.topic_partitions {
            Some(topics) => told(nested(topics, |topic| topic.partitions.len())),
            None => Bound::State,
        },
        Request::FindCoordinator(request) => told(request.coordinator_keys.len()),
        Request::LeaveGroup(request) => elements(request.members.len()),
        Request::DeleteGroups(request) => elements(request.groups_names.len()),
        Request::CreateTopics(request) => list(request.topics.len(), CREATED_BYTES),
        Request::DeleteTopics(request) => told(request.topics.len() + request.topic_names.len()),
        Request::CreatePartitions(request) => told(request.topics.len()),
        Request::AlterConfigs(request) => told(request.resources.len()),
        Request::IncrementalAlterConfigs(request) => told(request.resources.len()),
        Request::CreateAcls(request) => told(request.creations.len()),
        Request::AlterClientQuotas(request) => {
            told(nested(&request.entries, |entry| entry.entity.len()))
        }
        Request::AlterUserScramCredentials(request) => {
            told(request.deletions.len() + request.upsertions.len())
        }
        Request::UpdateFeatures(request) => told(request.feature_updates.len()),
        Request::OffsetFetch(request) => match offsets(request) {
            Some(count) => {
                // The text of a commit, in the answer and in a buffer that grows.
                let text_max = broker.config().groups.offset_metadata_max;
                list(count, ELEMENT_BYTES + ECHOES * text_max)
            }
            None => Bound::State,
        },

        Request::DescribeGroups(_)
        | Request::ListGroups(_)
        | Request::ConsumerGroupDescribe(_)
        | Request::ShareGroupDescribe(_)
        | Request::StreamsGroupDescribe(_)
        | Request::DescribeShareGroupOffsets(_)
        | Request::DescribeProducers(_)
        | Request::DescribeTransactions(_)
        | Request::ListTransactions(_)
        | Request::DescribeConfigs(_)
        | Request::ListConfigResources(_)
        | Request::DescribeLogDirs(_)
        | Request::DescribeAcls(_)
        | Request::DeleteAcls(_)
        | Request::DescribeClientQuotas(_)
        | Request::DescribeUserScramCredentials(_) => Bound::State,

        Request::Heartbeat(_)
        | Request::InitProducerId(_)
        | Request::AddOffsetsToTxn(_)
        | Request::EndTxn(_)
        | Request::ListPartitionReassignments(_)
        | Request::DescribeCluster(_)
        | Request::SaslHandshake(_)
        | Request::SaslAuthenticate(_)
        | Request::LocalSocket(_)
        | Request::Unsubscribe(_) => plain,
        Request::ApiVersions(_) => elements(millstream_wire::SUPPORTED.len()),

        Request::CreateStream(_)
        | Request::GrowStream(_)
        | Request::DeleteStream(_)
        | Request::ReleaseGroups(_)
        | Request::AvailableGroups(_)
        | Request::AvailableSegments(_)
        | Request::PutObject(_)
        | Request::DeleteObject(_) => told(1),
        // The content of an object is sent from where it lies.
        Request::GetObject(_) => told(1),
        Request::DescribeStream(request) => {
            let stream = match &request.name {
                Some(name) => client.stream(name),
                None => broker.log().stream_by_id(request.stream),
            };
            let stream = stream.ok().filter(|_| request.with_lanes);
            let lanes = stream.map_or(0, |stream| stream.partition_count() as usize);
            list(lanes + HOLDS_MAX, DESCRIBED_LANE_BYTES)
        }
        Request::ListStreams(request) => {
            list(PAGE_MAX.min(request.streams_max as usize), TOPIC_BYTES)
        }
        Request::ListObjects(request) => {
            list(PAGE_MAX.min(request.objects_max as usize), TOPIC_BYTES)
        }
        Request::NextGroups(request) => elements(PAGE_MAX.min(request.groups_max as usize)),
        Request::NextSegments(request) => elements(PAGE_MAX.min(request.segments_max as usize)),
        Request::CommitCursors(request) => told(request.cursors.len()),
        Request::PutKeys(request) => told(request.entries.len()),
        Request::Subscribe(request) => told(nested(&request.sources, |source| source.lanes.len())),
        Request::ChangeHold(request) => list(1, hold_bytes(client, &request.stream)),
        Request::ListHolds(request) => list(HOLDS_MAX, hold_bytes(client, &request.stream)),
        Request::WatchKeys(request) => {
            let stream = client.stream(&request.stream).ok();
            elements(stream.map_or(0, |stream| stream.partition_count() as usize))
        }
    }
}

/// The most bytes of a hold of a stream in an answer: names, and an offset for each partition.
fn hold_bytes(client: &mut Client, stream: &str) -> usize {
    let stream = client.stream(stream).ok();
    stream.map_or(0, |stream| {
        HOLD_BYTES + stream.partition_count() as usize * size_of::<u64>()
    })
}

impl Bound {
    /// Returns the bound of an answer with both of these parts.
    fn and(self, other: Bound) -> Bound {
        match (self, other) {
            (Bound::Bytes(one), Bound::Bytes(other)) => Bound::Bytes(one.saturating_add(other)),
            (bound, Bound::Bytes(_)) => bound,
            (_, bound) => bound,
        }
    }
}

/// Counts elements, and those of the lists in them.
fn nested<T>(elements: &[T], of_element: impl Fn(&T) -> usize) -> usize {
    elements.iter().map(|element| 1 + of_element(element)).sum()
}

/// Returns the bytes of the topics that a Produce request names. Those of keyed topics are more: the answer names records
/// without a key, and each message names the topic, which the request may know by its id only.
fn produced(client: &mut Client, version: i16, request: &ProduceRequest) -> usize {
    let topics = request.topic_data.iter().map(|topic| {
        let partitions = topic.partition_data.len();
        let plain = ELEMENT_BYTES + topic.name.len() * ECHOES + partitions * PRODUCED_BYTES;
        match Named::of_produced(version, topic).stream(client) {
            Ok(stream) if stream.needs_keys() => {
                let messages = partitions * stream.name().len() * ECHOES;
                plain + messages + NAMED_RECORDS_MAX * NAMED_RECORD_BYTES
            }
            _ => plain,
        }
    });
    topics.sum()
}

/// Returns the bytes of the topics that a Metadata request asks for. No topic is described twice.
fn metadata(
    broker: &Broker,
    client: &mut Client,
    version: i16,
    request: &MetadataRequest,
) -> usize {
    let log = broker.log();
    let all = log.partition_count() as usize;
    let asked = request.topics.as_deref();
    let partitions = match asked.filter(|topics| version > 0 || !topics.is_empty()) {
        None => return all * METADATA_PARTITION_BYTES + log.stream_count() * TOPIC_BYTES,
        Some(topics) => topics.iter().map(|topic| {
            let stream = match &topic.name {
                Some(name) if topic.topic_id.is_nil() => client.stream(name),
                _ => client.stream_by_uuid(topic.topic_id),
            };
            // A topic that is missing may be created.
            let created = broker.config().partitions_default;
            TOPIC_BYTES
                + METADATA_PARTITION_BYTES
                    * stream.map_or(created, |stream| stream.partition_count()) as usize
        }),
    };
    let created = asked.map_or(0, <[_]>::len)
        * (TOPIC_BYTES + METADATA_PARTITION_BYTES * broker.config().partitions_default as usize);
    partitions
        .sum::<usize>()
        .min(all * (METADATA_PARTITION_BYTES + TOPIC_BYTES) + created)
}

/// Returns the number of offsets that a request names; `None` if it asks for all of a group.
fn offsets(request: &OffsetFetchRequest) -> Option<usize> {
    if request.groups.is_empty() {
        let topics = request.topics.as_ref()?;
        return Some(nested(topics, |topic| topic.partition_indexes.len()));
    }
    let groups = request.groups.iter().map(|group| {
        let topics = group.topics.as_ref()?;
        Some(1 + nested(topics, |topic| topic.partition_indexes.len()))
    });
    groups.sum()
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;

    use bytes::{BufMut, BytesMut};
    use millstream_base::{ByteSize, SystemRandom};
    use millstream_log::{Log, LogConfig, StreamConfig};
    use millstream_wire::messages::TopicName;
    use millstream_wire::messages::metadata_request::MetadataRequestTopic;
    use millstream_wire::{ApiKey, MetadataPartition, SUPPORTED, StrBytes, decode_request};
    use tokio::sync::watch;

    use super::*;
    use crate::answer_memory::SMALL_BYTES_MAX;
    use crate::config::BrokerConfig;
    use crate::listener::LogIn;
    use crate::peer::Peer;

    /// Returns a request whose lists and texts are empty.
    fn empty_request(api: ApiKey) -> Option<Request> {
        api.versions()
            .find_map(|version| {
                // In a flexible version, 1 is the length of an empty list.
                let fill = u8::from(api.is_flexible(version));
                (0..200).find_map(|length| {
                    let mut frame = BytesMut::new();
                    frame.put_i16(api as i16);
                    frame.put_i16(version);
                    frame.put_i32(1);
                    frame.put_i16(-1);
                    if api.is_flexible(version) {
                        frame.put_u8(0);
                    }
                    frame.put_bytes(fill, length);
                    if api.is_flexible(version) {
                        frame.put_u8(0);
                    }
                    decode_request(frame.freeze()).ok()
                })
            })
            .map(|(_, request)| request)
    }

    #[test]
    fn every_request_has_a_bound_and_empty_requests_have_small_answers() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(16 << 20))).unwrap();
        let streams = |streamlets| StreamConfig {
            streamlets,
            ..StreamConfig::default()
        };
        log.create_stream("large", streams(1000)).unwrap();
        log.create_stream("small", streams(1)).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (config, clock) = (BrokerConfig::new(address), Arc::clone(log.clock()));
        let broker = Broker::new(config, log, clock, Arc::new(SystemRandom)).unwrap();
        let peer = Peer {
            address,
            is_same_user: false,
            advertised: ("localhost".to_owned(), 9092),
            log_in: LogIn::No,
        };
        let (_stop, stopping) = watch::channel(false);
        let mut client = Client::new(peer, None, &broker, stopping);
        for supported in SUPPORTED {
            let api = supported.api;
            let request = empty_request(api).unwrap_or_else(|| panic!("no request: {api:?}"));
            match bound(&broker, &mut client, 1, 100, &request) {
                Bound::Bytes(bytes) => {
                    // The numbers of this request are large, not those of its elements.
                    let is_page = matches!(
                        api,
                        ApiKey::ListStreams
                            | ApiKey::ListObjects
                            | ApiKey::NextGroups
                            | ApiKey::NextSegments
                            | ApiKey::DescribeTopicPartitions
                    );
                    let is_all = api == ApiKey::Metadata;
                    assert!(
                        is_page || is_all || bytes <= SMALL_BYTES_MAX,
                        "{api:?}: {bytes}"
                    );
                }
                Bound::State | Bound::Late => {}
            }
        }
        // A topic counts with its partitions, and a missing one with those it may get.
        let mut metadata = |names: &[&'static str]| {
            let topics = names
                .iter()
                .map(|name| TopicName(StrBytes::from_static_str(name)))
                .map(|name| MetadataRequestTopic::default().with_name(Some(name)));
            let request = MetadataRequest::default().with_topics(Some(topics.collect()));
            match bound(&broker, &mut client, 9, 100, &request.into()) {
                Bound::Bytes(bytes) => bytes,
                other => panic!("{other:?}"),
            }
        };
        let large = metadata(&["large"]);
        assert!(
            large > 1000 * (size_of::<MetadataPartition>() + 2 * 34),
            "{large}"
        );
        assert!(metadata(&["small"]) < 8 << 10);
        assert!(metadata(&["missing"]) < 8 << 10);
        // Repeated names do not multiply the answer.
        assert!(metadata(&["large"; 100]) < 8 * large);
    }
}
