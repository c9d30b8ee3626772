//! The changelog of a state element in a stream of a server.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::Waker;

use millstream_base::{ByteSize, Timestamp};
use millstream_client::native::{FurtherSetting, StreamSettings};
use millstream_client::{
    Client, ClientConfig, ClientError, ProducerConfig, ResponseError, StrBytes,
};
use millstream_flow::{
    BoxError, Change, Changelog, ChangelogReader, RestoreChange, Sink, SinkStart,
};
use millstream_log::{CLEANUP_POLICY, COMPACT, KEYED_CLOCK, KEYED_CLOCK_MIN, StreamConfig};

use super::changelog::{
    ChangelogError, Encode, PARTITIONS, check_settings, of_stream, stream_name, text_of_key,
};
use super::changelog_clock::{ChangelogClock, lowered, raised, time_of};
use super::server_reader::ServerReader;
use super::server_records;
use crate::flow_transactions::FlowTransactionId;
use crate::network::Network;
use crate::outage;
use crate::sink::{ServerSink, ServerSinkError};

/// The setting that says when a producer is answered.
const DURABILITY: &str = "millstream.durability";

/// The setting that bounds a change.
const CHUNK_BYTES_MAX: &str = "max.message.bytes";

/// Sends the changes in transactions, and reads them back.
pub struct ServerChangelog {
    flow: String,
    stream: Arc<str>,
    clock: ChangelogClock,
    sink: ServerSink<Encode>,
    client: Client,
    /// The flow's transactions of this element, once it has begun.
    id: Option<FlowTransactionId>,
    /// The largest change of those that are not prepared.
    largest: Option<Change>,
    network: Arc<Network>,
}

impl ServerChangelog {
    /// Opens the changelog of a state element; creates its stream if it is missing.
    pub fn open(
        server: &ClientConfig,
        flow: &str,
        element: &str,
    ) -> Result<ServerChangelog, BoxError> {
        let network = Arc::new(Network::start("millstream-state")?);
        let client = Client::new(server.clone());
        let name = stream_name(flow, element);
        let time = KEYED_CLOCK_MIN.0.to_string();
        let further = [(KEYED_CLOCK, &*time)];
        network.wait(create(&client, &name, PARTITIONS, &further))?;
        let given = network.wait(give_clock(&client, &name));
        let clock = ChangelogClock::of(&name, given);
        let sink = ServerSink::of_client(
            client.clone(),
            Arc::clone(&network),
            ProducerConfig::default(),
            &name,
            clock.encode(),
        );
        Ok(ServerChangelog {
            flow: flow.to_owned(),
            stream: name.into(),
            clock,
            sink,
            client,
            id: None,
            largest: None,
            network,
        })
    }

    /// Lets the sink take changes again after an error: the flow pushes the same changes for the next checkpoint.
    fn checked<T>(&mut self, result: Result<T, BoxError>) -> Result<T, BoxError> {
        result.map_err(|error| {
            let error = self.explained(error);
            self.give_up();
            error
        })
    }

    /// Names another run, or the change that is too large, and marks an error that may pass.
    fn explained(&self, error: BoxError) -> BoxError {
        let Some(ServerSinkError { error: cause, .. }) = error.downcast_ref() else {
            return error;
        };
        if cause.is_fenced() {
            let lost =
                async { Ok::<_, Infallible>(server_records::lost(&self.client, &self.flow).await) };
            let Ok(lost) = self.network.wait(lost);
            return lost.into();
        }
        match &self.largest {
            Some(largest) if is_too_large(cause) => self.too_large(largest).into(),
            _ => {
                let cause = cause.clone();
                outage::of_write(self.client.config(), &cause, error)
            }
        }
    }

    fn too_large(&self, change: &Change) -> ChangelogError {
        let settings = self.client.settings(&self.stream, &[CHUNK_BYTES_MAX]);
        let bytes_max = self.network.wait(settings).ok();
        let bytes_max = bytes_max.and_then(|settings| settings.get(CHUNK_BYTES_MAX)?.parse().ok());
        ChangelogError::TooLarge {
            stream: self.stream.to_string(),
            key: text_of_key(&change.key),
            bytes: ByteSize(size_of_change(change) as u64),
            bytes_max: bytes_max.map_or("less".to_owned(), |bytes| ByteSize(bytes).to_string()),
        }
    }

    async fn reader_of(&self, resumed: Option<u64>) -> Result<ServerReader, BoxError> {
        let own = self.id.as_ref();
        ServerReader::new(&self.client, &self.network, &self.stream, own, resumed).await
    }
}

impl Sink<Change> for ServerChangelog {
    fn push(&mut self, changes: &[Change], waker: &Waker) -> Result<usize, BoxError> {
        let pushed = self.sink.push(changes, waker);
        let taken = self.checked(pushed)?;
        let pushed = changes[..taken].iter();
        if let Some(largest) = pushed.max_by_key(|change| size_of_change(change))
            && self.largest.as_ref().map_or(0, size_of_change) < size_of_change(largest)
        {
            self.largest = Some(largest.clone());
        }
        Ok(taken)
    }

    fn flush(&mut self, waker: &Waker) -> Result<bool, BoxError> {
        let flushed = Sink::<Change>::flush(&mut self.sink, waker);
        self.checked(flushed)
    }

    fn waits_for_commit(&self) -> bool {
        Sink::<Change>::waits_for_commit(&self.sink)
    }

