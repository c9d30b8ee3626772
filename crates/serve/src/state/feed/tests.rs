//! Tests of feeds beside a model: a changelog in memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use millstream_base::{Timestamp, partition_of_key};
use millstream_flow::WatchError;
use serde_json::{Value, json};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::watch::Watched;

const PARTITIONS: usize = 3;
const STREAM: [u8; 16] = [7; 16];
const KEYS: u64 = 12;

/// The limit of a test on the simulated clock.
const LIMIT: Duration = Duration::from_secs(3_600);

/// Random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// Lets other tasks run, for a random number of turns.
    async fn wait(&mut self) {
        for _ in 0..self.below(6) {
            yield_now().await;
        }
    }
}

/// A record: its key, the text of the key and its number.
type Record = (String, u64);

/// A changelog whose commits become visible at once.
struct Model {
    partitions: Mutex<Vec<Vec<Record>>>,
    committed: Notify,
    checkpoint: AtomicU64,
    has_ended: AtomicBool,
    /// Readers of all keys from now on, as those of feeds, fail once in this number of events; 0 for never.
    fails: AtomicU64,
    readers: Arc<AtomicUsize>,
    begun: AtomicUsize,
    looks: AtomicUsize,
    seeds: AtomicU64,
}

impl Model {
    fn new(seed: u64) -> Arc<Model> {
        Arc::new(Model {
            partitions: Mutex::new(vec![Vec::new(); PARTITIONS]),
            committed: Notify::new(),
            checkpoint: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            fails: AtomicU64::new(0),
            readers: Arc::default(),
            begun: AtomicUsize::new(0),
            looks: AtomicUsize::new(0),
            seeds: AtomicU64::new(seed << 20),
        })
    }

    /// The commit of a checkpoint.
    fn commit(&self, numbers: impl Iterator<Item = (u64, u64)>) {
        let mut partitions = self.partitions.lock().unwrap();
        for (key, number) in numbers {
            let key = key_of(key);
            partitions[partition_of_key(key.as_bytes(), PARTITIONS)].push((key, number));
        }
        drop(partitions);
        self.checkpoint.fetch_add(1, Ordering::Relaxed);
        self.committed.notify_waiters();
    }

    fn ends(&self) -> Vec<Offset> {
        let partitions = self.partitions.lock().unwrap();
        partitions
            .iter()
            .map(|it| Offset(it.len() as u64))
            .collect()
    }

    /// The records of a client's keys behind a position, by partition.
    fn expected(&self, keys: &Keys, from: &[Offset]) -> Vec<Vec<Record>> {
        let partitions = self.partitions.lock().unwrap();
        let of = |(records, from): (&Vec<Record>, &Offset)| {
            let behind = records.iter().skip(from.0 as usize);
            behind.filter(|(key, _)| keys.have(key)).cloned().collect()
        };
        partitions.iter().zip(from).map(of).collect()
    }
}

/// Keys of four share a text.
fn key_of(key: u64) -> String {
    format!("{}/{}", key / 4, key % 4)
}

fn text_of(key: &str) -> &str {
    key.split('/').next().unwrap()
}

/// The keys of a client.
#[derive(Debug, Clone)]
enum Keys {
    One(String),
    Range(KeyRange),
    Text(String),
}

impl Keys {
    fn random(random: &mut Random) -> Keys {
        let key = key_of(random.below(KEYS));
        match random.below(4) {
            0 => Keys::Range(KeyRange::all()),
            1 => Keys::Range(KeyRange::prefix(text_of(&key))),
            2 => Keys::Text(text_of(&key).to_owned()),
            _ => Keys::One(key),
        }
    }

    fn have(&self, key: &str) -> bool {
        match self {
            Keys::One(only) => only == key,
            Keys::Range(range) => range.contains(key.as_bytes()),
            Keys::Text(text) => text_of(key) == text,
        }
    }

    fn range(&self) -> (KeyRange, Option<String>) {
        match self {
            Keys::One(key) => (KeyRange::key(key.as_bytes()), None),
            Keys::Range(range) => (range.clone(), None),
            Keys::Text(text) => (KeyRange::all(), Some(text.clone())),
        }
    }
}

/// The source of a feed. The tests share the model.
struct Of(Arc<Model>);

