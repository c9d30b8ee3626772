//! Joins of keyed streams, polled by hand: rows come in slices, and a saved join goes on where it was.

use std::collections::BTreeMap;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::{ProducerId, Timestamp, partition_of_key};
use millstream_connect::{
    JOINED_ROWS_MAX, JoinInput, JoinedRow, KeyJoin, KeyJoinSource, LogKeys, StreamProducer,
    StreamSource,
};
use millstream_flow::{Output, Source, SourceStatus};
use millstream_log::{
    CLEANUP_POLICY, COMPACT, Log, LogConfig, SECONDARY, Share, Stream, StreamConfig,
};
use millstream_record::Header;

/// The partitions of each stream.
const PARTITIONS: u32 = 2;

/// The left records of one right key, …
const MANY: usize = 50_000;

/// … and in tests that look at all of them several times.
const SOME: usize = 10_000;

/// Orders with their users, and users.
struct Tables {
    orders: Stream,
    users: Stream,
    _log: Log,
    _dir: tempfile::TempDir,
}

impl Tables {
    fn new() -> Tables {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(LogConfig::new(dir.path())).unwrap();
        let create = |name: &str, settings: &[(&str, &str)]| {
            let settings = settings.iter();
            let settings = settings.map(|(name, value)| (name.to_string(), value.to_string()));
            let config = StreamConfig {
                streamlets: PARTITIONS,
                settings: settings.collect(),
                ..StreamConfig::default()
            };
            log.create_stream(name, config).unwrap()
        };
        let keyed = (CLEANUP_POLICY, COMPACT);
        Tables {
            orders: create("orders", &[keyed, (SECONDARY, "user")]),
            users: create("users", &[keyed]),
            _log: log,
            _dir: dir,
        }
    }

    /// Puts orders, each with its user.
    fn order<'a>(&self, orders: impl IntoIterator<Item = (usize, Option<&'a str>)>) {
        let mut producers = producers(&self.orders);
        for (number, user) in orders {
            let (key, value) = (number.to_string(), format!("order {number}"));
            let header = Header {
                name: b"k.user",
                value: user.map(str::as_bytes),
            };
            let headers = match user {
                Some(_) => &[header][..],
                None => &[],
            };
            let (key, value) = (key.as_bytes(), value.as_bytes());
            let producer = &mut producers[partition_of_key(key, PARTITIONS as usize)];
            let pushed = producer.push(Timestamp(1), Some(key), Some(value), headers);
            pushed.unwrap();
        }
        producers.iter_mut().for_each(|it| it.flush().unwrap());
    }

    /// Puts a user, or deletes it.
    fn user(&self, name: &str, city: Option<&str>) {
        let (name, value) = (name.as_bytes(), city.map(str::as_bytes));
        let partition = partition_of_key(name, PARTITIONS as usize);
        let producer = &mut producers(&self.users)[partition];
        let pushed = producer.push(Timestamp(2), Some(name), value, &[]);
        pushed.unwrap();
        producer.flush().unwrap();
    }

    fn join(&self, is_left_outer: bool) -> Join {
        self.join_share(is_left_outer, Share::ALL)
    }

    fn join_share(&self, is_left_outer: bool, share: Share) -> Join {
        let input = |stream: &Stream, share| JoinInput {
            changes: StreamSource::of_share(stream, share).into(),
            keys: LogKeys::new(stream).unwrap().into(),
        };
        let join = KeyJoin {
            index: "user".to_owned(),
            is_left_outer,
            share,
        };
        let left = input(&self.orders, share);
        let right = input(&self.users, Share::ALL);
        let source = KeyJoinSource::new(left, right, join);
        Join {
            source: source.unwrap(),
            rows: BTreeMap::new(),
            given: 0,
        }
    }
}

/// Returns a producer for each partition.
fn producers(stream: &Stream) -> Vec<StreamProducer> {
    let producer = |partition| StreamProducer::for_partition(stream, partition, ProducerId::NONE);
    (0..PARTITIONS).map(|it| producer(it).unwrap()).collect()
}

/// A join, and the result so far.
struct Join {
    source: KeyJoinSource,
    /// By order: the city of its user, empty if it has none.
    rows: BTreeMap<String, String>,
    /// The rows that it has given.
    given: usize,
}

impl Join {
    /// Polls the join, which gives a bounded number of rows. Returns whether it has made progress.
    fn poll(&mut self) -> bool {
        let mut out = Output::default();
        let status = self.source.poll(&mut out, 64, Waker::noop()).unwrap();
        let rows = out.items().len();
        assert!(rows <= JOINED_ROWS_MAX, "{rows} rows in hand");
        self.given += rows;
        for JoinedRow { key, values, .. } in out.drain() {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let key = text(&key);
            match values {
                Some((order, city)) => {
                    assert_eq!(text(&order), format!("order {key}"));
                    let city = city.map_or_else(String::new, |city| text(&city));
                    self.rows.insert(key, city);
                }
                None => drop(self.rows.remove(&key)),
            }
        }
        rows > 0 || status == SourceStatus::Ready
    }

    /// Polls until `condition` holds, for up to a minute.
    fn until(&mut self, what: &str, condition: impl Fn(&Join) -> bool) {
        let started_at = Instant::now();
        while !condition(self) {
            let waited = started_at.elapsed();
            assert!(
                waited < Duration::from_secs(60),
                "{what}: {} rows",
                self.rows.len()
            );
            if !self.poll() {
                thread::sleep(Duration::from_micros(100));
            }
        }
    }

