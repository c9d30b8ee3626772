//! Watches the changelog of a state element in a stream of a server.

use std::sync::Arc;
use std::time::Duration;

use millstream_base::{KeyEvent, KeyRange, KeyedVersion, Offset, WatchFrom, WatchPositions};
use millstream_client::{
    Client, ClientError, Isolation, KeyWatch, Start, WatchEvent, WatchFrom as From, WatchedChange,
};
use millstream_flow::{ChangelogWatch, WatchError, WatchFuture, WatchedChangelog};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::changelog::of_stream;
use crate::network::Network;

/// The events that wait for the reader.
const AHEAD_MAX: usize = 64;

/// The time after which a reader learns that the watch has passed further records without an event.
const QUIET: Duration = Duration::from_millis(50);

/// The changelog of a state element in a stream of a server.
#[derive(Clone)]
pub struct ServerWatched {
    client: Client,
    /// The thread on which watches work.
    network: Arc<Network>,
    stream: Arc<str>,
}

impl ServerWatched {
    pub fn new(client: &Client, network: &Arc<Network>, stream: String) -> ServerWatched {
        ServerWatched {
            client: client.clone(),
            network: Arc::clone(network),
            stream: stream.into(),
        }
    }

    fn failed(&self, error: ClientError) -> WatchError {
        match error {
            ClientError::MadeAgain { stream } => WatchError::MadeAgain { stream },
            error => WatchError::Failed(of_stream(&self.stream, error.into())),
        }
    }

    /// Begins a watch. Returns why changes were lost, if it begins with a snapshot for that reason.
    async fn begin(
        &self,
        range: &KeyRange,
        from: WatchFrom,
    ) -> Result<(KeyWatch, Option<String>), ClientError> {
        let keyed = self.client.keyed(&self.stream);
        let from = match from {
            WatchFrom::Now => From::Now,
            WatchFrom::Snapshot => From::Snapshot,
            WatchFrom::After(positions) => From::Position(positions),
        };
        let mut watch = keyed.watch(range.clone(), from);
        match watch.begin().await {
            Ok(()) => Ok((watch, None)),
            Err(ClientError::ChangesLost { why }) => {
                let mut watch = keyed.watch(range.clone(), From::Snapshot);
                watch.begin().await?;
                Ok((watch, Some(why)))
            }
            Err(error) => Err(error),
        }
    }

    /// Hands events to a reader, until it is gone or the watch fails.
    async fn run(self, range: KeyRange, mut watch: KeyWatch, sender: mpsc::Sender<Received>) {
        let mut last = watch.positions().cloned();
        loop {
            let next = tokio::select! {
                next = timeout(QUIET, watch.next()) => next,
                () = sender.closed() => return,
            };
            let positions = watch.positions().cloned();
            let event = match next {
                Ok(Ok(event)) => Some(event_of(event)),
                Ok(Err(ClientError::ChangesLost { why })) => {
                    watch = self
                        .client
                        .keyed(&self.stream)
                        .watch(range.clone(), From::Snapshot);
                    Some(KeyEvent::ChangesLost { why })
                }
                Ok(Err(error)) => {
                    // A reader that is gone does not want it.
                    let _ = sender.send(Err(self.failed(error))).await;
                    return;
                }
                Err(_) if positions == last => continue,
                Err(_) => None,
            };
            last.clone_from(&positions);
            if sender.send(Ok((event, positions))).await.is_err() {
                return;
            }
        }
    }

    async fn read_ends(&self) -> Result<Vec<Offset>, ClientError> {
        let topic = self.client.topic(&self.stream).await?;
        let places: Vec<_> = topic.partitions().collect();
        let asked: Vec<_> = places
            .iter()
            .map(|it| (it.clone(), Start::Latest))
            .collect();
        let ends = self.client.offsets(&asked, Isolation::Uncommitted).await?;
        let ends = places.iter().map(|it| ends.get(it).copied());
        Ok(ends.map(Option::unwrap_or_default).collect())
    }
}

/// An event, if there is one, and the position behind it; no position within a snapshot.
type Received = Result<(Option<KeyEvent>, Option<WatchPositions>), WatchError>;

fn ended() -> WatchError {
    WatchError::Failed("the connection to the server has ended".into())
}

impl WatchedChangelog for ServerWatched {
    fn watch(
        &self,
        range: KeyRange,
        from: WatchFrom,
    ) -> WatchFuture<'static, Box<dyn ChangelogWatch>> {
        let (begun, begins) = oneshot::channel();
        let (sender, receiver) = mpsc::channel(AHEAD_MAX);
        let watched = self.clone();
        self.network.spawn(async move {
            let (watch, lost) = match watched.begin(&range, from).await {
                Ok(begun) => begun,
                Err(error) => {
                    let _ = begun.send(Err(watched.failed(error)));
                    return;
                }
            };
            let positions = watch.positions().cloned();
            let is_wanted = begun.send(Ok((positions, lost))).is_ok();
            if is_wanted {
                watched.run(range, watch, sender).await;
            }
        });
        Box::pin(async move {
            let (positions, lost) = begins.await.map_err(|_| ended())??;
            let watch = ServerWatch {
                receiver,
                lost,
                is_in_snapshot: positions.is_none(),
                positions: positions.unwrap_or(NOWHERE),
            };
            Ok(Box::new(watch) as Box<dyn ChangelogWatch>)
        })
    }

    fn ends(&self) -> WatchFuture<'static, Vec<Offset>> {
        let (sender, receiver) = oneshot::channel();
        let watched = self.clone();
        self.network.spawn(async move {
            let ends = watched.read_ends().await;
            let _ = sender.send(ends.map_err(|error| watched.failed(error)));
        });
        Box::pin(async move { receiver.await.map_err(|_| ended())? })
    }
}

/// The position within a snapshot, which no reader asks for.
const NOWHERE: WatchPositions = WatchPositions {
    stream: [0; 16],
    partitions: Vec::new(),
};

/// A watch on the thread for the network.
struct ServerWatch {
    receiver: mpsc::Receiver<Received>,
    /// Why changes were lost, until it is returned.
    lost: Option<String>,
    positions: WatchPositions,
    is_in_snapshot: bool,
}

impl ServerWatch {
    async fn next_event(&mut self) -> Result<Option<KeyEvent>, WatchError> {
        if let Some(why) = self.lost.take() {
            return Ok(Some(KeyEvent::ChangesLost { why }));
        }
        let (event, positions) = self.receiver.recv().await.ok_or_else(ended)??;
        self.is_in_snapshot = positions.is_none();
        self.positions = positions.unwrap_or(NOWHERE);
        Ok(event)
    }
}

impl ChangelogWatch for ServerWatch {
    fn next(&mut self) -> WatchFuture<'_, Option<KeyEvent>> {
        Box::pin(self.next_event())
    }

    fn positions(&self) -> WatchPositions {
        self.positions.clone()
    }

    fn is_in_snapshot(&self) -> bool {
        self.is_in_snapshot
    }
}

fn event_of(event: WatchEvent) -> KeyEvent {
    match event {
        WatchEvent::SnapshotBegins => KeyEvent::SnapshotBegins,
        WatchEvent::SnapshotEnds => KeyEvent::SnapshotEnds,
        WatchEvent::Change(WatchedChange {
            partition,
            version,
            timestamp,
            key,
            value,
            expires_at,
        }) => KeyEvent::Change {
            key,
            version: KeyedVersion { partition, version },
            timestamp,
            value,
            expires_at,
        },
    }
}
