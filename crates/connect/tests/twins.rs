//! Sources of a log and of a server, side by side: both fail at the same records and refuse the same checkpoints.

mod malformed;
mod numbers;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::{
    ByteSize, Offset, ProducerEpoch, ProducerId, Sequence, SystemRandom, TcpNetwork, Timestamp,
};
use millstream_broker::{BrokerConfig, Server};
use millstream_client::{Client, ClientConfig, ConsumerConfig, DeliveryMode, TopicPartition};
use millstream_connect::{
    AnyRecords, AnySource, ReadError, ServerEnd, ServerSource, SourceError, StreamSource,
};
use millstream_flow::{Output, Parts, Source, SourceStatus};
use millstream_log::{Log, LogConfig, Stream, StreamConfig};
use millstream_record::{ChunkBuilder, Compression, EndMarker, Producer, TransactionEnd};

use numbers::produce;

/// The longest wait for anything: a loaded machine is slow.
const TIME_MAX: Duration = Duration::from_secs(60);

/// A log with a stream `s` of one partition, and its server.
struct Node {
    log: Log,
    stream: Stream,
    server: Option<Server>,
    address: SocketAddr,
    dir: tempfile::TempDir,
}

impl Node {
    fn new() -> Node {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(64 << 20))).unwrap();
        let stream = log.create_stream("s", StreamConfig::default()).unwrap();
        let server = serve(&log, dir.path(), ([127, 0, 0, 1], 0).into());
        Node {
            address: server.local_address(),
            server: Some(server),
            log,
            stream,
            dir,
        }
    }

    fn client(&self) -> ClientConfig {
        ClientConfig::new(self.address.to_string())
    }

    /// Bounded sources of the stream, each with a name for the test's messages.
    fn sources(&self) -> Vec<(&'static str, AnySource)> {
        vec![
            ("log", StreamSource::bounded(&self.stream).into()),
            ("pull", self.of_server(DeliveryMode::Pull).into()),
            ("push", self.of_server(DeliveryMode::Push).into()),
        ]
    }

    fn of_server(&self, delivery: DeliveryMode) -> ServerSource {
        let consumer = ConsumerConfig {
            delivery,
            ..ConsumerConfig::default()
        };
        let sources = ServerSource::of_stream(&self.client(), &consumer, "s", 1, ServerEnd::Now);
        sources.unwrap().remove(0)
    }

    fn append(&self, chunk: &[u8]) {
        let partition = self.stream.partition(0).unwrap();
        let appended = partition.append(chunk).unwrap();
        partition.wait_durable(appended.next_offset).unwrap();
    }

    /// Appends a transaction of one record, and its end.
    fn append_transaction(&self, id: i64, end: TransactionEnd) {
        let mut builder = ChunkBuilder::new(Compression::None);
        builder.set_transactional(true);
        builder
            .push(Timestamp(0), None, Some(b"in transaction"), &[])
            .unwrap();
        let (producer_id, producer_epoch) = (ProducerId(id), ProducerEpoch(0));
        let producer = Producer {
            id: producer_id,
            epoch: producer_epoch,
            sequence: Sequence(0),
        };
        self.append(builder.finish(Some(producer)).unwrap());
        let partition = self.stream.partition(0).unwrap();
        let marker = EndMarker {
            producer_id,
            producer_epoch,
            end,
            coordinator_epoch: 0,
        };
        let appended = partition.append_marker(&marker).unwrap();
        partition.wait_durable(appended.next_offset).unwrap();
    }
}

fn serve(log: &Log, dir: &Path, address: SocketAddr) -> Server {
    let config = BrokerConfig {
        local_socket: Some(dir.to_owned()),
        ..BrokerConfig::new(address)
    };
    let (clock, random) = (Arc::clone(log.clock()), Arc::new(SystemRandom));
    let server = Server::start(&TcpNetwork, config, log.clone(), clock, random);
    server.unwrap()
}

