//! Event time over the partitions of a stream, as sources in the process and sources of a server give it: windows
//! against a plain computation.

mod orders;

use millstream_client::{ConsumerConfig, DeliveryMode};
use millstream_connect::{ServerEnd, ServerSource, StreamSource};

use orders::{Setting, counted, plain, produce};

/// Orders of each partition. Several answers of the server are needed for them.
const ORDERS: u64 = 6_000;

#[test]
fn one_source_of_a_server_over_many_partitions_makes_no_order_late() {
    let setting = Setting::new(4);
    for partition in 0..4 {
        produce(&setting.stream, partition, 0..ORDERS);
    }
    let expected = plain((0..4).map(|partition| (partition, 0..ORDERS)));
    for delivery in [DeliveryMode::Pull, DeliveryMode::Push] {
        let consumer = ConsumerConfig {
            delivery,
            partition_bytes_max: 8 << 10,
            ..ConsumerConfig::default()
        };
        for instances in [1, 3] {
            let client = setting.client();
            let sources =
                ServerSource::of_stream(&client, &consumer, "s", instances, ServerEnd::Now);
            assert_eq!(counted(sources.unwrap()), (expected.clone(), 0));
        }
    }
}

#[test]
fn one_source_in_the_process_over_many_partitions_makes_no_order_late() {
    let setting = Setting::new(4);
    for partition in 0..4 {
        produce(&setting.stream, partition, 0..ORDERS);
    }
    let expected = plain((0..4).map(|partition| (partition, 0..ORDERS)));
    for instances in [1, 3] {
        let sources = StreamSource::bounded(&setting.stream).split(instances);
        assert_eq!(counted(sources), (expected.clone(), 0));
    }
}
