//! Tests of the memory that waiting requests hold.

use std::net::{Ipv4Addr, SocketAddr};

use bytes::BytesMut;
use millstream_base::{ByteSize, SystemRandom};
use millstream_log::{Background, Log, LogConfig, StreamConfig};
use millstream_record::{ChunkBuilder, Compression};
use millstream_wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use millstream_wire::messages::{ProduceRequest, TopicName};
use millstream_wire::{ApiKey, StrBytes, encode_request};

use super::*;
use crate::config::BrokerConfig;
use crate::listener::LogIn;

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

#[tokio::test]
async fn a_request_that_waits_for_the_disk_frees_its_memory_for_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = LogConfig::with_pool(dir.path(), ByteSize(16 << 20));
    config.background = Background::Manual;
    let log = Log::open(config).unwrap();
    log.create_stream("t", StreamConfig::default()).unwrap();
    let clock = Arc::clone(log.clock());
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let config = BrokerConfig::new(address);
    let broker = Broker::new(config, log, clock, Arc::new(SystemRandom)).unwrap();
    let peer = Peer {
        address,
        is_same_user: false,
        advertised: ("localhost".to_owned(), 9092),
        log_in: LogIn::No,
    };
    let (_client, server) = tokio::io::duplex(1 << 10);
    let (_stop, stopping) = watch::channel(false);
    let mut connection = Connection::new(server, peer, None, broker, stopping);

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