/// Polls a source until it gives an item or ends.
fn next(source: &mut AnySource) -> Option<AnyRecords> {
    let started_at = Instant::now();
    let mut output = Output::default();
    loop {
        let status = source.poll(&mut output, 1, Waker::noop()).unwrap();
        if let Some(item) = output.drain().next() {
            return Some(item);
        }
        if status == SourceStatus::End {
            return None;
        }
        assert!(started_at.elapsed() < TIME_MAX);
        thread::sleep(Duration::from_millis(1));
    }
}

fn offsets(records: &AnyRecords) -> Vec<u64> {
    let mut offsets = Vec::new();
    records.for_each_part(|record| offsets.push(record.offset.0));
    offsets
}

/// Returns the error of resuming from a checkpoint.
fn refusal(source: &mut AnySource, saved: &[u8]) -> SourceError {
    let error = source.restore(saved).unwrap_err();
    *error.downcast::<SourceError>().expect("it is a source's")
}

/// Returns a checkpoint of a stream with this next offset in its only partition, as a source of this name has it.
fn checkpoint(name: &str, stream: &Stream, next: u64) -> Vec<u8> {
    let stream = *stream.uuid().as_bytes();
    let saved = match name {
        "log" => postcard::to_stdvec(&(stream, vec![next])),
        _ => postcard::to_stdvec(&(stream, BTreeMap::from([(0_i32, next)]))),
    };
    saved.unwrap()
}

/// A source of a server named the record behind the last good one, and a checkpoint resumed behind the malformed chunk.
#[test]
fn no_source_saves_a_position_behind_a_malformed_chunk() {
    let node = Node::new();
    produce(&node.stream, 0, 0..1);
    node.append_transaction(7, TransactionEnd::Abort);
    node.append_transaction(8, TransactionEnd::Commit);
    node.append(&malformed::chunk(1));
    for (name, mut source) in node.sources() {
        let mut visited = Vec::new();
        let item = loop {
            let item = next(&mut source).expect("the malformed chunk comes");
            visited.extend(offsets(&item));
            if item.fault().is_some() {
                break item;
            }
        };
        // Offset 1 was aborted; 2 and 4 are markers.
        assert_eq!(visited, [0, 3, 5], "{name}");
        let saved = source.save().unwrap_err().to_string();
        assert!(
            saved.starts_with("stream s, partition 0, chunk with offset 6: "),
            "{name}: {saved}"
        );
        assert!(
            saved.ends_with("it was stored as its producer sent it"),
            "{name}: {saved}"
        );
        assert_eq!(item.fault().unwrap().to_string(), saved, "{name}");
    }
}

/// A bounded source of a server failed at a malformed chunk that came after its end.
#[test]
fn bounded_sources_do_not_read_chunks_behind_their_end() {
    let node = Node::new();
    produce(&node.stream, 0, 0..3);
    let sources = node.sources();
    node.append(&malformed::chunk(0));
    for (name, mut source) in sources {
        let mut visited = Vec::new();
        while let Some(item) = next(&mut source) {
            visited.extend(offsets(&item));
            assert!(item.fault().is_none(), "{name}: {:?}", item.fault());
        }
        assert_eq!(visited, [0, 1, 2], "{name}");
        source.save().unwrap();
    }
}

#[test]
fn sources_refuse_checkpoints_of_other_streams_and_of_other_forms() {
    let node = Node::new();
    produce(&node.stream, 0, 0..3);
    let other = node.log.create_stream("other", StreamConfig::default());
    let other = other.unwrap();
    for (name, mut source) in node.sources() {
        let of_other = checkpoint(name, &other, 0);
        let refused = refusal(&mut source, &of_other);
        assert!(matches!(refused, SourceError::Other { .. }), "{name}");
        let own = checkpoint(name, &node.stream, 1);
        let of_twin = match name {
            "log" => checkpoint("pull", &node.stream, 1),
            _ => checkpoint("log", &node.stream, 1),
        };
        for bytes in [&[7], &own[..own.len() - 1], &of_twin] {
            let refused = refusal(&mut source, bytes);
            assert!(
                matches!(refused, SourceError::Unreadable { .. }),
                "{name}: {refused}"
            );
        }
        source.restore(&own).unwrap();
        let item = next(&mut source).expect("records follow");
        assert_eq!(offsets(&item).last(), Some(&2), "{name}");
    }
}

