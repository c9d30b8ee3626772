//! Members of groups join, share partitions, crash and leave.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use millstream_base::Offset;
use millstream_client::{Client, Consumer, ConsumerConfig, TopicPartition};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::consuming::{place, values, values_there};
use crate::push::pushed;
use crate::support::{Node, TIME_MAX, produce, wait_until};

/// The number of times that the members together read each value.
type Counts = Arc<Mutex<HashMap<String, u32>>>;

/// A member at work.
struct Member {
    task: JoinHandle<Consumer>,
    stop: mpsc::Sender<()>,
    positions: Arc<Mutex<BTreeMap<TopicPartition, Offset>>>,
}

impl Member {
    fn join(client: &Client, counts: &Counts) -> Member {
        Member::with(client, counts, ConsumerConfig::default())
    }

    pub fn with(client: &Client, counts: &Counts, config: ConsumerConfig) -> Member {
        let config = ConsumerConfig {
            auto_commit: Some(Duration::from_millis(50)),
            ..config
        };
        let mut consumer = Consumer::in_group(client, config, "g", &["t"]).unwrap();
        let (stop, mut stopped) = mpsc::channel(1);
        let positions = Arc::new(Mutex::new(BTreeMap::new()));
        let (seen, counts) = (Arc::clone(&positions), Arc::clone(counts));
        let task = tokio::spawn(async move {
            loop {
                tokio::select! {
                    fetched = timeout(Duration::from_millis(20), consumer.next()) => {
                        if let Ok(fetched) = fetched {
                            for value in values_there(&fetched.unwrap()) {
                                *counts.lock().entry(value).or_default() += 1;
                            }
                        }
                    }
                    _ = stopped.recv() => return consumer,
                }
                *seen.lock() = consumer.positions();
            }
        });
        Member {
            task,
            stop,
            positions,
        }
    }

    fn partitions(&self) -> usize {
        self.positions.lock().len()
    }

