//! A log with a server, and changelogs in either.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::{ByteSize, ProducerId, SystemRandom, TcpNetwork, Timestamp};
use millstream_broker::{BrokerConfig, Server};
use millstream_client::{Client, ClientConfig};
use millstream_connect::{LogCheckpoints, ServerCheckpoints};
use millstream_flow::{BoxError, Change, Changelog, Checkpoints, SinkStart};
use millstream_log::{CLEANUP_POLICY, KEYED_CLOCK, Log, LogConfig, StreamConfig, StreamPartition};
use millstream_record::{ChunkBuilder, Compression, EndMarker, Producer, TransactionEnd};
use tempfile::TempDir;

/// The longest wait for a changelog.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

pub type Table = BTreeMap<Vec<u8>, Vec<u8>>;

/// A log that a server serves, and a store of checkpoints in it.
pub struct World {
    pub log: Log,
    pub store: Arc<dyn Checkpoints>,
    server: Server,
    _dir: TempDir,
}

/// Runs a test on a changelog in a log, then on one in a server.
pub fn for_both(test: impl Fn(&World)) {
    for is_remote in [false, true] {
        test(&World::start(is_remote));
    }
}

impl World {
    pub fn start(is_remote: bool) -> World {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(64 << 20))).unwrap();
        let config = BrokerConfig::new(([127, 0, 0, 1], 0).into());
        let clock = Arc::clone(log.clock());
        let random = Arc::new(SystemRandom);
        let server = Server::start(&TcpNetwork, config, log.clone(), clock, random).unwrap();
        let store: Arc<dyn Checkpoints> = match is_remote {
            true => Arc::new(store_on(&server)),
            false => Arc::new(LogCheckpoints::new(&log, "shop")),
        };
        World {
            log,
            store,
            server,
            _dir: dir,
        }
    }

    /// The store of another process that uses the server.
    pub fn store_of_another(&self) -> Arc<dyn Checkpoints> {
        Arc::new(store_on(&self.server))
    }

    /// The same, of a client that waits as long for an answer.
    pub fn patient_store(&self, request_timeout: Duration) -> Arc<dyn Checkpoints> {
        let client = ClientConfig {
            request_timeout,
            ..ClientConfig::new(self.server.local_address().to_string())
        };
        Arc::new(ServerCheckpoints::new(&client, "shop").unwrap())
    }

    /// Whether no transaction is open in the changelog.
    pub fn is_decided(&self) -> bool {
        let stream = self.log.stream("shop.state.users").unwrap();
        (0..stream.partition_count()).all(|partition| {
            let producers = self.partition(partition).producers();
            producers.iter().all(|it| it.transaction.is_none())
        })
    }

    /// Waits until no transaction is open in the changelog: a server answers before the markers are there.
    pub fn wait_until_decided(&self) {
        let began = Instant::now();
        while !self.is_decided() {
            assert!(began.elapsed() < WAIT_MAX, "a transaction stays open");
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn open(&self) -> Result<Run, BoxError> {
        let changelog = self.store.changelog("shop", "users")?;
        Ok(Run(changelog.unwrap()))
    }

    /// Begins as the only rank.
    pub fn begin(&self, prepared: Option<&[u8]>) -> Run {
        self.begin_as(0, 1, prepared)
    }

    pub fn begin_as(&self, rank: u32, ranks: u32, prepared: Option<&[u8]>) -> Run {
        let mut run = self.open().unwrap();
        run.0.recover(&start(rank, ranks, prepared)).unwrap();
        run
    }

    /// Aborts all open transactions, as an administrator may, and waits until they have ended.
    pub fn abort_by_force(&self) {
        let client = Client::new(ClientConfig::new(self.server.local_address().to_string()));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let known = runtime.block_on(async {
            let mut open = client.transactions().await.unwrap();
            open.retain(|it| it.is_open());
            for open in &open {
                let ended = client.end_transaction(&open.id, open.identity, false);
                ended.await.unwrap();
            }
            open
        });
        let stream = self.log.stream("shop.state.users").unwrap();
        for partition in 0..stream.partition_count() {
            let partition = self.partition(partition);
            let open = partition.producers().into_iter();
            let open = open.filter(|it| it.transaction.is_some());
            // The server's coordinator appends the markers of those that it knows.
            for open in open.filter(|it| known.iter().all(|of| of.identity.producer != it.producer))
            {
                let marker = EndMarker {
                    producer_id: open.producer,
                    producer_epoch: open.epoch,
                    end: TransactionEnd::Abort,
                    coordinator_epoch: 0,
                };
                let appended = partition.append_marker(&marker).unwrap();
                partition.wait_durable(appended.next_offset).unwrap();
            }
        }
        self.wait_until_decided();
    }

    pub fn partition(&self, partition: u32) -> StreamPartition {
        let stream = self.log.stream("shop.state.users").unwrap();
        stream.partition(partition).unwrap()
    }

    pub fn set_policy(&self, policy: &str) {
        let policy = (CLEANUP_POLICY.to_owned(), policy.to_owned());
        let set = |config: &mut StreamConfig| config.settings.extend([policy]);
        self.log.alter_stream("shop.state.users", set).unwrap();
    }

    /// Returns the setting of the changelog's clock.
    pub fn clock(&self) -> Option<String> {
        let stream = self.log.stream("shop.state.users").unwrap();
        stream.config().settings.remove(KEYED_CLOCK)
    }

    /// Changes settings of the changelog beside the flow; one without a value is removed.
    pub fn set(&self, settings: &[(&str, Option<&str>)]) {
        let set = |config: &mut StreamConfig| {
            for (name, value) in settings {
                match value {
                    Some(value) => config.settings.insert((*name).into(), (*value).into()),
                    None => config.settings.remove(*name),
                };
            }
        };
        self.log.alter_stream("shop.state.users", set).unwrap();
    }

    /// Appends a record beside the flow, of a transaction if there is a producer.
    pub fn append(&self, partition: u32, key: Option<&[u8]>, producer: Option<Producer>) {
        self.append_value(partition, key, Some(b"?"), producer);
    }

    pub fn append_value(
        &self,
        partition: u32,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        producer: Option<Producer>,
    ) {
        let mut builder = ChunkBuilder::new(Compression::None);
        builder.set_transactional(producer.is_some());
        builder.push(Timestamp(0), key, value, &[]).unwrap();
        let partition = self.partition(partition);
        let chunk = builder.finish(producer).unwrap();
        let appended = partition.append(chunk).unwrap();
        partition.wait_durable(appended.next_offset).unwrap();
    }
}

fn store_on(server: &Server) -> ServerCheckpoints {
    let client = ClientConfig::new(server.local_address().to_string());
    ServerCheckpoints::new(&client, "shop").unwrap()
}

pub fn start(rank: u32, ranks: u32, prepared: Option<&[u8]>) -> SinkStart<'_> {
    SinkStart {
        flow: "shop",
        sink: "users",
        rank,
        ranks,
        takes_checkpoints: true,
        prepared,
    }
}

