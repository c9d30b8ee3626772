//! Changes through the memory of a server on this machine.

use std::sync::Arc;
use std::time::Duration;

use millstream_base::ByteSize;
use millstream_share::layout;
use millstream_wire::native::{WatchKeysRequest, WatchKeysResponse};
use tokio::sync::mpsc;

use super::changes::{Changes, Received};
use super::{KeyedStream, READ};
use crate::connection::Connection;
use crate::error::ClientError;
use crate::local;
use crate::push::{Delivered, Offer, Session, SharedSource};

/// About how many bytes of chunks the server may hand over before they are read.
const AHEAD_BYTES: ByteSize = ByteSize(4 << 20);

/// The most pieces that are read before the watch takes them.
const PIECES_MAX: usize = 2;

/// Changes that a thread of its own reads. The thread sleeps while there are none, and ends when this is dropped. A watch that takes
/// nothing holds no memory of the server for longer than the server allows: it then takes the memory back, and the watch
/// begins again where it was.
pub struct SharedFeed {
    session: Arc<Session>,
    received: mpsc::Receiver<Result<Received, ClientError>>,
}

/// Begins a watch in shared memory.
///
/// # Errors
/// When the server refuses the watch, is on another machine, or does not share its memory.
pub async fn begin(
    stream: &KeyedStream,
    server: &Connection,
    request: WatchKeysRequest,
) -> Result<(SharedSource, WatchKeysResponse), ClientError> {
    let connection = local::connect(server, stream.client.config()).await?;
    let request = WatchKeysRequest {
        ahead_bytes: AHEAD_BYTES,
        layout: layout::VERSION,
        ..request
    };
    let mut answer = connection.ask(request).await?;
    stream.check(READ, answer.error_code, answer.error_message.as_deref())?;
    let offer = Offer {
        subscription: answer.subscription,
        shared: answer.shared.take(),
        not_shared: answer.not_shared.take(),
    };
    let places = [u32::try_from(answer.lanes.len()).unwrap_or(u32::MAX)];
    let mut sources = Session::open(connection, offer, &places).await?;
    match sources.pop() {
        Some(source) => Ok((source, answer)),
        None => Err(stream.violation("it shares memory without a ring".to_owned())),
    }
}

impl SharedFeed {
    pub fn new(source: SharedSource, changes: Changes) -> Result<SharedFeed, ClientError> {
        let session = Arc::clone(source.session());
        let (sender, received) = mpsc::channel(PIECES_MAX);
        let reader = Reader {
            source,
            changes,
            sender,
        };
        let thread = std::thread::Builder::new().name("millstream-watch".to_owned());
        let spawned = thread.spawn(move || reader.run());
        spawned.map_err(|error| ClientError::NotShared {
            address: session.address().to_string(),
            why: format!("there is no thread to wait on: {error}"),
        })?;
        Ok(SharedFeed { session, received })
    }

    /// Waits for the next changes. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Received, ClientError> {
        let received = self.received.recv().await;
        received.unwrap_or_else(|| {
            let address = self.session.address().to_string();
            Err(ClientError::Disconnected { address })
        })
    }
}

impl Drop for SharedFeed {
    fn drop(&mut self) {
        self.session.close();
    }
}

struct Reader {
    source: SharedSource,
    changes: Changes,
    sender: mpsc::Sender<Result<Received, ClientError>>,
}

impl Reader {
    fn run(mut self) {
        loop {
            let received = self.next();
            let is_last = received.is_err();
            if self.sender.blocking_send(received).is_err() || is_last {
                return;
            }
        }
    }

    /// Copies the next changes, so that the server has its memory back before the watch takes them.
    fn next(&mut self) -> Result<Received, ClientError> {
        loop {
            match self.source.take(Duration::MAX)? {
                None => {}
                Some(Delivered::Piece(piece)) => return self.changes.shared(&piece),
                Some(Delivered::Refused { code, .. }) => return Err(self.changes.refused(code)),
            }
        }
    }
}
