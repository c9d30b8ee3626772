//! Event time over the partitions of a stream, as sources in the process and sources of a server give it: windows
//! against a plain computation. Partitions are there from the beginning, or are added.

mod late;
mod orders;
mod skew;

use std::fmt::Debug;
use std::iter::{once, repeat_n};
use std::sync::Arc;

use millstream_client::{ConsumerConfig, DeliveryMode};
use millstream_connect::{CheckpointDir, ServerEnd, ServerSource, StreamSource};
use millstream_flow::{FlowSettings, Parts, Source};
use millstream_record::Record;
use tempfile::tempdir;

use orders::{Counting, Setting, counted, plain, produce, resuming};

/// Orders of each partition. Several answers of the server are needed for them.
const ORDERS: u64 = 6_000;

/// Orders of the partition that is there before others are added.
const FIRST: u64 = 1_000;

fn consumer(delivery: DeliveryMode) -> ConsumerConfig {
    ConsumerConfig {
        delivery,
        partition_bytes_max: 8 << 10,
        ..ConsumerConfig::default()
    }
}

fn server_sources(setting: &Setting, instances: usize, end: ServerEnd) -> Vec<ServerSource> {
    let consumer = consumer(DeliveryMode::Push);
    ServerSource::of_stream(&setting.client(), &consumer, "s", instances, end).unwrap()
}