impl Source for Of {
    fn watch(
        &self,
        range: KeyRange,
        from: WatchFrom,
    ) -> WatchFuture<'static, Box<dyn ChangelogWatch>> {
        let model = Arc::clone(&self.0);
        let seed = model.seeds.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let mut random = Random(seed);
            random.wait().await;
            let all = model.ends();
            let owner = range
                .only_key()
                .map(|key| partition_of_key(key, PARTITIONS));
            let is_feed = range == KeyRange::all() && from == WatchFrom::Now;
            let known = match from {
                WatchFrom::After(positions) => Some(positions),
                WatchFrom::Now | WatchFrom::Snapshot => None,
            };
            let owned = (0..PARTITIONS).filter(|it| owner.is_none_or(|owner| owner == *it));
            let partitions = owned.map(|partition| WatchPosition {
                partition: partition as u32,
                next: all[partition],
                epoch: 0,
            });
            let now = WatchPositions {
                stream: STREAM,
                partitions: partitions.collect(),
            };
            model.readers.fetch_add(1, Ordering::Relaxed);
            model.begun.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(ModelWatch {
                fails: is_feed.then(|| model.fails.load(Ordering::Relaxed)),
                model,
                range,
                positions: known.unwrap_or(now),
                random,
            }) as Box<dyn ChangelogWatch>)
        })
    }

    fn show(&self, key: &[u8], value: Option<&[u8]>) -> Result<ShownChange, BoxError> {
        let key = str::from_utf8(key)?;
        Ok(ShownChange {
            key: Some(text_of(key).to_owned()),
            bytes: Vec::new(),
            entry: Some(json!(key)),
            value: value.map(serde_json::from_slice).transpose()?,
        })
    }

    fn checkpoint(&self) -> Option<u64> {
        self.0.looks.fetch_add(1, Ordering::Relaxed);
        let has_ended = self.0.has_ended.load(Ordering::Relaxed);
        (!has_ended).then(|| self.0.checkpoint.load(Ordering::Relaxed))
    }

    fn progress(&self, checkpoint: u64) -> AskedProgress {
        let model = Arc::clone(&self.0);
        Box::pin(async move {
            yield_now().await;
            let ends = model.ends();
            let numbers: Vec<u64> = ends.iter().map(|end| end.0).collect();
            Ok(Progress {
                checkpoint,
                text: json!({ "ends": numbers }).to_string(),
                ends,
            })
        })
    }

    fn run(&self) -> usize {
        1
    }
}

struct ModelWatch {
    model: Arc<Model>,
    range: KeyRange,
    positions: WatchPositions,
    random: Random,
    /// For a feed: see [`Model::fails`].
    fails: Option<u64>,
}

