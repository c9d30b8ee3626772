//! State elements of applications: each counts every record once, is served and stored, although its flow is stopped.

mod servers;

use std::collections::{BTreeMap, HashMap};
use std::fmt::{Debug, Write as _};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use millstream::flow::windows::Key;
use millstream::flow::{self, Element, Emit, FlowSettings};
use millstream::{Error, Flow, Node, RunningFlow};
use serde_json::{Value, json};

/// The numbers that a flow reads. One of them takes at least 10 µs, so that the flow can be stopped.
const NUMBERS: u64 = 20_000;
const KEYS: u64 = 10;
const FIELDS: u64 = 12;

/// The numbers that are sent at once.
const BATCH: u64 = 100;

/// A flow makes progress within this time.
const LIMIT: Duration = Duration::from_secs(60);

/// The number of instances of an operator.
const INSTANCES: usize = 4;

fn key(number: u64) -> u64 {
    number * number % KEYS
}

fn field(number: u64) -> u64 {
    number / 3 % FIELDS
}

/// An empty flow with several instances, which takes checkpoints often.
fn empty_flow() -> Flow {
    let settings = FlowSettings {
        workers: INSTANCES.try_into().expect("it is not zero"),
        ..FlowSettings::default()
    };
    Flow::with_settings("shop", settings)
        .checkpoint_interval(Duration::from_millis(5))
        .http(SocketAddr::from(([127, 0, 0, 1], 0)))
}

fn slowed(number: &u64) -> u64 {
    if number.is_multiple_of(128) {
        thread::sleep(Duration::from_micros(1_300));
    }
    *number
}

/// A program: it adds an element to a flow that reads the topic `numbers`, and returns a reader of all its keys.
type Program<'a, K> = &'a dyn Fn(&Flow, &Node) -> Box<dyn Fn() -> BTreeMap<K, Value>>;