    fn are_all(&self, rows: usize, city: &str) -> bool {
        self.rows.len() == rows && self.rows.values().all(|it| it == city)
    }
}

#[test]
fn a_change_of_a_right_record_comes_in_slices_between_those_of_others() {
    let tables = Tables::new();
    tables.user("ada", Some("Turin"));
    tables.user("bob", Some("Oslo"));
    tables.order((0..MANY).map(|number| (number, Some("ada"))));
    let mut join = tables.join(false);
    join.until("all rows", |join| join.are_all(MANY, "Turin"));

    tables.user("ada", Some("Namur"));
    let of_namur = |join: &Join| join.rows.values().filter(|it| *it == "Namur").count();
    join.until("some rows", |join| of_namur(join) > 0);
    // Another change does not wait for the others.
    tables.order([(MANY, Some("bob"))]);
    let before = join.given;
    join.until("another row", |join| join.rows.len() == MANY + 1);
    assert!(join.given - before <= 4 * JOINED_ROWS_MAX);
    assert!(of_namur(&join) < MANY, "the others were first");
    join.until("all rows", |join| of_namur(join) == MANY);
    assert_eq!(join.rows[&MANY.to_string()], "Oslo");

    tables.user("ada", None);
    join.until("no row of ada", |join| join.rows.len() == 1);
}

#[test]
fn a_join_goes_on_in_the_midst_of_the_rows_of_a_right_record() {
    let tables = Tables::new();
    tables.user("ada", Some("Turin"));
    tables.order((0..SOME).map(|number| (number, Some("ada"))));
    let mut first = tables.join(false);
    first.until("all rows", |join| join.are_all(SOME, "Turin"));
    tables.user("ada", Some("Namur"));
    let before = first.given;
    first.until("some rows", |join| join.given - before > SOME / 2);
    let given = first.given - before;
    let saved = first.source.save().unwrap();

    let mut second = tables.join(false);
    second.source.restore(&saved).unwrap();
    second.rows = first.rows;
    second.until("the other rows", |join| join.are_all(SOME, "Namur"));
    assert!(
        second.given <= SOME - given + 2 * JOINED_ROWS_MAX,
        "{}",
        second.given
    );
}

#[test]
fn a_right_record_that_changes_meanwhile_is_in_all_rows() {
    let tables = Tables::new();
    tables.order((0..SOME).map(|number| (number, Some("ada"))));
    let mut join = tables.join(true);
    join.until("all rows", |join| join.are_all(SOME, ""));
    for city in ["Turin", "Oslo", "Namur"] {
        tables.user("ada", Some(city));
        let before = join.given;
        join.until("some rows", |join| join.given - before > SOME / 3);
    }
    join.until("all rows", |join| join.are_all(SOME, "Namur"));
    tables.user("ada", None);
    join.until("all rows", |join| join.are_all(SOME, ""));
}

#[test]
fn a_left_record_without_a_right_key_has_a_row_in_an_outer_join_alone() {
    let tables = Tables::new();
    tables.user("ada", Some("Turin"));
    tables.order([(1, None), (2, Some("ada")), (3, Some("eve")), (4, Some(""))]);
    let rows = |rows: &[(&str, &str)]| {
        let rows = rows.iter();
        let rows = rows.map(|(order, city)| (order.to_string(), city.to_string()));
        rows.collect::<BTreeMap<_, _>>()
    };
    let mut inner = tables.join(false);
    inner.until("the rows", |join| join.rows == rows(&[("2", "Turin")]));
    let mut outer = tables.join(true);
    let expected = rows(&[("1", ""), ("2", "Turin"), ("3", ""), ("4", "")]);
    outer.until("the rows", |join| join.rows == expected);
    tables.user("eve", Some("Oslo"));
    tables.order([(2, None)]);
    let expected = rows(&[("1", ""), ("2", ""), ("3", "Oslo"), ("4", "")]);
    outer.until("the rows", |join| join.rows == expected);
    inner.until("the rows", |join| join.rows == rows(&[("3", "Oslo")]));
}

#[test]
fn shares_of_a_join_divide_the_left_keys() {
    let tables = Tables::new();
    tables.user("ada", Some("Turin"));
    tables.order((0..100).map(|number| (number, Some("ada"))));
    let shares = [0, 1].map(|index| Share { index, of: 2 });
    let [mut one, mut other] = shares.map(|share| tables.join_share(false, share));
    let owned = |share: u32| {
        let keys = (0..100).map(|number: usize| number.to_string());
        let owner = |key: &String| partition_of_key(key.as_bytes(), PARTITIONS as usize);
        keys.filter(|key| owner(key) == share as usize).count()
    };
    for city in ["Turin", "Namur"] {
        tables.user("ada", Some(city));
        one.until("its rows", |join| join.are_all(owned(0), city));
        other.until("its rows", |join| join.are_all(owned(1), city));
    }
    assert!(one.rows.keys().all(|key| !other.rows.contains_key(key)));
    let saved = one.source.save().unwrap();
    let error = other.source.restore(&saved).unwrap_err().to_string();
    let expected = "the checkpoint is of a join over the partitions [0], and these are now [1]: resume on as many ranks as before";
    assert_eq!(error, expected);
}