    async fn leave(self) {
        self.stop.send(()).await.unwrap();
        self.task.await.unwrap().close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_share_the_partitions_and_no_record_is_lost_or_read_twice() {
    members_share(&Node::start(), ConsumerConfig::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_share_memory_share_the_partitions_too() {
    members_share(&Node::local(), pushed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_are_pushed_to_share_the_partitions_too() {
    members_share(&Node::start(), pushed()).await;
}

async fn members_share(node: &Node, config: ConsumerConfig) {
    node.create("t", 4);
    let client = node.client();
    let counts = Counts::default();
    let first = Member::with(&client, &counts, config.clone());
    wait_until("one has all", || first.partitions() == 4).await;
    produce(&client, "t", (0..100).map(|number| number.to_string())).await;
    wait_until("it reads", || counts.lock().len() == 100).await;

    let second = Member::with(&client, &counts, config);
    wait_until("both have half", || {
        first.partitions() == 2 && second.partitions() == 2
    })
    .await;
    // Keys spread the records over all partitions.
    let value = "x".repeat(1000);
    produce(
        &client,
        "t",
        (0..400).map(|number| format!("{number} {value}")),
    )
    .await;
    wait_until("both read", || counts.lock().len() == 500).await;

    first.leave().await;
    wait_until("the other takes over", || second.partitions() == 4).await;
    produce(&client, "t", (1000..1100).map(|number| number.to_string())).await;
    wait_until("it reads on", || counts.lock().len() == 600).await;
    second.leave().await;
    assert!(counts.lock().values().all(|count| *count == 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_resumes_at_its_committed_offset() {
    let node = Node::start();
    node.create("t", 2);
    let client = node.client();
    let counts = Counts::default();
    for round in 1..=3 {
        produce(
            &client,
            "t",
            (0..50).map(|number| format!("{round}-{number}")),
        )
        .await;
        let member = Member::join(&client, &counts);
        wait_until("it reads", || counts.lock().len() == 50 * round).await;
        member.leave().await;
    }
    assert!(counts.lock().values().all(|count| *count == 1));
}

/// Taking over partitions takes several answers, and each may take longer than a call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_takes_over_its_partitions_when_every_call_is_cancelled_early() {
    let node = Node::start();
    node.create("t", 2);
    let client = node.client();
    produce(&client, "t", ["value".to_owned()]).await;
    let mut member = Consumer::in_group(&client, ConsumerConfig::default(), "g", &["t"]).unwrap();
    let reads = async {
        loop {
            let call = timeout(Duration::from_micros(100), member.next());
            if let Ok(fetched) = call.await {
                return values(&fetched.unwrap());
            }
        }
    };
    let read = timeout(TIME_MAX, reads).await;
    assert_eq!(read.expect("it gets there"), ["value"]);
}

#[tokio::test]
async fn uncommitted_records_come_again() {
    let node = Node::start();
    node.create("t", 1);
    let client = node.client();
    produce(&client, "t", (0..10).map(|number| number.to_string())).await;
    let config = ConsumerConfig {
        auto_commit: None,
        ..ConsumerConfig::default()
    };
    let join = || Consumer::in_group(&client, config.clone(), "g", &["t"]).unwrap();
    let mut crashes = join();
    let fetched = timeout(TIME_MAX, crashes.next()).await.unwrap().unwrap();
    assert_eq!(values(&fetched).len(), 10);
    crashes.close().await.unwrap();
    let mut again = join();
    let fetched = timeout(TIME_MAX, again.next()).await.unwrap().unwrap();
    assert_eq!(values(&fetched).len(), 10);
    again.mark(fetched.place(), Offset(4));
    again.commit().await.unwrap();
    again.close().await.unwrap();
    let mut last = join();
    let fetched = timeout(TIME_MAX, last.next()).await.unwrap().unwrap();
    assert_eq!(values(&fetched), ["4", "5", "6", "7", "8", "9"]);
    last.commit().await.unwrap();
    let committed = client.all_committed("g").await.unwrap();
    assert_eq!(committed.get(&place("t", 0)), Some(&Offset(10)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_a_hung_application_leaves_and_rejoins_when_it_resumes() {
    let node = Node::start();
    node.create("t", 2);
    let client = node.client();
    produce(&client, "t", ["before".to_owned()]).await;
    let config = ConsumerConfig {
        poll_interval_max: Duration::from_millis(300),
        ..ConsumerConfig::default()
    };
    let mut hangs = Consumer::in_group(&client, config, "g", &["t"]).unwrap();
    let fetched = timeout(TIME_MAX, hangs.next()).await.unwrap().unwrap();
    assert_eq!(values(&fetched), ["before"]);
    let counts = Counts::default();
    let works = Member::join(&client, &counts);
    wait_until("the other has all", || works.partitions() == 2).await;
    produce(&client, "t", ["meanwhile".to_owned()]).await;
    wait_until("it reads", || counts.lock().contains_key("meanwhile")).await;
    works.leave().await;
    // While it waits for records, it polls, however long that takes.
    let goes_on = tokio::spawn(async move { hangs.next().await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let members = client.group("g").await.unwrap().members;
    assert_eq!(members.len(), 1, "{members:?}");
    produce(&client, "t", ["after".to_owned()]).await;
    let fetched = timeout(TIME_MAX, goes_on).await.unwrap().unwrap().unwrap();
    assert!(!values(&fetched).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_keeps_members_and_offsets() {
    a_server_restarts(Node::start(), ConsumerConfig::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_keeps_the_members_that_it_pushes_to() {
    a_server_restarts(Node::start(), pushed()).await;
    a_server_restarts(Node::local(), pushed()).await;
}

async fn a_server_restarts(node: Node, config: ConsumerConfig) {
    node.create("t", 2);
    let client = node.client();
    let counts = Counts::default();
    let member = Member::with(&client, &counts, config);
    produce(&client, "t", (0..50).map(|number| format!("a{number}"))).await;
    wait_until("it reads", || counts.lock().len() == 50).await;
    let node = node.restart().await;
    produce(&client, "t", (0..50).map(|number| format!("b{number}"))).await;
    wait_until("it reads on", || counts.lock().len() == 100).await;
    member.leave().await;
    drop(node);
}