/// Runs a program on a log and on a server, stops it several times, and compares its state `users` with the expected one:
/// as the element's handle, HTTP and the topic of the state have it.
fn check<K>(program: Program<'_, K>, expected: &BTreeMap<K, Value>) -> Result<(), Error>
where
    K: Key + Ord + Debug,
{
    assert!(!expected.is_empty());
    let dir = tempfile::tempdir()?;
    check_in(&Node::embedded(dir.path())?, program, expected)?;
    let dir = tempfile::tempdir()?;
    let (_, server) = servers::start(dir.path(), |_, _| {});
    let node = Node::connect(&server.local_address().to_string())?;
    check_in(&node, program, expected)
}

fn check_in<K>(
    node: &Node,
    program: Program<'_, K>,
    expected: &BTreeMap<K, Value>,
) -> Result<(), Error>
where
    K: Key + Ord + Debug,
{
    interrupt(node, || {
        let flow = empty_flow();
        let _ = program(&flow, node);
        flow.start()
    })?;
    let flow = empty_flow().until_now();
    let read = program(&flow, node);
    let running = flow.start()?;
    running.join()?;
    assert_eq!(&read(), expected);
    for (key, value) in expected {
        let key = serde_json::to_string(key).expect("it is a key");
        assert_eq!(served(&running, &key).as_ref(), Some(value), "{key}");
    }
    assert_eq!(served(&running, "77777"), None);
    drop(running);
    let mut stored = HashMap::new();
    let began_at = Instant::now();
    // A server makes them visible soon after the commit.
    while stored.len() != expected.len() && began_at.elapsed() < LIMIT {
        let state = node.topic("shop.state.users").json::<Value>();
        stored = state.read_keys::<K>()?;
    }
    assert_eq!(&stored.into_iter().collect::<BTreeMap<_, _>>(), expected);
    Ok(())
}

/// Sends all numbers, while a flow that `start` starts reads them and is stopped several times, at work.
fn interrupt(node: &Node, start: impl Fn() -> Result<RunningFlow, Error>) -> Result<(), Error> {
    let numbers = node.topic("numbers").json::<u64>().create()?;
    let began_at = Instant::now();
    let mut next = 0;
    for run in 0..3 {
        let running = start()?;
        let kept = || running.checkpoints().map_or(0, |counts| counts.kept);
        while kept() < 3 {
            assert!(began_at.elapsed() < LIMIT, "{:?}", running.checkpoints());
            let end = (next + BATCH).min(NUMBERS);
            numbers.send(next..end)?;
            next = end;
            thread::sleep(Duration::from_millis(5));
        }
        // More than the flow reads until its end.
        let end = (next + 20 * BATCH).min(NUMBERS);
        assert!(next < end, "the flow has stored too few checkpoints");
        numbers.send(next..end)?;
        next = end;
        if run == 1 {
            running.stop();
            running.join()?;
        }
    }
    numbers.send(next..NUMBERS)
}

/// Returns the answer of HTTP for a key of the state `users`; `None` if there is none.
fn served(running: &RunningFlow, key: &str) -> Option<Value> {
    let mut path = String::new();
    for byte in key.bytes() {
        write!(path, "%{byte:02x}").expect("memory suffices");
    }
    let address = running.http_address().expect("it serves HTTP");
    let mut visitor = TcpStream::connect(address).expect("it listens");
    visitor
        .set_read_timeout(Some(LIMIT))
        .expect("it is not zero");
    let request = format!(
        "GET /state/shop/users/{path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"
    );
    visitor.write_all(request.as_bytes()).expect("it listens");
    let mut answer = String::new();
    visitor.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head ends");
    if head.starts_with("HTTP/1.1 404") {
        return None;
    }
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    Some(serde_json::from_str(body).expect("it is JSON"))
}

/// A program that changes an element by key with each number.
fn changing<E, K>(
    element: impl Fn(&flow::Flow) -> E,
    change: impl Fn(E::Content<'_>, u64) + Copy + Send + Sync + 'static,
    read: impl Fn(&E) -> BTreeMap<K, Value> + Copy + 'static,
) -> impl Fn(&Flow, &Node) -> Box<dyn Fn() -> BTreeMap<K, Value>>
where
    E: Element<u64>,
{
    move |flow, node| {
        let numbers = flow.read(node.topic("numbers").json::<u64>()).map(slowed);
        let users = element(&flow.engine());
        numbers
            .key_by(|number| key(*number))
            .fold("change", &users, move |content, number| {
                change(content, *number);
            });
        Box::new(move || read(&users))
    }
}

/// Reads the contents of all keys, each of which is one value.
fn by_key<V: Into<Value>>(content: impl Fn(u64) -> Option<V>) -> BTreeMap<u64, Value> {
    let contents = (0..KEYS).filter_map(|key| Some((key, content(key)?.into())));
    contents.collect()
}

/// Reads the contents of all keys, each of which has entries.
fn by_entry<V: Into<Value>>(entries: impl Fn(u64) -> Vec<(u64, V)>) -> BTreeMap<(u64, u64), Value> {
    let contents = (0..KEYS).flat_map(|key| {
        let entries = entries(key).into_iter();
        entries.map(move |(field, value)| ((key, field), value.into()))
    });
    contents.collect()
}

#[test]
fn a_map_for_each_key_counts_each_record_once() -> Result<(), Error> {
    let mut plain = BTreeMap::new();
    for number in 0..NUMBERS {
        let id = (key(number), field(number));
        match number % 5 {
            0 => drop(plain.remove(&id)),
            _ => *plain.entry(id).or_insert(0) += number,
        }
    }
    let program = changing(
        |engine| engine.maps::<u64, u64, u64>("users"),
        |mut map, number| match number % 5 {
            0 => drop(map.remove(&field(number))),
            _ => *map.or_default(&field(number)) += number,
        },
        |maps| by_entry(|key| maps.entries(&key)),
    );
    let plain = plain.into_iter().map(|(id, sum)| (id, json!(sum)));
    check(&program, &plain.collect())
}

#[test]
fn a_set_for_each_key_has_each_element_that_was_added_last() -> Result<(), Error> {
    let mut plain = BTreeMap::new();
    for number in 0..NUMBERS {
        let id = (key(number), field(number));
        match number / 7 % 3 {
            0 => drop(plain.remove(&id)),
            _ => drop(plain.insert(id, json!(true))),
        }
    }
    let program = changing(
        |engine| engine.sets::<u64, u64>("users"),
        |mut set, number| {
            match number / 7 % 3 {
                0 => set.remove(&field(number)),
                _ => set.insert(&field(number)),
            };
        },
        |sets| {
            let elements = |key| sets.elements(&key).into_iter();
            by_entry(|key| elements(key).map(|it| (it, true)).collect())
        },
    );
    check(&program, &plain)
}

#[test]
fn a_counter_for_each_key_counts_each_record_once() -> Result<(), Error> {
    let mut plain = BTreeMap::new();
    for number in 0..NUMBERS {
        *plain.entry(key(number)).or_insert(0) += number.cast_signed() % 7 - 2;
    }
    let program = changing(
        |engine| engine.counters::<u64>("users"),
        |mut counter, number| {
            counter.add(number.cast_signed() % 7 - 2);
        },
        |counters| by_key(|key| Some(counters.get(&key)).filter(|count| *count != 0)),
    );
    let plain = plain.into_iter().map(|(key, count)| (key, json!(count)));
    check(&program, &plain.collect())
}

#[test]
fn an_ordered_map_for_each_key_keeps_its_last_entries() -> Result<(), Error> {
    let mut plain: BTreeMap<u64, BTreeMap<u64, u64>> = BTreeMap::new();
    for number in 0..NUMBERS {
        let map = plain.entry(key(number)).or_default();
        *map.entry(number / 100).or_default() += number;
        if map.len() > 4 {
            map.pop_first();
        }
    }
    let program = changing(
        |engine| engine.ordered_maps::<u64, u64, u64>("users"),
        |mut map, number| {
            *map.or_default(&(number / 100)) += number;
            if map.len() > 4 {
                map.pop_first();
            }
        },
        |maps| by_entry(|key| maps.entries(&key)),
    );
    let plain = by_entry(|key| plain.get(&key).cloned().into_iter().flatten().collect());
    check(&program, &plain)
}

#[test]
fn a_list_for_each_key_keeps_its_last_items() -> Result<(), Error> {
    // Its bounds and each item are records.
    let mut plain = BTreeMap::new();
    for key in 0..KEYS {
        let items: Vec<u64> = (0..NUMBERS).filter(|it| self::key(*it) == key).collect();
        if let Some(first) = items.len().checked_sub(3) {
            plain.insert((key, None), json!({"bounds": [first, items.len()]}));
            for (position, item) in items.iter().enumerate().skip(first) {
                plain.insert((key, Some(position as i64)), json!({"item": item}));
            }
        }
    }
    let bounds = plain.clone();
    let program = move |flow: &Flow, node: &Node| -> Box<dyn Fn() -> BTreeMap<_, Value>> {
        let numbers = flow.read(node.topic("numbers").json::<u64>()).map(slowed);
        let lists = flow.engine().lists::<u64, u64>("users");
        numbers
            .key_by(|number| key(*number))
            .fold("change", &lists, |mut list, number| {
                list.push_back(*number);
                if list.len() > 3 {
                    list.pop_front();
                }
            });
        let plain = plain.clone();
        Box::new(move || {
            let mut read = plain.clone();
            for ((key, position), value) in &mut read {
                if let Some(position) = position {
                    let first = plain[&(*key, None)]["bounds"][0].as_i64();
                    let index = position - first.expect("it is a number");
                    *value = json!({"item": lists.items(key)[index as usize]});
                }
            }
            read
        })
    };
    check(&program, &bounds)
}

#[test]
fn a_vector_for_each_key_counts_each_record_once() -> Result<(), Error> {
    let mut plain: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for number in 0..NUMBERS {
        let vector = plain.entry(key(number)).or_insert_with(|| vec![0.0; 3]);
        vector[(number % 3) as usize] += 1.0;
    }
    let program = changing(
        |engine| engine.vectors::<u64>("users"),
        |mut vector, number| {
            vector.add(2, 0.0);
            vector.add((number % 3) as usize, 1.0);
        },
        |all| by_key(|key| Some(all.get(&key)).filter(|vector| !vector.is_empty())),
    );
    let plain = plain.into_iter().map(|(key, vector)| (key, json!(vector)));
    check(&program, &plain.collect())
}

#[test]
fn a_row_of_a_matrix_for_each_key_counts_each_record_once() -> Result<(), Error> {
    let mut plain: BTreeMap<(u64, u64), f64> = BTreeMap::new();
    for number in 0..NUMBERS {
        *plain.entry((key(number), field(number))).or_default() += (number % 3) as f64;
    }
    let program = changing(
        |engine| engine.matrices::<u64, u64>("users"),
        |mut row, number| {
            row.add(&field(number), (number % 3) as f64);
        },
        |matrix| by_entry(|key| matrix.row(&key)),
    );
    let plain = plain.into_iter().filter(|(_, number)| *number != 0.0);
    check(&program, &plain.map(|(id, it)| (id, json!(it))).collect())
}

#[test]
fn a_top_list_for_each_key_has_the_highest_scores() -> Result<(), Error> {
    let mut plain: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for number in 0..NUMBERS {
        let top = plain.entry(key(number)).or_default();
        top.retain(|(_, item)| *item != field(number));
        top.push((number, field(number)));
        top.sort_by(|one, other| other.cmp(one));
        top.truncate(4);
    }
    let program = changing(
        |engine| engine.tops::<u64, u64, u64>("users", 4),
        |mut top, number| {
            top.put(&number, &field(number));
        },
        |all| {
            let of_key = |key| Some(all.get(&key)).filter(|top| !top.is_empty());
            by_key(|key| of_key(key).map(|top| json!(top)))
        },
    );
    let plain = plain.into_iter().map(|(key, top)| (key, json!(top)));
    check(&program, &plain.collect())
}

/// Counts numbers in a partial map and a partial matrix, with an instance for each worker.
fn partial(
    flow: &Flow,
    node: &Node,
) -> (flow::PartialMap<u64, u64>, flow::PartialMatrix<u64, u64>) {
    let numbers = flow.read(node.topic("numbers").json::<u64>()).map(slowed);
    let users = flow
        .engine()
        .partial_map::<u64, u64>("users", |sum, other| *sum += other);
    let cells = flow.engine().partial_matrix::<u64, u64>("cells");
    // The instances share the work behind a queue.
    let [numbers] = numbers.fork();
    numbers
        .update_local("count", &users, |mut users, number, emit| {
            *users.or_default(&key(*number)) += 1;
            emit(number);
        })
        .fold_local("add", &cells, |mut cells, number| {
            cells.add(&key(*number), &field(*number), 1.0);
        });
    (users, cells)
}

#[test]
fn the_replicas_of_several_instances_count_each_record_once() -> Result<(), Error> {
    let mut users: BTreeMap<u64, u64> = BTreeMap::new();
    let mut cells: BTreeMap<(u64, u64), f64> = BTreeMap::new();
    for number in 0..NUMBERS {
        *users.entry(key(number)).or_default() += 1;
        *cells.entry((key(number), field(number))).or_default() += 1.0;
    }
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    interrupt(&node, || {
        let flow = empty_flow();
        partial(&flow, &node);
        flow.start()
    })?;
    let flow = empty_flow().until_now();
    let (counted, added) = partial(&flow, &node);
    let running = flow.start()?;
    running.join()?;
    let merged: BTreeMap<_, _> = counted.merged().into_iter().collect();
    assert_eq!(merged, users);
    for (key, count) in &users {
        assert_eq!(served(&running, &key.to_string()), Some(json!(count)));
        let row: BTreeMap<_, _> = added.row(key).into_iter().collect();
        let expected = cells.range((*key, 0)..(key + 1, 0));
        let expected = expected.map(|((_, field), number)| (*field, *number));
        assert_eq!(row, expected.collect());
    }
    drop(running);
    // Several instances had a part: their replicas are records of their own, and add up.
    let state = node.topic("shop.state.users").json::<u64>();
    let stored = state.read_keys::<(u32, u64)>()?;
    let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
    for ((_, key), count) in &stored {
        *sums.entry(*key).or_default() += count;
    }
    assert_eq!(sums, users);
    let replicas = stored.keys().map(|(replica, _)| replica).max();
    assert!(replicas > Some(&0), "one instance has counted all");
    Ok(())
}

#[test]
fn results_have_the_key_of_their_items() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let words = node.topic("words").text().create()?;
    words.send(["tea", "milk", "tea"])?;
    let flow = Flow::new("words");
    let words = flow.read(words.until_now());
    let counters = flow.engine().counters::<String>("counters");
    let sums = flow
        .engine()
        .partial_map::<String, u64>("sums", |sum, it| *sum += it);
    words
        .key_by(|word| word.clone())
        .update("count", &counters, |word, mut counter, _, emit| {
            emit(&(word.clone(), counter.add(1)));
        })
        .update_local(
            "sum",
            &sums,
            |mut sums, (word, count), emit: &mut Emit<'_, i64>| {
                *sums.or_default(word) += 1;
                emit(count);
            },
        )
        .write(
            node.topic("counts")
                .setting("cleanup.policy", "compact")
                .json(),
        )
        .run()?;
    let counts = node.topic("counts").json::<i64>().read_keys::<String>()?;
    let expected = [("tea".to_owned(), 2), ("milk".to_owned(), 1)];
    assert_eq!(counts, HashMap::from(expected));
    assert_eq!(sums.get(&"tea".to_owned()), Some(2));
    Ok(())
}

#[test]
fn state_before_the_first_topic_is_an_error_with_its_remedy() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let words = node.topic("words").text().create()?;
    let flow = Flow::new("early");
    let counters = flow.engine().counters::<String>("counters");
    let ended = flow
        .read(words.until_now())
        .key_by(|word| word.clone())
        .fold("count", &counters, |mut counter, _| {
            counter.add(1);
        })
        .run();
    let error = ended.expect_err("the state has no node").to_string();
    assert_eq!(
        error,
        "flow early: `engine` was called while the flow read no topic: call `read` first, since its topic names the node of the state"
    );
    Ok(())
}