    fn recover(&mut self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        if let Some(transaction) = self.sink.aborted(start.prepared)? {
            return Err(ChangelogError::Aborted {
                stream: self.stream.to_string(),
                transaction,
            }
            .into());
        }
        self.id = Some(FlowTransactionId::of(start));
        Sink::<Change>::recover(&mut self.sink, start)
    }

    fn prepare(&mut self, checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        let prepared = Sink::<Change>::prepare(&mut self.sink, checkpoint);
        self.checked(prepared).inspect(|_| self.largest = None)
    }

    fn commit(&mut self, checkpoint: u64, waker: &Waker) -> Result<bool, BoxError> {
        Sink::<Change>::commit(&mut self.sink, checkpoint, waker)
    }
}

impl Changelog for ServerChangelog {
    fn restore(
        &mut self,
        resumed: Option<u64>,
        each: &mut RestoreChange<'_>,
    ) -> Result<(), BoxError> {
        let restored = self.network.wait(async {
            if resumed.is_none() {
                begin_clock(&self.client, &self.stream).await?;
            }
            self.reader_of(resumed).await?.read(each).await
        });
        restored.map_err(|error| of_stream(&self.stream, error))
    }

    fn reader(
        &mut self,
        resumed: Option<u64>,
    ) -> Result<Option<Arc<dyn ChangelogReader>>, BoxError> {
        let reader = self.network.wait(self.reader_of(resumed));
        let reader = reader.map_err(|error| of_stream(&self.stream, error))?;
        Ok(Some(Arc::new(reader)))
    }

    fn give_up(&mut self) {
        self.largest = None;
        self.sink.give_up();
    }

    fn passed(&mut self, time: i64) -> Result<(), BoxError> {
        let (client, stream) = (&self.client, &self.stream);
        self.clock.raise(stream, || {
            self.network.wait(raise_clock(client, stream, time))
        });
        Ok(())
    }
}

/// Gives a stream a clock of its own, if an earlier version has created it without one.
async fn give_clock(client: &Client, stream: &str) -> Result<(), BoxError> {
    match time_of(clock_of(client, stream).await?.as_deref()) {
        None => set_clock(client, stream, KEYED_CLOCK_MIN).await,
        Some(_) => Ok(()),
    }
}

/// Sets the clock of a stream that a flow begins anew.
async fn begin_clock(client: &Client, stream: &str) -> Result<(), BoxError> {
    match lowered(clock_of(client, stream).await?.as_deref()) {
        Some(time) => set_clock(client, stream, time).await,
        None => Ok(()),
    }
}

async fn raise_clock(client: &Client, stream: &str, time: i64) -> Result<(), BoxError> {
    match raised(clock_of(client, stream).await?.as_deref(), time) {
        Some(time) => set_clock(client, stream, time).await,
        None => Ok(()),
    }
}

/// Returns the setting of a stream's clock.
async fn clock_of(client: &Client, stream: &str) -> Result<Option<String>, BoxError> {
    let mut settings = client.settings(stream, &[KEYED_CLOCK]).await?;
    Ok(settings.remove(KEYED_CLOCK))
}

async fn set_clock(client: &Client, stream: &str, time: Timestamp) -> Result<(), BoxError> {
    let setting = (KEYED_CLOCK, Some(time.0.to_string()));
    Ok(client.alter_settings(stream, &[setting]).await?)
}

fn size_of_change(change: &Change) -> usize {
    change.key.len() + change.value.as_ref().map_or(0, Vec::len)
}

fn is_too_large(error: &ClientError) -> bool {
    match error {
        ClientError::AbortNeeded(error) | ClientError::Behind(error) => is_too_large(error),
        ClientError::RecordTooLarge { .. } => true,
        error => matches!(
            error.response_error(),
            Some(ResponseError::MessageTooLarge | ResponseError::RecordListTooLarge)
        ),
    }
}

/// Creates a keyed stream of the flow with further settings, unless it exists; then checks it.
pub async fn create(
    client: &Client,
    name: &str,
    partitions: u32,
    further: &[(&str, &str)],
) -> Result<(), BoxError> {
    let checked = [CLEANUP_POLICY, DURABILITY];
    let found = match client.settings(name, &checked).await {
        Err(error) if error.is_unknown_stream() => {
            match client
                .create_stream(name, settings(partitions, further))
                .await
            {
                Ok(()) => {}
                // Another rank was faster.
                Err(error) if error.response_error() == Some(ResponseError::TopicAlreadyExists) => {
                }
                Err(error) => return Err(of_stream(name, error.into())),
            }
            client.settings(name, &checked).await
        }
        found => found,
    };
    let found = found.map_err(|error| of_stream(name, error.into()))?;
    let setting = |name| found.get(name).map(String::as_str);
    Ok(check_settings(
        name,
        setting(CLEANUP_POLICY),
        setting(DURABILITY),
    )?)
}

/// The settings of a new stream: those that a log gives to streams by default, compaction, and further ones.
fn settings(partitions: u32, further: &[(&str, &str)]) -> StreamSettings {
    let config = StreamConfig::default();
    let further = [(CLEANUP_POLICY, COMPACT)].iter().chain(further);
    let further = further.map(|(name, value)| FurtherSetting {
        name: StrBytes::from_string((*name).to_owned()),
        value: StrBytes::from_string((*value).to_owned()),
    });
    StreamSettings {
        streamlets: partitions,
        lanes: config.lanes,
        virtual_logs: config.virtual_logs,
        group_segments: config.group_segments,
        segment_bytes: config.segment,
        further: further.collect(),
        ..StreamSettings::default()
    }
}
