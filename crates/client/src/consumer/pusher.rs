//! Records that one server pushes: through its memory if it can share that, else over the network. The pusher fetches
//! from a server that does neither.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millstream_base::Offset;
use millstream_wire::native::{
    DeliveredChunks, LocalSocketRequest, ReceiveRequest, ReceiveResponse, SubscribedSource,
};
use millstream_wire::{ApiKey, ResponseError};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::OnDamage;
use super::fetched::{Fetched, Records};
use super::fetcher::{Event, Fetcher, joined};
use crate::connection::{Connection, Pending};
use crate::error::ClientError;
use crate::offsets::TopicPartition;
use crate::push::{Delivered, Session, SharedSource, Terms, lane, refused};

/// The fewest and the most requests for more records in flight: each is the credit for one answer.
const CREDITS_MIN: usize = 2;
const CREDITS_MAX: usize = 8;

/// Receives the pushed records of partitions that one server leads.
pub(super) struct Pusher {
    /// The partitions and the channels; also fetches if the server does not push.
    pub fetcher: Fetcher,
    /// Whether to read from the server's memory, if it shares that.
    pub may_share: bool,
}

/// The way in which the server pushes.
enum Way {
    Shared(SharedSource),
    Network(NetworkSubscription),
    /// It does not push.
    None,
}

/// A subscription over the network, which asks for each answer.
struct NetworkSubscription {
    /// Carries no other requests, which would wait behind those for more records.
    connection: Connection,
    subscription: u32,
    places: Vec<TopicPartition>,
    /// The approximate size of an answer, in bytes, and the number of requests in flight.
    answer_bytes: usize,
    credits: usize,
}

impl Pusher {
    /// Passes on pushed records until an error occurs, or the consumer is gone.
    pub async fn run(self) {
        let events = self.fetcher.events.clone();
        let error = match self.begin().await {
            Ok(Way::Shared(source)) => return self.forward(source).await,
            Ok(Way::None) => return self.fetcher.run().await,
            Ok(Way::Network(subscription)) => self.receive(subscription).await.err(),
            Err(error) => Some(error),
        };
        if let Some(error) = error {
            // An error here means that the consumer has gone, or has ended this pusher.
            let _ = events.send(Event::Lost(error)).await;
        }
    }

    async fn begin(&self) -> Result<Way, ClientError> {
        let client = &self.fetcher.client;
        let server = client.server(self.fetcher.server).await?;
        if !server.knows(ApiKey::Subscribe) {
            return Ok(Way::None);
        }
        let config = &self.fetcher.config;
        // Several answers fit into the memory for fetching ahead.
        let answer_bytes =
            (config.prefetch_bytes / CREDITS_MIN).clamp(1, config.answer_bytes_max.max(1));
        let piece_bytes = config.partition_bytes_max.min(answer_bytes);
        let filter = config.filter.as_ref();
        let terms = Terms::new(filter, piece_bytes, config.prefetch_bytes);
        if self.may_share
            && let Some(source) = self.share(&server, &terms).await
        {
            return Ok(Way::Shared(source));
        }
        let connection = client.own_connection(self.fetcher.server).await?;
        let answer = connection
            .ask(terms.request(vec![self.source()], 0))
            .await?;
        let message = answer.error_message.as_deref();
        if let Err(why) = ClientError::check(answer.error_code, message, "a subscription") {
            // Fetching reports the error of each partition with the partition that it concerns.
            tracing::debug!(address = %server.address(), "nothing is pushed: {why}");
            return Ok(Way::None);
        }
        self.fetcher.is_alive.store(true, Ordering::Relaxed);
        let credits = config.prefetch_bytes / answer_bytes;
        Ok(Way::Network(NetworkSubscription {
            connection,
            subscription: answer.subscription,
            places: self.fetcher.order.clone(),
            answer_bytes,
            credits: credits.clamp(CREDITS_MIN, CREDITS_MAX),
        }))
    }

    /// Subscribes through the server's memory, if it shares that.
    async fn share(&self, server: &Connection, terms: &Terms) -> Option<SharedSource> {
        let config = self.fetcher.client.config();
        match Session::begin(server, config, vec![self.source()], terms).await {
            Ok(mut sources) => {
                self.fetcher.is_alive.store(true, Ordering::Relaxed);
                sources.pop()
            }
            Err(why) => {
                tracing::debug!(address = %server.address(), "no memory is shared: {why}");
                None
            }
        }
    }

    fn source(&self) -> SubscribedSource {
        let Fetcher {
            order, positions, ..
        } = &self.fetcher;
        let lanes = order
            .iter()
            .filter_map(|place| Some(lane(place, *positions.get(place)?)));
        SubscribedSource {
            lanes: lanes.collect(),
            shared_group: None,
        }
    }

    /// Receives from shared memory on a thread of its own, which sleeps while it waits.
    async fn forward(self, source: SharedSource) {
        let _end = EndOfTaking(Arc::clone(source.session()));
        let events = self.fetcher.events.clone();
        let order = self.fetcher.order.iter();
        let epochs = order.map(|place| self.fetcher.epoch(place)).collect();
        let forwarder = Forwarder {
            source,
            epochs,
            places: self.fetcher.order,
            events: self.fetcher.events,
            is_alive: self.fetcher.is_alive,
            on_damage: self.fetcher.config.on_damage,
        };
        let thread = std::thread::Builder::new().name("millstream-consumer".to_owned());
        if let Err(error) = thread.spawn(move || forwarder.run()) {
            let error = ClientError::NotShared {
                address: self.fetcher.client.config().servers.join(","),
                why: format!("there is no thread to wait on: {error}"),
            };
            let _ = events.send(Event::Lost(error)).await;
        }
        // Wait until the consumer starts fetching anew.
        std::future::pending().await
    }