impl Drop for ModelWatch {
    fn drop(&mut self) {
        self.model.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ModelWatch {
    /// Nothing has changed when this is dropped at an `await`.
    async fn next_event(&mut self) -> Result<Option<KeyEvent>, WatchError> {
        let model = Arc::clone(&self.model);
        loop {
            let mut committed = std::pin::pin!(model.committed.notified());
            committed.as_mut().enable();
            self.random.wait().await;
            if let Some(fails) = self.fails.filter(|it| *it > 0)
                && self.random.below(fails) == 0
            {
                return Err(WatchError::Failed("as the test wants".into()));
            }
            if let Some(moved) = self.take() {
                return Ok(moved);
            }
            committed.await;
        }
    }

    /// Reads on in a partition. `None` at the ends of all; else the event, if there is one.
    fn take(&mut self) -> Option<Option<KeyEvent>> {
        let partitions = self.model.partitions.lock().unwrap();
        let count = self.positions.partitions.len();
        let first = self.random.below(count as u64) as usize;
        let mut has_moved = false;
        for place in (0..count).map(|it| (first + it) % count) {
            let position = &mut self.positions.partitions[place];
            let records = &partitions[position.partition as usize];
            while let Some((key, number)) = records.get(position.next.0 as usize) {
                let version = position.next;
                position.next = version.plus(1);
                has_moved = true;
                if self.range.contains(key.as_bytes()) {
                    return Some(Some(KeyEvent::Change {
                        key: Bytes::copy_from_slice(key.as_bytes()),
                        version: KeyedVersion {
                            partition: position.partition,
                            version,
                        },
                        timestamp: Timestamp(0),
                        value: Some(number.to_string().into()),
                        expires_at: None,
                    }));
                }
                if self.random.below(4) == 0 {
                    return Some(None);
                }
            }
        }
        has_moved.then_some(None)
    }
}

impl ChangelogWatch for ModelWatch {
    fn next(&mut self) -> WatchFuture<'_, Option<KeyEvent>> {
        Box::pin(self.next_event())
    }

    fn positions(&self) -> WatchPositions {
        self.positions.clone()
    }

    fn is_in_snapshot(&self) -> bool {
        false
    }
}

/// A client as the server has it: it goes on behind the last event when its watch ends.
struct Client {
    feeds: Arc<Feeds>,
    model: Arc<Model>,
    keys: Keys,
    watch: Option<Following>,
    /// The position of the last event that it has seen.
    id: String,
    /// Where it has begun.
    from: Vec<Offset>,
    /// The records that it has seen, by partition.
    seen: Vec<Vec<Record>>,
    /// How many progress events it has seen.
    progress: usize,
}

impl Client {
    async fn begin(feeds: &Arc<Feeds>, model: &Arc<Model>, keys: Keys) -> Client {
        let mut client = Client {
            feeds: Arc::clone(feeds),
            model: Arc::clone(model),
            keys,
            watch: None,
            id: String::new(),
            from: vec![Offset(0); PARTITIONS],
            seen: vec![Vec::new(); PARTITIONS],
            progress: 0,
        };
        client.open().await;
        let begun: WatchPositions = client.id.parse().unwrap();
        for position in begun.partitions {
            client.from[position.partition as usize] = position.next;
        }
        client
    }

    async fn open(&mut self) {
        let from = match self.id.parse() {
            Ok(positions) => WatchFrom::After(positions),
            Err(_) => WatchFrom::Now,
        };
        let turn = self.feeds.turn().await.unwrap();
        let name = ("flow".to_owned(), "element".to_owned());
        let source: Arc<dyn Source> = Arc::new(Of(Arc::clone(&self.model)));
        let begun =
            Following::begin(&self.feeds, (name, source), self.keys.range(), (from, turn)).await;
        let watch = begun.ok().unwrap();
        self.id = watch.positions().to_string();
        self.watch = Some(watch);
    }

    /// Takes in the next event, or opens the watch again.
    async fn step(&mut self) {
        let Some(watch) = &mut self.watch else {
            return self.open().await;
        };
        let frames = match watch.next().await {
            Ok(Seen::Frames(frames)) => frames,
            Ok(seen) => frame_of(&seen, Some(&watch.positions().to_string())),
            Err(_) => {
                self.watch = None;
                return;
            }
        };
        let frames = str::from_utf8(&frames).unwrap();
        for frame in frames.split_terminator("\n\n") {
            self.take(frame);
        }
    }

    fn take(&mut self, frame: &str) {
        let field = |name: &str| {
            let mut lines = frame.lines();
            lines.find_map(|line| line.strip_prefix(name)).unwrap()
        };
        field("id: ").clone_into(&mut self.id);
        let data: Value = serde_json::from_str(field("data: ")).unwrap();
        if field("event: ") == "progress" {
            let ends = data["ends"].as_array().unwrap().iter();
            let ends = ends.map(|end| end.as_u64().unwrap() as usize);
            let partitions = self.model.partitions.lock().unwrap();
            for (partition, end) in ends.enumerate() {
                let from = self.from[partition].0 as usize;
                let before = partitions[partition].get(from..end).unwrap_or_default();
                let before = before.iter().filter(|(key, _)| self.keys.have(key)).count();
                assert!(self.seen[partition].len() >= before, "{frame}");
            }
            self.progress += 1;
            return;
        }
        let key = data["entry"].as_str().unwrap().to_owned();
        let partition = data["partition"].as_u64().unwrap() as usize;
        self.seen[partition].push((key, data["value"].as_u64().unwrap()));
    }

    fn has_all(&self) -> bool {
        let expected = self.model.expected(&self.keys, &self.from);
        for (seen, expected) in self.seen.iter().zip(&expected) {
            assert_eq!(seen[..], expected[..seen.len()], "{:?}", self.keys);
        }
        self.seen == expected
    }