#[test]
fn one_source_of_a_server_over_many_partitions_makes_no_order_late() {
    let setting = Setting::new(4);
    for partition in 0..4 {
        produce(&setting.stream, partition, 0..ORDERS);
    }
    let expected = plain((0..4).map(|_| 0..ORDERS));
    for delivery in [DeliveryMode::Pull, DeliveryMode::Push] {
        for instances in [1, 3, 6] {
            let (client, consumer) = (setting.client(), consumer(delivery));
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
    let expected = plain((0..4).map(|_| 0..ORDERS));
    for instances in [1, 3] {
        let sources = StreamSource::bounded(&setting.stream).split(instances);
        assert_eq!(counted(sources), (expected.clone(), 0));
    }
}

/// Adds partitions to a stream of one while a flow reads it: new lanes, and new streamlets.
fn added_partitions_are_read<S>(make: impl Fn(&Setting) -> Vec<S>)
where
    S: Source<Item: Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
{
    let setting = Setting::new(1);
    let counting = Counting::start(make(&setting), FlowSettings::default());
    produce(&setting.stream, 0, 0..FIRST);
    counting.wait_until_read(FIRST);
    setting.log.grow_stream("s", 1, 2).unwrap();
    setting.log.grow_stream("s", 2, 2).unwrap();
    for partition in [3, 1, 2] {
        produce(&setting.stream, partition, FIRST..ORDERS);
    }
    counting.wait_until_read(FIRST + 3 * (ORDERS - FIRST));
    produce(&setting.stream, 0, FIRST..ORDERS);
    counting.wait_until_read(FIRST + 4 * (ORDERS - FIRST));
    // Windows are done when all partitions are behind them.
    for partition in 0..4 {
        produce(&setting.stream, partition, ORDERS..ORDERS + 1);
    }
    let added = repeat_n(FIRST..ORDERS, 4);
    counting.wait_for(&plain(added.chain(once(0..FIRST))));
    assert_eq!(counting.late_events(), 0);
}

#[test]
fn a_source_in_the_process_reads_partitions_that_are_added() {
    added_partitions_are_read(|setting| vec![StreamSource::new(&setting.stream)]);
}

#[test]
fn a_source_of_a_server_reads_partitions_that_are_added() {
    added_partitions_are_read(|setting| server_sources(setting, 1, ServerEnd::Never));
}

#[test]
fn sources_of_a_server_share_the_partitions_that_are_added() {
    // Two of them begin without any.
    added_partitions_are_read(|setting| server_sources(setting, 3, ServerEnd::Never));
}

#[test]
fn sources_of_a_shared_application_read_partitions_that_are_added() {
    added_partitions_are_read(|setting| {
        vec![StreamSource::of_application(&setting.log, "s", "app").unwrap()]
    });
}

/// Adds partitions, and fills them, while no flow reads the stream.
fn a_flow_resumes_with_added_partitions<S>(make: impl Fn(&Setting, ServerEnd) -> Vec<S>)
where
    S: Source<Item: Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
{
    let setting = Setting::new(1);
    let folder = tempdir().unwrap();
    let place = Arc::new(CheckpointDir::open(folder.path()).unwrap());
    produce(&setting.stream, 0, 0..FIRST);
    let counting = Counting::start(make(&setting, ServerEnd::Never), resuming(&place, false));
    // The last window is open.
    let before = plain(once(0..FIRST - 100));
    counting.wait_for(&before);
    counting.wait_for_a_checkpoint();
    drop(counting);

    setting.log.grow_stream("s", 2, 2).unwrap();
    for partition in [1, 2, 3, 0] {
        produce(&setting.stream, partition, FIRST..ORDERS);
    }
    let counting = Counting::start(make(&setting, ServerEnd::Now), resuming(&place, true));
    counting.running.join().unwrap();
    let mut counted = counting.counts.get();
    counted.extend(before);
    let added = repeat_n(FIRST..ORDERS, 4);
    assert_eq!(counted, plain(added.chain(once(0..FIRST))));
    assert_eq!(counting.late_events(), 0);
}

#[test]
fn a_flow_over_a_stream_resumes_with_partitions_that_were_added_meanwhile() {
    a_flow_resumes_with_added_partitions(|setting, end| {
        let source = StreamSource::new(&setting.stream);
        if end == ServerEnd::Now {
            source.ending().end_at_durable_head();
        }
        vec![source]
    });
}

#[test]
fn a_flow_over_a_servers_stream_resumes_with_partitions_that_were_added_meanwhile() {
    for instances in [1, 3] {
        a_flow_resumes_with_added_partitions(|setting, end| {
            server_sources(setting, instances, end)
        });
    }
}

#[test]
fn bounded_sources_do_not_read_partitions_that_are_added() {
    let setting = Setting::new(1);
    produce(&setting.stream, 0, 0..FIRST);
    let stored = StreamSource::bounded(&setting.stream);
    let served = server_sources(&setting, 2, ServerEnd::Now);
    setting.log.grow_stream("s", 2, 1).unwrap();
    produce(&setting.stream, 1, 0..FIRST);
    let expected = (plain(once(0..FIRST)), 0);
    assert_eq!(counted(vec![stored]), expected);
    assert_eq!(counted(served), expected);
}

/// The windows of partitions of which one is filled after the sources were made, and before the flow begins.
fn a_partition_that_is_filled_before_the_flow_begins_is_waited_for<S>(
    make: impl Fn(&Setting) -> Vec<S>,
) where
    S: Source<Item: Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
{
    let setting = Setting::new(2);
    produce(&setting.stream, 0, 0..ORDERS);
    let sources = make(&setting);
    produce(&setting.stream, 1, 0..ORDERS);
    let counting = Counting::start(sources, FlowSettings::default());
    counting.wait_until_read(2 * ORDERS);
    for partition in 0..2 {
        produce(&setting.stream, partition, ORDERS..ORDERS + 1);
    }
    counting.wait_for(&plain(repeat_n(0..ORDERS, 2)));
    assert_eq!(counting.late_events(), 0);
}

#[test]
fn a_source_in_the_process_waits_for_a_partition_that_is_filled_before_the_flow_begins() {
    a_partition_that_is_filled_before_the_flow_begins_is_waited_for(|setting| {
        vec![StreamSource::new(&setting.stream)]
    });
}

#[test]
fn a_source_of_a_server_waits_for_a_partition_that_is_filled_before_the_flow_begins() {
    for delivery in [DeliveryMode::Pull, DeliveryMode::Push] {
        a_partition_that_is_filled_before_the_flow_begins_is_waited_for(|setting| {
            let (client, consumer) = (setting.client(), consumer(delivery));
            ServerSource::of_stream(&client, &consumer, "s", 1, ServerEnd::Never).unwrap()
        });
    }
}

/// Nothing is known to come of it.
fn a_partition_that_is_empty_holds_no_window<S>(make: impl Fn(&Setting) -> Vec<S>)
where
    S: Source<Item: Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
{
    let setting = Setting::new(2);
    produce(&setting.stream, 0, 0..FIRST);
    let counting = Counting::start(make(&setting), FlowSettings::default());
    counting.wait_until_read(FIRST);
    setting.log.grow_stream("s", 2, 2).unwrap();
    produce(&setting.stream, 0, FIRST..FIRST + 1);
    counting.wait_for(&plain(once(0..FIRST)));
}

#[test]
fn an_empty_partition_of_a_source_in_the_process_delays_no_window() {
    a_partition_that_is_empty_holds_no_window(|setting| vec![StreamSource::new(&setting.stream)]);
}

#[test]
fn an_empty_partition_of_a_source_of_a_server_delays_no_window() {
    a_partition_that_is_empty_holds_no_window(|setting| {
        server_sources(setting, 1, ServerEnd::Never)
    });
}