    /// Asks for more while there is room, and passes the answers on.
    async fn receive(&self, source: NetworkSubscription) -> Result<(), ClientError> {
        let mut under_way = VecDeque::new();
        loop {
            while under_way.len() < source.credits {
                if under_way.is_empty() {
                    // Wait for the full size before asking for the next answer.
                    let room = self.fetcher.room.acquire().await;
                    drop(room.map_err(|_| ClientError::Closed)?);
                } else if self.fetcher.room.available_permits() == 0 {
                    break;
                }
                let request = ReceiveRequest {
                    subscription: source.subscription,
                    source: 0,
                    bytes_max: u32::try_from(source.answer_bytes).unwrap_or(u32::MAX),
                };
                under_way.push_back(source.connection.send(request).await?);
            }
            let Some(next) = under_way.pop_front() else {
                continue;
            };
            let answer = self.answer(next).await?;
            let message = answer.error_message.as_deref();
            if answer.error_code == ResponseError::ResourceNotFound.code() {
                // The subscription ends with its connection.
                let address = source.connection.address().to_string();
                return Err(ClientError::Disconnected { address });
            }
            ClientError::check(answer.error_code, message, "the subscription")?;
            self.fetcher.is_alive.store(true, Ordering::Relaxed);
            for delivered in answer.delivered {
                self.take(&source, delivered).await?;
            }
        }
    }

    /// Waits for an answer, as long as the server is reachable.
    async fn answer(
        &self,
        pending: Pending<ReceiveRequest>,
    ) -> Result<ReceiveResponse, ClientError> {
        let Fetcher { client, server, .. } = &self.fetcher;
        let mut answer = pin!(pending.wait());
        loop {
            match timeout(client.config().request_timeout, &mut answer).await {
                Ok(answer) => return answer,
                // There are no new records, or the server vanished without closing the connection.
                Err(_) => {
                    client
                        .server(*server)
                        .await?
                        .ask(LocalSocketRequest {})
                        .await?
                }
            };
        }
    }

    async fn take(
        &self,
        source: &NetworkSubscription,
        delivered: DeliveredChunks,
    ) -> Result<(), ClientError> {
        let place = source.places.get(delivered.lane as usize);
        let place = place.ok_or_else(|| ClientError::Protocol {
            address: source.connection.address().to_string(),
            what: format!("the subscription has no lane {}", delivered.lane),
        })?;
        if delivered.error_code != 0 {
            let message = delivered.error_message.as_deref();
            let event = refusal(place, delivered.error_code, message, delivered.next);
            return self.fetcher.emit(event).await;
        }
        let bytes = joined(delivered.chunks.0);
        let room = self.fetcher.room_for(bytes.len()).await?;
        self.fetcher
            .emit(Event::Fetched(Fetched {
                place: place.clone(),
                epoch: self.fetcher.epoch(place),
                from: delivered.from,
                next: delivered.next,
                end: delivered.end,
                records: Records::Pushed(bytes),
                filter: None,
                on_damage: self.fetcher.config.on_damage.clone(),
                _room: Some(room),
            }))
            .await
    }
}

fn refusal(place: &TopicPartition, code: i16, message: Option<&str>, earliest: Offset) -> Event {
    match code == ResponseError::OffsetOutOfRange.code() {
        true => Event::OutOfRange(place.clone(), Some(earliest)),
        false => Event::Lost(refused(place, code, message, earliest)),
    }
}

/// Ends the thread when the consumer starts fetching anew, or goes.
struct EndOfTaking(Arc<Session>);

impl Drop for EndOfTaking {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Passes on the records that arrive through shared memory.
struct Forwarder {
    source: SharedSource,
    places: Vec<TopicPartition>,
    /// The leader epochs of the places.
    epochs: Vec<i32>,
    events: mpsc::Sender<Event>,
    is_alive: Arc<AtomicBool>,
    on_damage: OnDamage,
}

impl Forwarder {
    fn run(mut self) {
        loop {
            let event = self.next().unwrap_or_else(Event::Lost);
            let is_lost = matches!(event, Event::Lost(_));
            self.is_alive.fetch_or(!is_lost, Ordering::Relaxed);
            if self.events.blocking_send(event).is_err() || is_lost {
                return;
            }
        }
    }

    fn next(&mut self) -> Result<Event, ClientError> {
        let delivered = loop {
            if let Some(delivered) = self.source.take(Duration::MAX)? {
                break delivered;
            }
        };
        match delivered {
            Delivered::Piece(piece) => Ok(Event::Fetched(Fetched {
                place: self.place(piece.place)?.clone(),
                epoch: (self.epochs.get(piece.place as usize).copied()).unwrap_or(-1),
                from: piece.from,
                next: piece.next,
                end: piece.end,
                records: Records::Shared(piece.lease),
                filter: None,
                on_damage: self.on_damage.clone(),
                _room: None,
            })),
            Delivered::Refused {
                place,
                code,
                earliest,
            } => Ok(refusal(self.place(place)?, code, None, earliest)),
        }
    }

    fn place(&self, place: u32) -> Result<&TopicPartition, ClientError> {
        let found = self.places.get(place as usize);
        found.ok_or_else(|| ClientError::Protocol {
            address: self.source.session().address().to_string(),
            what: format!("the subscription has no lane {place}"),
        })
    }
}
