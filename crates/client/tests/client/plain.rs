//! Brokers that know no native requests.

use millstream_client::native::{Durability, FurtherSetting, StreamSettings};
use millstream_client::{
    Client, ClientConfig, ClientError, Producer, ProducerConfig, ProducerRecord,
};

use crate::support::Node;

#[tokio::test]
async fn streams_are_created_as_topics_without_native_requests() {
    let node = Node::start();
    let mut config = ClientConfig::new(node.address().to_string());
    config.native = false;
    let client = Client::new(config);
    let settings = StreamSettings {
        streamlets: 2,
        lanes: 1,
        retention_ms: Some(3_600_000),
        further: vec![FurtherSetting {
            name: "cleanup.policy".into(),
            value: "compact".into(),
        }],
        ..StreamSettings::default()
    };
    client.create_stream("t", settings.clone()).await.unwrap();
    let twice = client.create_stream("t", settings).await.unwrap_err();
    assert!(matches!(twice, ClientError::Refused { .. }), "{twice}");
    let producer = Producer::new(&client, ProducerConfig::default());
    for number in 0..10 {
        let key = number.to_string();
        let record = ProducerRecord {
            topic: "t",
            key: Some(key.as_bytes()),
            ..ProducerRecord::default()
        };
        producer.send(record).await.unwrap();
    }
    producer.flush().await.unwrap();
    let stream = client.stream("t").await.unwrap();
    let stored = stream
        .lanes
        .iter()
        .map(|lane| lane.durable.0 - lane.earliest.0);
    assert_eq!((stream.lanes.len(), stored.sum()), (2, 10_u64));
    let native = node.client().stream("t").await.unwrap();
    assert_eq!(native.settings.retention_ms, Some(3_600_000));
    let policy = client.settings("t", &["cleanup.policy"]).await.unwrap();
    assert_eq!(policy["cleanup.policy"], "compact");
    assert_eq!(stream.settings.retention_ms, Some(3_600_000));
    assert_eq!(stream.settings.retention_bytes, None);
    let hasty = StreamSettings {
        durability: Durability::Async,
        ..StreamSettings::default()
    };
    let refused = client.create_stream("u", hasty).await.unwrap_err();
    assert!(refused.to_string().contains("settings of Millstream"));
    let keyed = client.grow_stream("t", 3, 1).await.unwrap_err();
    assert!(
        keyed
            .to_string()
            .contains("cleanup.policy contains compact")
    );
    let delete = [("cleanup.policy", Some("delete".to_owned()))];
    client.alter_settings("t", &delete).await.unwrap();
    client.grow_stream("t", 3, 1).await.unwrap();
    let streams = client.streams("").await.unwrap();
    assert_eq!((streams.len(), streams[0].streamlets), (1, 3));
    assert!(client.streams("u").await.unwrap().is_empty());
    client.delete_stream("t").await.unwrap();
    assert!(client.stream("t").await.is_err());
    let object = client.objects("").await.unwrap_err();
    assert!(
        matches!(object, ClientError::Unsupported { .. }),
        "{object}"
    );
}