/// A changelog in use.
pub struct Run(pub Box<dyn Changelog>);

impl Run {
    /// Pushes changes, and waits until they are stored.
    pub fn push(&mut self, changes: &[(&[u8], Option<&[u8]>)]) -> Result<(), BoxError> {
        self.push_for(1, changes)
    }

    fn push_for(
        &mut self,
        checkpoint: u64,
        changes: &[(&[u8], Option<&[u8]>)],
    ) -> Result<(), BoxError> {
        let changes = changes
            .iter()
            .map(|(key, value)| change(checkpoint, key, *value, None));
        self.push_all(&changes.collect::<Vec<_>>())
    }

    fn push_all(&mut self, changes: &[Change]) -> Result<(), BoxError> {
        let mut left = changes;
        wait(|| {
            left = &left[self.0.push(left, Waker::noop())?..];
            Ok(left.is_empty())
        })?;
        wait(|| self.0.flush(Waker::noop()))
    }

    pub fn commit(&mut self, checkpoint: u64) {
        wait(|| self.0.commit(checkpoint, Waker::noop())).unwrap();
    }

    /// Pushes changes and commits them with a checkpoint. Returns the prepared bytes.
    pub fn store(&mut self, checkpoint: u64, changes: &[(&[u8], Option<&[u8]>)]) -> Vec<u8> {
        self.push_for(checkpoint, changes).unwrap();
        let prepared = self.0.prepare(checkpoint).unwrap();
        self.commit(checkpoint);
        prepared
    }

    /// As [`store`](Self::store), for values that end at an event time, or never.
    pub fn store_until(&mut self, checkpoint: u64, changes: &[(&[u8], Option<i64>)]) -> Vec<u8> {
        let changes = changes
            .iter()
            .map(|(key, expires)| change(checkpoint, key, Some(b"1"), *expires));
        self.push_all(&changes.collect::<Vec<_>>()).unwrap();
        let prepared = self.0.prepare(checkpoint).unwrap();
        self.commit(checkpoint);
        prepared
    }

    /// Restores as a flow that resumes from any checkpoint.
    pub fn restore(&mut self) -> Result<Table, BoxError> {
        self.restore_at(u64::MAX)
    }

    pub fn restore_at(&mut self, checkpoint: u64) -> Result<Table, BoxError> {
        let mut table = Table::new();
        self.0.restore(Some(checkpoint), &mut |key, value| {
            match value {
                Some(value) => table.insert(key.to_vec(), value.to_vec()),
                None => table.remove(key),
            };
            Ok(())
        })?;
        Ok(table)
    }
}

fn change(checkpoint: u64, key: &[u8], value: Option<&[u8]>, expires: Option<i64>) -> Change {
    Change {
        key: key.to_vec(),
        value: value.map(<[u8]>::to_vec),
        checkpoint,
        expires,
    }
}

pub fn wait(mut is_done: impl FnMut() -> Result<bool, BoxError>) -> Result<(), BoxError> {
    let started_at = Instant::now();
    while !is_done()? {
        assert!(started_at.elapsed() < WAIT_MAX, "it takes too long");
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

pub fn table(entries: &[(&[u8], &[u8])]) -> Table {
    let owned = entries
        .iter()
        .map(|(key, value)| (key.to_vec(), value.to_vec()));
    owned.collect()
}

/// A producer that no flow has.
pub fn foreign_producer() -> Producer {
    Producer {
        id: ProducerId(4711),
        epoch: millstream_base::ProducerEpoch(0),
        sequence: millstream_base::Sequence(0),
    }
}
