//! Subscribers on threads of their own.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::Offset;
use millstream_client::{
    Client, ClientError, Decompressor, LocalConfig, LocalSource, LocalSubscriber, Pushed,
    ResponseError, Start,
};

use crate::consuming::place;
use crate::support::{Node, TIME_MAX, produce};

fn values(pushed: &Pushed) -> Vec<String> {
    let mut values = Vec::new();
    let read = pushed.each(&mut Decompressor::default(), |record| {
        let value = record.value.unwrap_or_default().to_vec();
        values.push(String::from_utf8(value).unwrap());
        ControlFlow::Continue(())
    });
    read.unwrap();
    values
}

async fn subscribe(client: &Client, sources: &[LocalSource]) -> Vec<LocalSubscriber> {
    let config = LocalConfig::default();
    client.subscribe_local(&config, sources).await.unwrap()
}

fn of_groups(consumer: usize) -> LocalSource {
    LocalSource::SharedGroup {
        stream: "t".to_owned(),
        shared_group: "work".to_owned(),
        consumer: consumer.to_string(),
    }
}

fn numbers(from: usize, to: usize) -> impl Iterator<Item = String> {
    (from..to).map(|number| number.to_string())
}

/// Takes records until none has come for a while.
fn take_all(subscriber: &mut LocalSubscriber) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(pushed) = subscriber.take(Duration::from_millis(300)).unwrap() {
        all.extend(values(&pushed));
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_thread_may_take_from_its_own_source() {
    let node = Node::local();
    for name in ["t", "u"] {
        node.create(name, 1);
    }
    let client = node.client();
    produce(&client, "t", numbers(0, 10)).await;
    let sources = [("t", Start::At(Offset(5))), ("u", Start::Latest)];
    let sources =
        sources.map(|(name, start)| LocalSource::Partitions(vec![(place(name, 0), start)]));
    let subscribers = subscribe(&client, &sources).await;
    let threads = subscribers.into_iter().map(|mut subscriber| {
        thread::spawn(move || {
            let pushed = subscriber.take(TIME_MAX).unwrap().unwrap();
            let begun = pushed.from();
            (pushed.place().topic.to_string(), begun, values(&pushed))
        })
    });
    let threads: Vec<_> = threads.collect();
    produce(&client, "u", ["x".to_owned()]).await;
    let read: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    let expected = ("t".to_owned(), Offset(5), numbers(5, 10).collect());
    assert_eq!(read[0], expected);
    assert_eq!(read[1], ("u".to_owned(), Offset(0), vec!["x".to_owned()]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_ends_after_its_timeout() {
    let node = Node::local();
    node.create("t", 1);
    let source = LocalSource::Partitions(vec![(place("t", 0), Start::Earliest)]);
    let mut subscribers = subscribe(&node.client(), &[source]).await;
    let began = Instant::now();
    let taken = subscribers[0].take(Duration::from_millis(20)).unwrap();
    assert!(taken.is_none() && began.elapsed() >= Duration::from_millis(20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_shared_and_committed_records_do_not_come_again() {
    let node = Node::local();
    node.create("t", 4);
    let client = node.client();
    produce(&client, "t", numbers(0, 100)).await;
    let sources = [of_groups(0), of_groups(1), of_groups(2)];
    let subscribers = subscribe(&client, &sources).await;
    let runtime = tokio::runtime::Handle::current();
    let threads = subscribers.into_iter().map(|mut subscriber| {
        let runtime = runtime.clone();
        thread::spawn(move || {
            let mut read = Vec::new();
            while let Some(pushed) = subscriber.take(Duration::from_millis(300)).unwrap() {
                read.extend(values(&pushed));
                runtime.block_on(subscriber.commit(&pushed)).unwrap();
            }
            (subscriber, read)
        })
    });
    let threads: Vec<_> = threads.collect();
    let done: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    let read: Vec<&String> = done.iter().flat_map(|(_, read)| read).collect();
    assert_eq!(read.len(), 100);
    assert_eq!(read.iter().collect::<BTreeSet<_>>().len(), 100);
    drop(done);
    produce(&client, "t", ["new".to_owned()]).await;
    let mut subscribers = subscribe(&client, &[of_groups(3)]).await;
    assert_eq!(take_all(&mut subscribers[0]), ["new"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_skips_records_that_do_not_match() {
    let node = Node::local();
    node.create("t", 1);
    let client = node.client();
    produce(&client, "t", numbers(0, 30)).await;
    let config = LocalConfig {
        filter: Some(r#"value starts with "2""#.parse().unwrap()),
        ..LocalConfig::default()
    };
    let source = LocalSource::Partitions(vec![(place("t", 0), Start::Earliest)]);
    let subscribers = client.subscribe_local(&config, &[source]).await;
    let read = take_all(&mut subscribers.unwrap()[0]);
    assert_eq!(read.len(), 11);
    assert!(read.iter().all(|value| value.starts_with('2')));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_streams_and_offsets_and_lost_servers_are_reported() {
    let node = Node::local();
    node.create("t", 1);
    let client = node.client();
    let missing = LocalSource::Partitions(vec![(place("u", 0), Start::At(Offset(0)))]);
    let refused = client
        .subscribe_local(&LocalConfig::default(), &[missing])
        .await;
    assert_eq!(
        refused.unwrap_err().response_error(),
        Some(ResponseError::UnknownTopicOrPartition)
    );
    let beyond = LocalSource::Partitions(vec![(place("t", 0), Start::At(Offset(9)))]);
    let mut subscribers = subscribe(&client, &[beyond]).await;
    let error = subscribers[0].take(TIME_MAX).unwrap_err();
    let expected = "partition 0 of t: the offset is not there; the earliest is 0";
    assert_eq!(error.to_string(), expected);
    // The subscriber reports the end, and the records held are gone.
    let node = node.restart().await;
    let error = subscribers[0].take(TIME_MAX).unwrap_err();
    assert!(matches!(error, ClientError::Disconnected { .. }), "{error}");
    drop(node);
}