/// A bounded source of a server ended at once if its position was behind the end: a later run left out the records that
/// had come up to there.
#[test]
fn sources_refuse_checkpoints_whose_next_records_are_missing() {
    let node = Node::new();
    produce(&node.stream, 0, 0..10);
    produce(&node.stream, 0, 0..10);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = Client::new(node.client());
    let place = TopicPartition {
        topic: "s".into(),
        partition: 0,
    };
    let before = BTreeMap::from([(place, Offset(10))]);
    runtime.block_on(client.delete_records(&before)).unwrap();
    for (name, mut source) in node.sources() {
        for gone in [0, 9, 21] {
            let saved = checkpoint(name, &node.stream, gone);
            let refused = refusal(&mut source, &saved);
            assert!(
                matches!(
                    refused,
                    SourceError::Gone {
                        partition: Some(0),
                        ..
                    }
                ),
                "{name}: {refused}"
            );
            let refused = refused.to_string();
            assert!(
                refused.contains(&format!("offset {gone}")) && refused.contains("10"),
                "{name}: {refused}"
            );
        }
        for there in [10, 20] {
            let saved = checkpoint(name, &node.stream, there);
            source.restore(&saved).unwrap();
        }
        assert!(next(&mut source).is_none(), "{name}");
    }
}

/// A checkpoint of more partitions than the stream has belongs to a stream that lost some.
#[test]
fn sources_refuse_checkpoints_of_partitions_that_they_do_not_read() {
    let node = Node::new();
    let id = *node.stream.uuid().as_bytes();
    for (name, mut source) in node.sources() {
        let saved = match name {
            "log" => postcard::to_stdvec(&(id, vec![0_u64, 0])),
            _ => postcard::to_stdvec(&(id, BTreeMap::from([(0_i32, 0_u64), (1, 0)]))),
        };
        let refused = refusal(&mut source, &saved.unwrap());
        assert!(
            matches!(
                refused,
                SourceError::Gone {
                    partition: Some(1),
                    ..
                }
            ),
            "{name}: {refused}"
        );
    }
}

/// A server that is away for a moment keeps no flow from resuming, and one that stays away has not lost the records.
#[test]
fn an_unreachable_server_is_not_taken_for_one_that_lost_the_records() {
    let mut node = Node::new();
    produce(&node.stream, 0, 0..3);
    let saved = checkpoint("pull", &node.stream, 1);
    let mut source = AnySource::from(node.of_server(DeliveryMode::Pull));
    let consumer = ConsumerConfig::default();
    let impatient = ClientConfig {
        request_timeout: Duration::from_millis(100),
        ..node.client()
    };
    let end = ServerEnd::Now;
    let impatient = ServerSource::of_stream(&impatient, &consumer, "s", 1, end);
    let mut impatient = AnySource::from(impatient.unwrap().remove(0));
    node.server = None;
    let refused = refusal(&mut impatient, &saved);
    let SourceError::Read {
        error: ReadError::Server(error),
        ..
    } = &refused
    else {
        panic!("{refused:?}");
    };
    assert!(error.is_retriable(), "{refused}");

    let resuming = thread::spawn(move || {
        source.restore(&saved).unwrap();
        source
    });
    // It finds no server at first.
    thread::sleep(Duration::from_millis(300));
    node.server = Some(serve(&node.log, node.dir.path(), node.address));
    let mut source = resuming.join().unwrap();
    let item = next(&mut source).expect("records follow");
    assert_eq!(offsets(&item).last(), Some(&2));
}
