//! The jobs: their input, their programs, and the outcome of an undisturbed run.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use millstream::connect::StreamProducer;
use millstream::flow::FlowSettings;
use millstream::log::{CLEANUP_POLICY, COMPACT, Log, LogConfig, SECONDARY, StreamConfig};
use millstream::record::Header;
use millstream::{Error, Flow, Node, Timestamp, out_of_order, secs, session, sliding, tumbling};
use millstream_base::key::encode_key;
use millstream_base::{ByteSize, ProducerId, StreamletIndex, partition_of_key};
use serde::{Deserialize, Serialize};

use crate::outcome::Outcome;
use crate::process::{FlowProcess, Plan, Ranks};

/// The items of each topic.
const ITEMS: u64 = 12_000;
/// The partitions of the input. A checkpoint waits for the records at hand, of one partition: so each has few.
const PARTITIONS: u32 = 64;

/// The partitions of results.
const RESULT_PARTITIONS: u32 = 4;

/// One in this many lines of the words cannot be read.
const BROKEN_ONE_OF: u64 = 97;

/// The orders and the users of the join of keyed topics.
const ORDERS: u64 = 10_000;
const USERS: u64 = 300;

/// The partitions of these topics. A changed user is looked up in the index of each.
const KEYED_PARTITIONS: u32 = 16;

/// One in this many changes of users deletes the user.
const DELETED_ONE_OF: u64 = 13;

