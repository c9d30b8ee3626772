//! DescribeProducers.

use bytes::Bytes;
use millstream_base::{ProducerEpoch, ProducerId, Sequence, Timestamp};
use millstream_record::{ChunkBuilder, Compression, Producer};
use millstream_wire::messages::DescribeProducersRequest;
use millstream_wire::messages::describe_producers_request::TopicRequest;
use millstream_wire::{ResponseError, messages};

use crate::support::{Node, ask, produce_request, topic_name};

fn chunk_of(producer: Producer, values: &[&str]) -> Bytes {
    let mut builder = ChunkBuilder::new(Compression::None);
    for value in values {
        let value = Some(value.as_bytes());
        builder.push(Timestamp(1000), None, value, &[]).unwrap();
    }
    Bytes::copy_from_slice(builder.finish(Some(producer)).unwrap())
}

#[test]
fn producers_of_a_partition_are_described_once() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 2);
    let producer = Producer {
        id: ProducerId(7),
        epoch: ProducerEpoch(3),
        sequence: Sequence(0),
    };
    let request = produce_request("t", 0, chunk_of(producer, &["a", "b"]));
    ask!(client, Produce, 9, request);

    let topic = TopicRequest::default()
        .with_name(topic_name("t"))
        .with_partition_indexes(vec![0, 1, 2, 0]);
    let request = DescribeProducersRequest::default().with_topics(vec![topic; 2]);
    let response = ask!(client, DescribeProducers, 0, request);
    assert!(response.topics[1].partitions.is_empty());
    let [first, second, missing] = &response.topics[0].partitions[..] else {
        panic!("{response:?}");
    };
    let state = &first.active_producers[0];
    assert_eq!(state.producer_id, messages::ProducerId(7));
    assert_eq!((state.producer_epoch, state.last_sequence), (3, 1));
    assert_eq!(state.last_timestamp, 1000);
    assert_eq!(state.coordinator_epoch, -1);
    assert_eq!(state.current_txn_start_offset, -1);
    assert!(second.active_producers.is_empty() && second.error_code == 0);
    let error = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(missing.error_code, error);
}
