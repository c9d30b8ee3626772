//! A subscription through shared memory, and its connection.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millstream_base::StreamletIndex;
use millstream_base::{ByteSize, Cursor, GroupId, Offset, Position, SegmentIndex, StreamId};
use millstream_record::Filter;
use millstream_share::{
    Announced, Descriptor, Hold, Kind, Mapping, SourceRing, State, Subscription, Taken, layout,
};
use millstream_wire::native::{
    ReceiveRequest, ReceiveResponse, SharedMemory, SubscribeRequest, SubscribedSource,
};
use millstream_wire::{ResponseError, StrBytes};

use super::lease::Lease;
use crate::connection::{Connection, Pending};
use crate::error::ClientError;
use crate::local;
use crate::reason::reason;

/// The code with which this side ends the subscription.
const CLOSED: i32 = 0;

/// The terms of a subscription.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub filter: Option<StrBytes>,
    /// The approximate number of bytes returned at once.
    pub bytes_max: u32,
    /// The approximate number of bytes that each source may hold.
    pub ahead_bytes: ByteSize,
}

impl Terms {
    pub fn new(filter: Option<&Filter>, bytes_max: usize, ahead_bytes: usize) -> Terms {
        Terms {
            filter: filter.map(|filter| StrBytes::from_string(filter.to_string())),
            bytes_max: u32::try_from(bytes_max).unwrap_or(u32::MAX),
            ahead_bytes: ByteSize(ahead_bytes as u64),
        }
    }

    pub fn request(&self, sources: Vec<SubscribedSource>, layout: u32) -> SubscribeRequest {
        SubscribeRequest {
            sources,
            filter: self.filter.clone(),
            bytes_max: self.bytes_max,
            ahead_bytes: self.ahead_bytes,
            layout,
        }
    }
}

/// A subscription. The server ends it when this and all records from it are dropped.
#[derive(Debug)]
pub(crate) struct Session {
    subscription: Subscription,
    pool: Arc<Mapping>,
    /// The reason of the end; set before the subscription is closed.
    ended: Arc<OnceLock<ClientError>>,
    address: Arc<str>,
    /// Stays open while any record is in use.
    _connection: Connection,
}

/// The answer of a server that was asked to share memory.
pub(crate) struct Offer {
    pub subscription: u32,
    pub shared: Option<SharedMemory>,
    pub not_shared: Option<StrBytes>,
}

/// One source of a subscription.
#[derive(Debug)]
pub(crate) struct SharedSource {
    ring: SourceRing,
    session: Arc<Session>,
}

/// An item that a source receives.
pub(crate) enum Delivered {
    Piece(Piece),
    Refused {
        place: u32,
        code: i16,
        /// The earliest stored offset, if the partition was refused for its offset.
        earliest: Offset,
    },
}

/// Chunks of one partition, or the end of the search if there were none.
#[derive(Debug)]
pub(crate) struct Piece {
    pub place: u32,
    pub from: Offset,
    pub next: Offset,
    pub end: Offset,
    /// The position at which reading continues. It does not name the stream.
    pub cursor: Cursor,
    pub lease: Option<Lease>,
}

impl Session {
    /// Subscribes, if `server` is on this machine.
    ///
    /// # Errors
    /// When it is not, or does not share its memory.
    pub async fn begin(
        server: &Connection,
        config: &crate::ClientConfig,
        sources: Vec<SubscribedSource>,
        terms: &Terms,
    ) -> Result<Vec<SharedSource>, ClientError> {
        let connection = local::connect(server, config).await?;
        // A shared group reads any partition of the stream.
        let places = sources.iter().map(|source| match source.lanes.len() {
            0 => u32::MAX,
            lanes => lanes as u32,
        });
        let places: Vec<u32> = places.collect();
        let answer = connection
            .ask(terms.request(sources, layout::VERSION))
            .await?;
        let message = answer.error_message.as_deref();
        ClientError::check(answer.error_code, message, "a subscription")?;
        let offer = Offer {
            subscription: answer.subscription,
            shared: answer.shared,
            not_shared: answer.not_shared,
        };
        Session::open(connection, offer, &places).await
    }

    /// Takes the memory that a server offers on its local socket. Each source has this number of slots.
    ///
    /// # Errors
    /// When the server does not share its memory.
    pub async fn open(
        connection: Connection,
        offer: Offer,
        places: &[u32],
    ) -> Result<Vec<SharedSource>, ClientError> {
        let receive = ReceiveRequest {
            subscription: offer.subscription,
            source: 0,
            bytes_max: 0,
        };
        let (subscription, rings, pool) = open(&connection, offer, places)?;
        let end = connection.send(receive).await?;
        let ended = Arc::new(OnceLock::new());
        let address = Arc::clone(connection.address());
        tokio::spawn(watch(
            end,
            Arc::clone(&address),
            Arc::clone(&ended),
            subscription.clone(),
        ));
        let session = Arc::new(Session {
            subscription,
            pool,
            ended,
            address,
            _connection: connection,
        });
        let source = |ring| SharedSource {
            ring,
            session: Arc::clone(&session),
        };
        Ok(rings.into_iter().map(source).collect())
    }

    /// Returns whether the records returned are still in place.
    pub fn state(&self) -> State {
        self.subscription.state()
    }

    /// Ends the subscription: waiting threads return.
    pub fn close(&self) {
        self.subscription.close(CLOSED);
    }

    pub fn address(&self) -> &Arc<str> {
        &self.address
    }