/// A paced run of all items takes at least this long.
const PACED: Duration = Duration::from_millis(2_000);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Job {
    /// Views of ads, joined with their campaigns and counted in tumbling and sliding windows.
    Ads,
    /// Counts of words in state by key, with each count on its way; lines that cannot be read become dead letters.
    Words,
    /// Orders joined with their payments.
    Join,
    /// The sessions of users.
    Sessions,
    /// Keyed topics of orders and of users, joined by a secondary key into a third one.
    KeyJoin,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Item {
    id: u64,
    key: u64,
    price: u64,
    time: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Line {
    words: Vec<String>,
}

impl Job {
    pub fn name(self) -> &'static str {
        match self {
            Job::Ads => "ads",
            Job::Words => "words",
            Job::Join => "join",
            Job::Sessions => "sessions",
            Job::KeyJoin => "key_join",
        }
    }

    fn inputs(self) -> &'static [&'static str] {
        match self {
            Job::Join => &["orders", "payments"],
            Job::KeyJoin => &["orders", "users"],
            _ => &["items"],
        }
    }

    /// The topics that the flow writes.
    pub fn results(self) -> &'static [&'static str] {
        match self {
            Job::Ads => &["counts", "best"],
            Job::Words => &["running", "words.dead_letters"],
            Job::Join => &["paid"],
            Job::Sessions => &["visits"],
            Job::KeyJoin => &[],
        }
    }

    /// The keyed topics that the flow writes: each key counts with its newest value.
    pub fn tables(self) -> &'static [&'static str] {
        match self {
            Job::KeyJoin => &["rows"],
            _ => &[],
        }
    }

    /// The elements of state by key, each a topic of its own.
    pub fn elements(self) -> &'static [&'static str] {
        match self {
            Job::Words => &["running", "totals"],
            _ => &[],
        }
    }

    fn partitions(self) -> u32 {
        match self {
            Job::KeyJoin => KEYED_PARTITIONS,
            _ => PARTITIONS,
        }
    }

    /// The items that a run reads from beginning to end. Of the join of keyed topics these are the rows that it gives at least: of
    /// each order one for its own change, and one for that of its user.
    pub fn items(self) -> u64 {
        match self {
            Job::KeyJoin => 2 * ORDERS,
            _ => ITEMS * self.inputs().len() as u64,
        }
    }

    /// Returns the key of a record and the secondary key, in topics that have them.
    fn keys(self, topic: &str, number: u64) -> Option<[Option<Vec<u8>>; 2]> {
        let bytes = |key: u64| {
            let mut bytes = Vec::new();
            encode_key(&key, &mut bytes).unwrap();
            Some(bytes)
        };
        match (self, topic) {
            // Some orders come twice, the second time with another user.
            (Job::KeyJoin, "orders") => Some([bytes(number % ORDERS), bytes(number * 7 % USERS)]),
            (Job::KeyJoin, _) => Some([bytes(number % USERS), None]),
            _ => None,
        }
    }

    /// Returns the value of a record; an empty one deletes its key.
    fn value(self, topic: &str, number: u64) -> Vec<u8> {
        let time = Timestamp((number * 10).cast_signed());
        let item = |key, time| Item {
            id: number,
            key,
            price: number % 7,
            time,
        };
        let item = match (self, topic) {
            (Job::Words, _) if number.is_multiple_of(BROKEN_ONE_OF) => return b"no JSON".to_vec(),
            (Job::Words, _) => {
                let words = (1..4).map(|word| format!("word {}", number * word % 131));
                let words = words.collect();
                return serde_json::to_vec(&Line { words }).unwrap();
            }
            (Job::Ads, _) => item(number * 31 % 100, time),
            (Job::KeyJoin, "users") if number.is_multiple_of(DELETED_ONE_OF) => return Vec::new(),
            (Job::Join, "payments") => item(number, Timestamp(time.0 + 300)),
            (Job::Join | Job::KeyJoin, _) => item(number, time),
            // Bursts of a second with pauses of three.
            (Job::Sessions, _) => item(number / 100 % 4 * 10 + number % 10, time),
        };
        serde_json::to_vec(&item).unwrap()
    }

    /// Stores the input in a new data directory.
    pub fn store_input(self, dir: &Path) {
        let log = Log::open(LogConfig::with_pool(dir, ByteSize(64 << 20))).unwrap();
        let partitions = self.partitions();
        for topic in self.inputs() {
            let settings = [(CLEANUP_POLICY, COMPACT), (SECONDARY, "user")];
            let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let config = StreamConfig {
                streamlets: partitions,
                settings: match self.keys(topic, 0) {
                    Some(_) => settings.into(),
                    None => BTreeMap::new(),
                },
                ..StreamConfig::default()
            };
            let stream = log.create_stream(topic, config).unwrap();
            let producer = |partition| {
                let partition = StreamletIndex(partition);
                StreamProducer::for_streamlet(&stream, partition, ProducerId::NONE).unwrap()
            };
            let mut producers: Vec<_> = (0..partitions).map(producer).collect();
            for number in 0..ITEMS {
                let [key, secondary] = self.keys(topic, number).unwrap_or_default();
                let key = key.as_deref();
                let partition = key.map(|key| partition_of_key(key, partitions as usize));
                let partition = partition.unwrap_or((number % u64::from(partitions)) as usize);
                let header = secondary.as_deref().map(|secondary| Header {
                    name: b"k.user",
                    value: Some(secondary),
                });
                let value = self.value(topic, number);
                let value = Some(&value[..]).filter(|value| !value.is_empty());
                producers[partition]
                    .push(Timestamp(1), key, value, header.as_slice())
                    .unwrap();
            }
            producers.iter_mut().for_each(|it| it.flush().unwrap());
        }
        log.close().unwrap();
    }

    /// Builds the program, as the author of an application does: all settings but the ranks are the default ones, unless a test
    /// sets the interval of checkpoints.
    pub fn program(
        self,
        node: &Node,
        settings: FlowSettings,
        interval: Option<Duration>,
        pace: &Arc<Pace>,
    ) -> Result<Flow, Error> {
        let mut flow = Flow::with_settings(self.name(), settings).until_now();
        if let Some(interval) = interval {
            flow = flow.checkpoint_interval(interval);
        }
        let items = |topic: &str| {
            let pace = Arc::clone(pace);
            let items = flow
                .read(node.topic(topic).json::<Item>())
                .event_time(|item| item.time, out_of_order(secs(1)));
            items.map(move |item| {
                pace.step();
                item.clone()
            })
        };
        match self {
            Job::Ads => {
                let campaigns = |item: &Item| Item {
                    key: item.key % 10,
                    ..item.clone()
                };
                let views = items("items").filter(|item| !item.id.is_multiple_of(3));
                let [counted, summed] = views.map(campaigns).fork();
                counted
                    .key_by(|view| view.key)
                    .window(tumbling(secs(1)))
                    .count()
                    .serve_as("counts")
                    .write(node.topic("counts").partitions(RESULT_PARTITIONS).json());
                summed
                    .key_by(|view| view.key)
                    .window(sliding(secs(4), secs(1)))
                    .sum(|view| view.price)
                    .serve_as("sums")
                    .top("best", 3, |sum| (sum.value, sum.key))
                    .write(node.topic("best").json());
            }
            Job::Words => {
                let pace = Arc::clone(pace);
                let lines = flow.read(node.topic("items").json::<Line>());
                let words = lines.flat_map(move |line| {
                    pace.step();
                    line.words.clone()
                });
                let [running, totals] = words.fork();
                running
                    .key_by(String::clone)
                    .state::<u64>("running")
                    .update(|word, count, _, emit| {
                        let count = count.get_or_insert_default();
                        *count += 1;
                        emit(&(word.clone(), *count));
                    })
                    .write(node.topic("running").partitions(RESULT_PARTITIONS).json());
                totals.key_by(String::clone).state("totals").count();
            }
            Job::Join => {
                let payments = items("payments").key_by(|payment| payment.key);
                items("orders")
                    .key_by(|order| order.key)
                    .window(tumbling(secs(2)))
                    .join("open", payments, |order, payment| (order.id, payment.time))
                    .write(node.topic("paid").partitions(RESULT_PARTITIONS).json());
            }
            Job::Sessions => {
                items("items")
                    .key_by(|item| item.key)
                    .window(session(secs(1)))
                    .sum(|item| item.price)
                    .serve_as("visits")
                    .write(node.topic("visits").partitions(RESULT_PARTITIONS).json());
            }
            Job::KeyJoin => {
                let pace = Arc::clone(pace);
                let [orders, users] =
                    ["orders", "users"].map(|topic| node.topic(topic).json::<Item>());
                flow.join_topics("join", orders, "user", users, |order, user| {
                    (order.id, user.id)
                })
                .map(move |row| {
                    pace.step();
                    *row
                })
                .write_keys(node.topic("rows").partitions(RESULT_PARTITIONS).json());
            }
        }
        Ok(flow)
    }
}

