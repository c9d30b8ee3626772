//! The records of a flow's checkpoints on a server, and the run that may append to them: the one that began last.
//!
//! Each record is a transaction of the id `flow/<flow>`. A run that begins as its producer fences the run before, waits for
//! a commit of it that is under way, and then names itself under a key of its own. So a dead run
//! does not block a later one, and no record follows the last one that a later run reads: the server refuses commits of
//! earlier runs.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use millstream_client::{
    Client, ClientError, ProducerConfig, ProducerRecord, TransactionConfig, TransactionalProducer,
};
use millstream_flow::{BoxError, FinalError};

use super::changelog::of_stream;
use super::record_stream::{RECORD, stream_name};
use super::server_changelog::create;

/// The key of the run that may append records.
const RUN: &[u8] = b"run";

/// The file in which Linux has the name of the machine.
const MACHINE: &str = "/proc/sys/kernel/hostname";

/// The most attempts of a run to begin as the producer before it names itself: an earlier run may fence it by beginning, too.
const BEGINS_MAX: usize = 10;

/// The number of times that a run looks for its own name, or for the name of the run that fenced it, …
const LOOKS_MAX: usize = 500;

/// … and the pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// A run that may append records, unless another one has begun since.
pub struct ServerRun {
    /// Describes the run for others, and distinguishes it from all others.
    name: String,
    /// `None` after an error: the outcome of the last transaction may be unknown.
    producer: Option<TransactionalProducer>,
}

impl ServerRun {
    /// Begins in the place of the run before.
    pub async fn begin(client: &Client, flow: &str) -> Result<ServerRun, BoxError> {
        let stream = stream_name(flow);
        create(client, &stream, 1, &[]).await?;
        let name = this_run();
        let mut tries = 0;
        loop {
            let producer = begin_as_producer(client, flow).await?;
            match put(&producer, &stream, RUN, name.as_bytes()).await {
                Ok(()) => {
                    let producer = Some(producer);
                    let run = ServerRun { name, producer };
                    run.wait_until_named(client, flow).await?;
                    return Ok(run);
                }
                Err(error) if !error.is_fenced() || tries == BEGINS_MAX => {
                    return Err(of_stream(&stream, error.into()));
                }
                Err(_) => tries += 1,
            }
        }
    }

    /// Appends a record. After an error other than a [`FinalError`] it may have been stored or not.
    pub async fn append(
        &mut self,
        client: &Client,
        flow: &str,
        record: &[u8],
    ) -> Result<(), BoxError> {
        let producer = match self.producer.take() {
            Some(producer) => producer,
            None => self.begin_again(client, flow).await?,
        };
        let stream = stream_name(flow);
        match put(&producer, &stream, RECORD, record).await {
            Ok(()) => {
                self.producer = Some(producer);
                Ok(())
            }
            Err(error) if error.is_fenced() => {
                // A run that begins names itself at once. If none does, the transaction took too long.
                for _ in 0..LOOKS_MAX {
                    self.check(client, flow).await?;
                    tokio::time::sleep(LOOK_PAUSE).await;
                }
                Err(of_stream(&stream, error.into()))
            }
            Err(error) => Err(of_stream(&stream, error.into())),
        }
    }

    /// Waits until readers see this run's name: the server answers a commit before it writes the markers.
    async fn wait_until_named(&self, client: &Client, flow: &str) -> Result<(), BoxError> {
        for _ in 0..LOOKS_MAX {
            match self.check(client, flow).await {
                // Another name, or none yet.
                Err(error) if error.is::<FinalError>() => tokio::time::sleep(LOOK_PAUSE).await,
                found => return found,
            }
        }
        self.check(client, flow).await
    }

    /// Begins as the producer once more, which ends the last transaction.
    async fn begin_again(
        &self,
        client: &Client,
        flow: &str,
    ) -> Result<TransactionalProducer, BoxError> {
        // First: a run that has begun since is not fenced without need.
        self.check(client, flow).await?;
        let producer = begin_as_producer(client, flow).await?;
        self.check(client, flow).await?;
        Ok(producer)
    }

    /// Fails if another run has begun since.
    async fn check(&self, client: &Client, flow: &str) -> Result<(), BoxError> {
        match named_run(client, flow).await? {
            Some(name) if name == self.name => Ok(()),
            other => Err(lost_to(flow, other.as_deref()).into()),
        }
    }
}

/// Returns the last record of a flow.
pub async fn last(client: &Client, flow: &str) -> Result<Option<Vec<u8>>, BoxError> {
    get(client, flow, RECORD).await
}

/// Returns the error of a run that another one has fenced.
pub async fn lost(client: &Client, flow: &str) -> FinalError {
    let name = named_run(client, flow).await.ok().flatten();
    lost_to(flow, name.as_deref())
}

fn lost_to(flow: &str, name: Option<&str>) -> FinalError {
    let name = name.and_then(|name| name.lines().next());
    let name = name.map(|name| format!(", {name}")).unwrap_or_default();
    FinalError(format!(
        "another run of flow \"{flow}\"{name} has begun since and continues in the place of this one; \
         let one of them run, or give this flow another name"
    ))
}

/// Returns the name of the run that began last.
async fn named_run(client: &Client, flow: &str) -> Result<Option<String>, BoxError> {
    let name = get(client, flow, RUN).await?;
    Ok(name.map(|name| String::from_utf8_lossy(&name).into_owned()))
}

async fn get(client: &Client, flow: &str, key: &[u8]) -> Result<Option<Vec<u8>>, BoxError> {
    let stream = stream_name(flow);
    match client.keyed(&stream).get(key).await {
        Ok(found) => Ok(found.map(|found| found.value.to_vec())),
        Err(error) if error.is_unknown_stream() => Ok(None),
        Err(error) => Err(of_stream(&stream, error.into())),
    }
}

async fn begin_as_producer(
    client: &Client,
    flow: &str,
) -> Result<TransactionalProducer, ClientError> {
    let transaction = TransactionConfig {
        // Other ids of a flow have more parts.
        id: format!("flow/{}", crate::flow_transactions::escape(flow)),
        timeout: Duration::from_secs(60),
        two_phase: false,
    };
    TransactionalProducer::new(client, ProducerConfig::default(), transaction).await
}

async fn put(
    producer: &TransactionalProducer,
    stream: &str,
    key: &[u8],
    value: &[u8],
) -> Result<(), ClientError> {
    producer.begin()?;
    let record = ProducerRecord {
        topic: stream,
        partition: None,
        timestamp: None,
        key: Some(key),
        value: Some(value),
        headers: &[],
    };
    // The commit waits for it.
    drop(producer.send(record).await?);
    producer.commit().await
}

/// Returns a line that describes this run for others, and one that no other run has.
fn this_run() -> String {
    let process = std::process::id();
    let unique = RandomState::new().build_hasher().finish();
    let machine = std::fs::read_to_string(MACHINE);
    let machine = machine.map(|machine| format!(" on {}", machine.trim()));
    format!(
        "process {process}{}\n{unique:016x}",
        machine.unwrap_or_default()
    )
}