    async fn read_all(&mut self) {
        while !self.has_all() {
            self.step().await;
        }
    }
}

/// Some watches come, go, come back, are slow, and their feeds break, while checkpoints commit changes.
async fn run(seed: u64) -> usize {
    let model = Model::new(seed);
    let mut random = Random(seed);
    model.fails.store(random.below(3) * 50, Ordering::Relaxed);
    let feeds = Arc::new(Feeds::with_bounds(1 << 20, 1 + random.below(8) as usize));
    let mut clients = JoinSet::new();
    let is_done = Arc::new(AtomicBool::new(false));
    for number in 0..8 {
        let (feeds, model, is_done) = (feeds.clone(), model.clone(), is_done.clone());
        let mut random = Random(seed * 100 + number);
        clients.spawn(async move {
            random.wait().await;
            let keys = Keys::random(&mut random);
            let mut client = Client::begin(&feeds, &model, keys).await;
            while !is_done.load(Ordering::Relaxed) {
                match random.below(30) {
                    // It leaves, and comes back.
                    0 => {
                        client.watch = None;
                        random.wait().await;
                    }
                    // It reads nothing for a while.
                    1 => sleep(Duration::from_millis(random.below(400))).await,
                    _ => {}
                }
                let wait = Duration::from_millis(1 + random.below(20));
                // A step that is dropped loses nothing.
                let _ = timeout(wait, client.step()).await;
            }
            client.read_all().await;
            client.progress
        });
    }
    let mut number = 0;
    for _ in 0..100 {
        let count = random.below(12);
        let numbers = (0..count).map(|it| (random.below(KEYS), number + it));
        model.commit(numbers.collect::<Vec<_>>().into_iter());
        number += count;
        random.wait().await;
        if random.below(3) == 0 {
            sleep(Duration::from_millis(random.below(50))).await;
        }
    }
    is_done.store(true, Ordering::Relaxed);
    let progress: usize = clients.join_all().await.into_iter().sum();
    assert_eq!(feeds.count(), 0, "seed {seed}");
    while model.readers.load(Ordering::Relaxed) > 0 {
        yield_now().await;
    }
    progress
}

#[tokio::test(start_paused = true)]
async fn each_change_comes_once_in_random_interleavings() {
    let mut progress = 0;
    for seed in 0..40 {
        let ran = timeout(LIMIT, run(seed)).await;
        progress += ran.unwrap_or_else(|_| panic!("seed {seed} does not end"));
    }
    assert!(progress > 40, "{progress}");
}

/// Lets all tasks work until the watches have joined.
async fn settle() {
    sleep(Duration::from_secs(2)).await;
}

/// Adds a client that has joined the feed.
async fn join(clients: &mut Vec<Client>, mut client: Client) {
    step_all(std::slice::from_mut(&mut client)).await;
    clients.push(client);
}

/// Takes the events that have come for each client.
async fn step_all(clients: &mut [Client]) {
    for client in clients {
        while timeout(Duration::from_millis(1), client.step())
            .await
            .is_ok()
        {}
    }
}

#[tokio::test(start_paused = true)]
async fn many_watches_share_one_reader_that_ends_with_the_last_one() {
    let model = Model::new(1);
    let feeds = Arc::new(Feeds::with_bounds(1 << 20, 4));
    let mut clients = Vec::new();
    for number in 0..200 {
        let keys = match number % 3 {
            0 => Keys::Range(KeyRange::all()),
            1 => Keys::Text((number % 4).to_string()),
            _ => Keys::One(key_of(number % KEYS)),
        };
        join(&mut clients, Client::begin(&feeds, &model, keys).await).await;
    }
    settle().await;
    step_all(&mut clients).await;
    assert_eq!(model.readers.load(Ordering::Relaxed), 1);
    for round in 0..50 {
        model.commit((0..6).map(|it| ((round + it) % KEYS, round)));
        sleep(Duration::from_millis(1)).await;
        step_all(&mut clients).await;
    }
    assert!(clients.iter().all(Client::has_all));
    // No watch has needed a second reader.
    assert_eq!(model.begun.load(Ordering::Relaxed), 201);
    assert_eq!(feeds.count(), 1);
    clients.truncate(1);
    assert_eq!(feeds.count(), 1);
    clients.clear();
    assert_eq!(feeds.count(), 0);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(model.readers.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_too_slow_for_the_feed_goes_on_by_itself() {
    let model = Model::new(2);
    let feeds = Arc::new(Feeds::with_bounds(1 << 20, 4));
    let mut slow = [Client::begin(&feeds, &model, Keys::Range(KeyRange::all())).await];
    let mut quick = [Client::begin(&feeds, &model, Keys::One(key_of(3))).await];
    for clients in [&mut slow, &mut quick] {
        step_all(clients).await;
        settle().await;
        step_all(clients).await;
    }
    assert_eq!(model.begun.load(Ordering::Relaxed), 3);
    for round in 0..20 {
        model.commit((0..KEYS).map(|key| (key, round)));
        sleep(Duration::from_millis(1)).await;
        step_all(&mut quick).await;
    }
    assert!(quick[0].has_all());
    // It has the items of its queue, and reads the rest itself.
    let ran = timeout(LIMIT, slow[0].read_all()).await;
    assert!(ran.is_ok());
    assert_eq!(model.begun.load(Ordering::Relaxed), 4);
    settle().await;
    step_all(&mut slow).await;
    assert_eq!(
        model.readers.load(Ordering::Relaxed),
        1,
        "it has joined again"
    );
}

#[tokio::test(start_paused = true)]
async fn queued_items_without_memory_are_read_again() {
    let model = Model::new(3);
    // For two items.
    let feeds = Arc::new(Feeds::with_bounds(2 << 10, 4));
    let mut clients = Vec::new();
    for key in 0..KEYS {
        join(
            &mut clients,
            Client::begin(&feeds, &model, Keys::One(key_of(key))).await,
        )
        .await;
    }
    for round in 0..20 {
        model.commit((0..KEYS).map(|key| (key, round)));
        sleep(Duration::from_millis(1)).await;
    }
    // Each leaves when it has all, and gives its turn to read back.
    for mut client in clients {
        assert!(timeout(LIMIT, client.read_all()).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn watches_end_with_their_flow() {
    let model = Model::new(4);
    let feeds = Arc::new(Feeds::new());
    let mut clients = Vec::new();
    for key in 0..KEYS {
        join(
            &mut clients,
            Client::begin(&feeds, &model, Keys::One(key_of(key))).await,
        )
        .await;
    }
    model.commit((0..KEYS).map(|key| (key, key)));
    step_all(&mut clients).await;
    model.has_ended.store(true, Ordering::Relaxed);
    settle().await;
    for client in &mut clients {
        assert!(client.has_all());
        let ended = client.watch.as_mut().unwrap().next().await;
        assert!(ended.err().unwrap().contains("the flow has ended"));
    }
}

fn poll_once(step: impl Future<Output = ()>) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let _ = std::pin::pin!(step).poll(&mut context);
}

#[tokio::test(start_paused = true)]
async fn idle_watches_wake_rarely() {
    const WATCHES: usize = 500;
    let model = Model::new(5);
    let feeds = Arc::new(Feeds::new());
    let mut clients = Vec::new();
    for number in 0..WATCHES as u64 {
        let keys = Keys::One(key_of(number % KEYS));
        join(&mut clients, Client::begin(&feeds, &model, keys).await).await;
    }
    settle().await;
    let (looks, start) = (model.looks.load(Ordering::Relaxed), Instant::now());
    // Checkpoints without a change.
    let mut taken: HashMap<usize, usize> = HashMap::new();
    for _ in 0..1_000 {
        model.commit(std::iter::empty());
        sleep(Duration::from_millis(10)).await;
        for (number, client) in clients.iter_mut().enumerate() {
            let before = client.progress;
            poll_once(client.step());
            *taken.entry(number).or_default() += client.progress - before;
        }
    }
    let seconds = start.elapsed().as_secs() as usize;
    let looks = model.looks.load(Ordering::Relaxed) - looks;
    assert!(looks <= 10 * (seconds + 1), "{looks} looks in {seconds} s");
    let taken: usize = taken.values().sum();
    let most = 1_000 * (seconds + 1);
    assert!((WATCHES..=most).contains(&taken), "{taken} in {seconds} s");
}