    /// Returns the error of a subscription that ended with this code.
    pub fn end(&self, code: i32) -> ClientError {
        let reason = self.ended.get().cloned();
        reason.unwrap_or_else(|| ended(&self.address, i16::try_from(code).unwrap_or(-1), None))
    }
}

impl SharedSource {
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns the next item; waits for it on this thread, up to `timeout`.
    ///
    /// # Errors
    /// When the subscription has ended, or the server violates the layout.
    pub fn take(&mut self, timeout: Duration) -> Result<Option<Delivered>, ClientError> {
        let broken = |what: String| ClientError::Protocol {
            address: self.session.address.to_string(),
            what,
        };
        let taken = self.ring.take(timeout);
        let (descriptor, hold) = match taken.map_err(|error| broken(error.to_string()))? {
            Taken::TimedOut => return Ok(None),
            Taken::Ended(code) => return Err(self.session.end(code)),
            Taken::Descriptor(descriptor, hold) => (descriptor, hold),
        };
        let lease = match descriptor.kind {
            Kind::Refused => {
                return Ok(Some(Delivered::Refused {
                    place: descriptor.place,
                    code: i16::try_from(descriptor.code).unwrap_or(-1),
                    earliest: Offset(descriptor.next),
                }));
            }
            Kind::Moved => None,
            Kind::Chunks => Some(self.lease(&descriptor, hold)?),
        };
        Ok(Some(Delivered::Piece(Piece {
            place: descriptor.place,
            from: Offset(descriptor.from),
            next: Offset(descriptor.next),
            end: Offset(descriptor.end),
            cursor: cursor(&descriptor),
            lease,
        })))
    }

    fn lease(&self, descriptor: &Descriptor, hold: Hold) -> Result<Lease, ClientError> {
        let Session { pool, address, .. } = &*self.session;
        let slice = pool.slice(descriptor.position, descriptor.bytes);
        let slice = slice.ok_or_else(|| ClientError::Protocol {
            address: address.to_string(),
            what: "it places chunks outside of its shared memory".to_owned(),
        })?;
        Ok(Lease::new(hold, slice, Arc::clone(&self.session)))
    }
}

fn cursor(descriptor: &Descriptor) -> Cursor {
    Cursor {
        stream: StreamId::default(),
        streamlet: StreamletIndex(descriptor.cursor.streamlet),
        group: GroupId(descriptor.cursor.group),
        segment: SegmentIndex(descriptor.cursor.segment),
        position: Position(descriptor.cursor.position),
    }
}

/// Opens the files that the server shares.
fn open(
    connection: &Connection,
    offer: Offer,
    places: &[u32],
) -> Result<(Subscription, Vec<SourceRing>, Arc<Mapping>), ClientError> {
    let not_shared = |why| ClientError::NotShared {
        address: connection.address().to_string(),
        why,
    };
    let why_not = offer.not_shared.as_ref().map(ToString::to_string);
    let files = offer
        .shared
        .ok_or_else(|| not_shared(why_not.unwrap_or_default()))?;
    let ByteSize(pool_bytes) = files.pool_bytes;
    let announced = Announced {
        identity: files.identity,
        pool_bytes,
        places,
    };
    // First the file that identifies the server.
    let opened = Subscription::open(Path::new(files.rings_path.as_str()), announced);
    let (subscription, rings) = opened.map_err(|error| not_shared(error.to_string()))?;
    let pool = Mapping::read_only(Path::new(files.pool_path.as_str()), pool_bytes);
    let pool = pool.map_err(|error| not_shared(error.to_string()))?;
    Ok((subscription, rings, pool))
}

/// Waits for the end of the subscription, and wakes the waiting threads.
async fn watch(
    end: Pending<ReceiveRequest>,
    address: Arc<str>,
    reason: Arc<OnceLock<ClientError>>,
    subscription: Subscription,
) {
    let error = match end.wait().await {
        Ok(ReceiveResponse {
            error_code,
            error_message,
            ..
        }) => ended(&address, error_code, error_message.as_deref()),
        Err(error) => error,
    };
    let _ = reason.set(error);
    subscription.close(CLOSED);
}

/// Converts the server's reason to end a subscription. A mere end of sharing counts as a lost connection: the client
/// then subscribes anew, and learns whether there is another path.
fn ended(address: &str, code: i16, message: Option<&str>) -> ClientError {
    let error = ResponseError::try_from_code(code);
    match error {
        None | Some(ResponseError::ResourceNotFound | ResponseError::TopicAuthorizationFailed) => {
            if let Some(why) = message {
                tracing::debug!(address, "no memory is shared any more: {why}");
            }
            ClientError::Disconnected {
                address: address.to_owned(),
            }
        }
        Some(ResponseError::RequestTimedOut) => ClientError::TakenBack {
            why: message.map_or_else(|| reason_of(code.into()), str::to_owned),
        },
        Some(error) => ClientError::Refused {
            what: "the subscription".to_owned(),
            error,
            message: message.map(str::to_owned),
        },
    }
}

/// Returns whether the server took memory back since the client held it for too long.
pub(super) fn has_stalled(code: i32) -> bool {
    code == i32::from(ResponseError::RequestTimedOut.code())
}

/// Returns the reason why the server took memory back.
pub(super) fn reason_of(code: i32) -> String {
    let error = i16::try_from(code)
        .ok()
        .and_then(ResponseError::try_from_code);
    match error {
        Some(ResponseError::RequestTimedOut) => {
            "they were held for too long, or others needed it".to_owned()
        }
        None | Some(ResponseError::ResourceNotFound) => "the connection has ended".to_owned(),
        Some(error) => reason(error),
    }
}