/// Counts the items of a run, and holds them back so that the run can be killed meanwhile.
pub struct Pace {
    began_at: Instant,
    items: AtomicU64,
    /// The time for each item, if the run is paced.
    item: Option<Duration>,
}

impl Pace {
    pub fn new(job: Job, is_paced: bool) -> Arc<Pace> {
        Arc::new(Pace {
            began_at: Instant::now(),
            items: AtomicU64::new(0),
            item: is_paced.then(|| PACED / job.items() as u32),
        })
    }

    fn step(&self) {
        let number = self.items.fetch_add(1, Ordering::Relaxed);
        if let Some(item) = self.item.filter(|_| number.is_multiple_of(16)) {
            let due = self.began_at + item * number as u32;
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }

    pub fn items(&self) -> u64 {
        self.items.load(Ordering::Relaxed)
    }
}

/// Returns the outcome of one rank that is left alone.
pub fn undisturbed(job: Job) -> Outcome {
    static OUTCOMES: [OnceLock<Outcome>; 5] = [const { OnceLock::new() }; 5];
    let outcome = OUTCOMES[job as usize].get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        job.store_input(&data);
        let plan = Plan {
            job,
            ranks: Ranks::Threads(1),
            server: None,
            dir: dir.path().to_owned(),
            is_paced: false,
            interval: None,
        };
        assert!(FlowProcess::start(&plan).succeeds());
        let outcome = Outcome::of_data(job, dir.path());
        outcome.check_plausible(job);
        outcome
    });
    outcome.clone()
}
