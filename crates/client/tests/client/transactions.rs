//! Records of transactions, as consumers see them.

use std::time::Duration;

use bytes::Bytes;
use millstream_base::{ProducerEpoch, ProducerId, Sequence, Timestamp};
use millstream_client::{
    Client, Compression, Consumer, ConsumerConfig, Isolation, Start, TopicPartition,
};
use millstream_record::{ChunkBuilder, Producer};
use millstream_wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use millstream_wire::messages::{
    EndTxnRequest, InitProducerIdRequest, ProduceRequest, TransactionalId,
};
use millstream_wire::{ResponseError, StrBytes, messages};
use tokio::time::timeout;

use crate::consuming::{place, values};
use crate::support::{Node, TIME_MAX, produce};

/// A producer of transactions, one request at a time.
pub struct Transactions<'a> {
    client: &'a Client,
    id: TransactionalId,
    producer: Producer,
}

impl<'a> Transactions<'a> {
    pub async fn begin(client: &'a Client) -> Transactions<'a> {
        let id = TransactionalId(StrBytes::from_static_str("tx"));
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(id.clone()))
            .with_transaction_timeout_ms(60_000);
        let answer = client.ask(request).await.unwrap();
        assert_eq!(answer.error_code, 0);
        let producer = Producer {
            id: ProducerId(answer.producer_id.0),
            epoch: ProducerEpoch(answer.producer_epoch),
            sequence: Sequence(0),
        };
        Transactions {
            client,
            id,
            producer,
        }
    }

    pub async fn send(&mut self, value: &str) {
        let mut builder = ChunkBuilder::new(Compression::Lz4);
        builder.set_transactional(true);
        let pushed = builder.push(Timestamp(1), None, Some(value.as_bytes()), &[]);
        pushed.unwrap();
        let chunk = builder.finish(Some(self.producer)).unwrap();
        self.producer.sequence = self.producer.sequence.plus(1);
        let data =
            PartitionProduceData::default().with_records(Some(Bytes::copy_from_slice(chunk)));
        let topic = TopicProduceData::default()
            .with_topic_id(self.client.topic("t").await.unwrap().id)
            .with_partition_data(vec![data]);
        let request = ProduceRequest::default()
            .with_transactional_id(Some(self.id.clone()))
            .with_acks(-1)
            .with_timeout_ms(30_000)
            .with_topic_data(vec![topic]);
        loop {
            let answer = self.client.ask(request.clone()).await.unwrap();
            let stored = &answer.responses[0].partition_responses[0];
            // The previous transaction has not ended in every partition yet.
            if stored.error_code != ResponseError::NotEnoughReplicas.code() {
                assert_eq!(stored.error_code, 0, "{stored:?}");
                return;
            }
        }
    }

    pub async fn end(&mut self, committed: bool) {
        let request = EndTxnRequest::default()
            .with_transactional_id(self.id.clone())
            .with_producer_id(messages::ProducerId(self.producer.id.0))
            .with_producer_epoch(self.producer.epoch.0)
            .with_committed(committed);
        let answer = self.client.ask(request).await.unwrap();
        assert_eq!(answer.error_code, 0);
        self.producer = Producer {
            id: ProducerId(answer.producer_id.0),
            epoch: ProducerEpoch(answer.producer_epoch),
            sequence: Sequence(0),
        };
    }
}

/// Returns the values that a consumer sees until no more arrive.
async fn seen(client: &Client, isolation: Isolation, count: usize) -> Vec<String> {
    let config = ConsumerConfig {
        isolation,
        ..ConsumerConfig::default()
    };
    let places: [(TopicPartition, Start); 1] = [(place("t", 0), Start::Earliest)];
    let mut consumer = Consumer::assigned(client, config, &places).await.unwrap();
    let mut all = Vec::new();
    while all.len() < count {
        let fetched = timeout(TIME_MAX, consumer.next())
            .await
            .expect("records come");
        all.extend(values(&fetched.unwrap()));
    }
    while let Ok(fetched) = timeout(Duration::from_millis(100), consumer.next()).await {
        all.extend(values(&fetched.unwrap()));
    }
    all
}

#[tokio::test]
async fn consumers_get_aborted_and_open_records_only_on_request() {
    let node = Node::start();
    node.create("t", 1);
    let client = node.client();
    let mut transactions = Transactions::begin(&client).await;
    for (number, committed) in [true, false, true, false].into_iter().enumerate() {
        transactions.send(&format!("{number}a")).await;
        produce(&client, "t", [format!("{number} beside")]).await;
        transactions.send(&format!("{number}b")).await;
        transactions.end(committed).await;
    }
    transactions.send("open").await;
    let committed = seen(&client, Isolation::Committed, 8).await;
    let expected = "0a,0 beside,0b,1 beside,2a,2 beside,2b,3 beside";
    assert_eq!(committed.join(","), expected);
    let all = seen(&client, Isolation::Uncommitted, 13).await;
    assert_eq!(all.len(), 13);
    transactions.end(true).await;
    let committed = seen(&client, Isolation::Committed, 9).await;
    assert_eq!(committed.last().map(String::as_str), Some("open"));
}
