//! Tests of waiting requests: the memory that they hold, and their objective.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;

use bytes::BytesMut;
use millstream_base::{ByteSize, SystemRandom};
use millstream_log::{Background, Log, LogConfig, StreamConfig};
use millstream_pool::{Objective, Pool};
use millstream_record::{ChunkBuilder, Compression};
use millstream_wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use millstream_wire::messages::{MetadataRequest, ProduceRequest, TopicName};
use millstream_wire::{ApiKey, StrBytes, encode_request};

use super::*;
use crate::config::BrokerConfig;
use crate::listener::LogIn;
use crate::objectives::Objectives;

/// Returns a request to append a chunk of `value_bytes` bytes to the first partition of `topic`.
fn produce_frame(topic: &'static str, value_bytes: usize) -> Bytes {
    let mut builder = ChunkBuilder::new(Compression::None);
    let value = vec![7; value_bytes];
    let time = millstream_base::Timestamp(0);
    builder.push(time, None, Some(&value), &[]).unwrap();
    let records = Bytes::copy_from_slice(builder.finish(None).unwrap());
    let data = PartitionProduceData::default().with_records(Some(records));
    let topic = TopicProduceData::default()
        .with_name(TopicName(StrBytes::from_static_str(topic)))
        .with_partition_data(vec![data]);
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(30_000)
        .with_topic_data(vec![topic]);
    let header = RequestHeader {
        api: ApiKey::Produce,
        version: 9,
        correlation_id: 1,
        client_id: Some(StrBytes::from_static_str("a client")),
    };
    encode_request(&header, &request.into())
        .unwrap()
        .into_bytes()
}

/// Returns a request for the metadata of this many topics.
fn metadata_frame(topics: usize) -> Bytes {
    let topics = vec![Default::default(); topics];
    let request = MetadataRequest::default().with_topics(Some(topics));
    let header = RequestHeader {
        api: ApiKey::Metadata,
        version: 9,
        correlation_id: 1,
        client_id: None,
    };
    encode_request(&header, &request.into())
        .unwrap()
        .into_bytes()
}

/// A connection of a client to a broker whose log commits nothing, and the other ends of its channels.
struct Open {
    connection: Connection<tokio::io::DuplexStream>,
    _client: tokio::io::DuplexStream,
    _stop: watch::Sender<bool>,
    _dir: tempfile::TempDir,
}

/// Opens a connection to a broker with this objective of produce.
fn open(produce_objective: Option<Objective>) -> Open {
    let dir = tempfile::tempdir().unwrap();
    let mut config = LogConfig::with_pool(dir.path(), ByteSize(16 << 20));
    config.background = Background::Manual;
    let log = Log::open(config).unwrap();
    log.create_stream("t", StreamConfig::default()).unwrap();
    let clock = Arc::clone(log.clock());
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let config = BrokerConfig {
        produce_objective,
        ..BrokerConfig::new(address)
    };
    let objectives = Objectives::new(&config).unwrap();
    let broker = Broker::new(config, objectives, log, clock, Arc::new(SystemRandom)).unwrap();
    let peer = Peer {
        address,
        is_same_user: false,
        advertised: ("localhost".to_owned(), 9092),
        log_in: LogIn::No,
    };
    let (client, server) = tokio::io::duplex(1 << 10);
    let (stop, stopping) = watch::channel(false);
    Open {
        connection: Connection::new(server, peer, None, broker, stopping),
        _client: client,
        _stop: stop,
        _dir: dir,
    }
}

#[tokio::test]
async fn a_request_that_waits_for_the_disk_frees_its_memory_for_the_next_one() {
    let mut open = open(None);
    let connection = &mut open.connection;
    let frame = produce_frame("t", 100_000);
    connection.received = BytesMut::from(&frame[..]);
    assert!(connection.take_requests().await.is_ok());
    let waits = |pending: &Pending| matches!(pending.reply, Reply::Later(_));
    assert_eq!(connection.pending.len(), 1);
    assert!(connection.pending.iter().all(waits));
    assert!(connection.received.is_empty());
    let is_free = connection.received.try_reclaim(frame.len());
    assert!(is_free, "something holds the frame of the request");
}

#[tokio::test]
async fn the_fields_of_a_request_are_counted_until_it_begins() {
    let mut open = open(None);
    let connection = &mut open.connection;
    let broker = Arc::clone(&connection.broker);
    let all = broker.memory().take_decoded(usize::MAX).await;
    connection.received = BytesMut::from(&metadata_frame(1000)[..]);
    {
        let mut taking = pin!(connection.take_requests());
        let waits = timeout(Duration::from_millis(50), &mut taking).await;
        assert!(waits.is_err(), "it does not wait for the memory");
        drop(all);
        assert!(taking.await.is_ok());
    }
    assert_eq!(connection.pending.len(), 1);
    assert!(broker.memory().try_take_decoded(usize::MAX).is_some());
}

/// Other clients would have to wait for the fields.
#[tokio::test]
async fn many_fields_take_no_memory_while_an_earlier_request_waits() {
    let mut open = open(None);
    let connection = &mut open.connection;
    let broker = Arc::clone(&connection.broker);
    connection.received = BytesMut::from(&produce_frame("t", 100)[..]);
    connection.received.put(metadata_frame(5000));
    let mut taking = pin!(connection.take_requests());
    let waits = timeout(Duration::from_millis(50), &mut taking).await;
    assert!(
        waits.is_err(),
        "it does not wait for the answer to the first"
    );
    assert!(broker.memory().try_take_decoded(usize::MAX).is_some());
}

#[tokio::test]
async fn a_client_whose_requests_would_miss_the_objective_is_held() {
    let objective = Objective::p99(Duration::from_millis(5));
    let mut open = open(Some(objective));
    let connection = &mut open.connection;
    // The last answer took long.
    let since = Instant::now();
    std::thread::sleep(Duration::from_millis(50));
    drop(connection.broker.objectives.begin(ApiKey::Produce, since));

    let frames = [(); 3].map(|()| produce_frame("t", 10));
    connection.received = BytesMut::from(&frames.concat()[..]);
    assert!(connection.take_requests().await.is_ok());
    // The first one waits alone; the second one has to wait for its answer, and the third one does not begin.
    let waits: Vec<_> = connection.pending.iter().map(|it| it.wait).collect();
    let [None, Some(wait)] = waits[..] else {
        panic!("{waits:?}");
    };
    assert!(
        wait > Duration::from_millis(50) && wait < HOLD_MAX,
        "{wait:?}"
    );
    assert_eq!(connection.received.len(), frames[2].len());
    let hold = connection.hold.as_ref().expect("the client is held");
    assert!(hold.unpaid.is_none());
    let views = Pool::of_process().objectives();
    let view = views.iter().find(|view| view.name == "broker/produce");
    let figures = view.map(|view| (view.answered, view.held, view.waiting));
    assert_eq!(figures, Some((1, 1, 2)));
}
