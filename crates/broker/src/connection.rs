//! One connection: it reads requests and writes answers in the order of the requests.

mod answers;
mod room;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use millstream_wire::{
    ApiKey, FIELD_BYTES, FrameError, Pieces, Request, RequestError, RequestHeader,
    decode_counted_request, decode_request, missing_bytes, request_api, take_frame,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, error::Elapsed, sleep, sleep_until, timeout, timeout_at};

use self::answers::{Pending, first_reply};
use self::room::{PRESSED_LOOK_EVERY, Room, patience};
use crate::answer_memory::AnswerRooms;
use crate::broker::Broker;
use crate::client::Client;
use crate::copied::copy_of;
use crate::peer::Peer;
use crate::reply::Reply;
use crate::requests::{self, traffic_of};
use crate::security::service::Login;
use crate::security::{Principal, Traffic};

/// The most requests of one connection in progress at once; the next is read when the first is
/// answered.
const REQUESTS_MAX: usize = 64;

/// Requests up to this size arrive before their memory is counted.
const UNCOUNTED_BYTES_MAX: usize = 16 << 10;

/// The decoded fields of a request take up to this much memory while the broker still answers earlier requests of its
/// connection. These may wait for minutes.
const FIELDS_BEHIND_BYTES_MAX: usize = 256 << 10;

/// The broker closes a connection that stops in the middle of a large request for this long: others
/// need the memory.
const LARGE_STALL_MAX: Duration = Duration::from_secs(5);

/// The largest request of a client that has not authenticated: four times the largest message of a
/// login.
const UNKNOWN_BYTES_MAX: usize = 64 << 10;

/// A request that comes before the login gets an answer if it has up to this size. A larger one is
/// not even decoded: its fields would take memory from those of clients that have logged in.
const REFUSED_BYTES_MAX: usize = 1 << 10;

/// The longest hold of a client over its quota before the quota is checked again.
const HOLD_MAX: Duration = Duration::from_secs(30);

/// The longest time between two checks of whether a login by a token still lasts: the wall clock
/// may be set.
const SESSION_LOOK_MAX: Duration = Duration::from_secs(30);

/// A connection that is silent for this long gives its read buffer back.
const QUIET_AFTER: Duration = Duration::from_secs(1);

/// The read buffer of a connection with little traffic.
const READ_BYTES_MIN: usize = 4 << 10;
/// The read buffer of a busy connection, so that several requests are read at once.
const READ_BYTES_BUSY: usize = 64 << 10;
/// The read buffer while a large request arrives.
const READ_BYTES_MAX: usize = 256 << 10;

/// A connection, from the first byte to the last.
pub struct Connection<S> {
    reader: ReadHalf<S>,
    writer: WriteHalf<S>,
    received: BytesMut,
    /// The size of the next read; it grows with recent traffic.
    room: usize,
    /// Whether the memory of `received` was given back and nothing has arrived since.
    is_quiet: bool,
    /// The request that is arriving, if it is not small.
    arriving: Option<Arriving>,
    /// In the order of the requests.
    pending: VecDeque<Pending>,
    client: Client,
    broker: Arc<Broker>,
    stop: watch::Receiver<bool>,
    /// While set, no further request begins.
    hold: Option<Hold>,
}

/// A request that is arriving, and has its memory.
struct Arriving {
    memory: OwnedSemaphorePermit,
    /// The size that the client announced.
    bytes: usize,
    /// For how long the broker has waited for bytes of it.
    waited: Duration,
    /// For how long it has waited since the last byte.
    silent: Duration,
}

/// The wait of a client that has used up its quota.
struct Hold {
    until: Instant,
    /// The direction of the traffic that the quota does not cover yet at `until`, if there is any.
    unpaid: Option<Traffic>,
}

/// The next event of a connection.
enum Event {
    Reply(Reply),
    /// The number of bytes that arrived, or a timeout.
    Read(Result<io::Result<usize>, Elapsed>),
    /// The client's hold is over.
    Resume,
    /// It is time to check the connection again.
    Look,
}

/// A request, and the memory of its fields, if they are not few.
type Decoded = Result<(RequestHeader, Request, Option<OwnedSemaphorePermit>), RequestError>;

/// Why a connection ends.
enum End {
    /// The other side closed the connection, or it broke.
    Gone,
    /// This side closes it.
    Refused(String),
    /// This side takes no further request, and closes it when those in progress are answered.
    AfterAnswers(String),
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End::Gone
    }
}

impl From<FrameError> for End {
    fn from(error: FrameError) -> End {
        End::AfterAnswers(error.to_string())
    }
}

impl<S: AsyncRead + AsyncWrite + Send + 'static> Connection<S> {
    /// Returns a new connection. `certified` is the user that the client's certificate names.
    pub fn new(
        stream: S,
        peer: Peer,
        certified: Option<Principal>,
        broker: Arc<Broker>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Connection {
            reader,
            writer,
            received: BytesMut::new(),
            room: READ_BYTES_MIN,
            is_quiet: true,
            arriving: None,
            pending: VecDeque::new(),
            client: Client::new(peer, certified, &broker, stop.clone()),
            broker,
            stop,
            hold: None,
        }
    }

    /// Serves until either side closes the connection.
    pub async fn run(mut self) {
        let address = self.client.peer().address;
        let mut end = self.serve().await;
        if let Err(End::AfterAnswers(why)) = end {
            // The rest of the request is not read, so its memory is free for others.
            (self.arriving, self.received) = (None, BytesMut::new());
            end = match self.finish().await {
                Ok(()) | Err(End::Gone) => Err(End::Refused(why)),
                other => other,
            };
        }
        match end {
            Ok(()) | Err(End::Gone) => {}
            Err(End::Refused(why) | End::AfterAnswers(why)) => {
                self.broker.counters.failed.add_one();
                self.broker
                    .warn_of(address, format_args!("connection closed: {why}"));
            }
        }
        let _ = self.writer.shutdown().await;
    }

    async fn serve(&mut self) -> Result<(), End> {
        while !*self.stop.borrow() {
            self.session_lasts()?;
            self.take_requests().await?;
            let may_read = self.may_take();
            let is_idle = self.pending.is_empty();
            self.check_pressed()?;
            self.check_arriving()?;
            if may_read && !self.make_room().await? {
                continue;
            }
            let session = self.session_lasts()?;
            let session_max = session.unwrap_or_default().min(SESSION_LOOK_MAX);
            let silence_max = self.silence_max();
            let (resume_at, is_held) = match &self.hold {
                Some(hold) => (hold.until, true),
                None => (Instant::now(), false),
            };
            let waits_from = Instant::now();
            let mut room = (&mut self.received).limit(READ_BYTES_MAX);
            let event = tokio::select! {
                biased;
                reply = first_reply(&mut self.pending), if !is_idle => Event::Reply(reply),
                _ = self.stop.wait_for(|stop| *stop) => break,
                read = timeout(silence_max, self.reader.read_buf(&mut room)), if may_read => {
                    Event::Read(read)
                }
                () = sleep_until(resume_at), if is_held => Event::Resume,
                () = sleep(session_max), if session.is_some() => Event::Look,
                () = sleep(PRESSED_LOOK_EVERY), if self.pending.len() > 1 => Event::Look,
            };
            if may_read && let Some(arriving) = &mut self.arriving {
                let waited = waits_from.elapsed();
                arriving.waited += waited;
                arriving.silent += waited;
            }
            match event {
                Event::Reply(reply) => self.answer(reply).await?,
                Event::Read(Ok(Ok(0))) => {
                    // Requests that wait on subscriptions may otherwise take forever.
                    self.client.subscriptions.end();
                    self.client.end_share_sessions();
                    break;
                }
                Event::Read(Ok(read)) => {
                    if let Some(arriving) = &mut self.arriving {
                        arriving.silent = Duration::ZERO;
                    }
                    if read? >= self.room {
                        self.room = (self.room * 2).min(READ_BYTES_BUSY);
                    }
                    self.is_quiet = false;
                }
                Event::Read(Err(_)) => self.silent(is_idle)?,
                Event::Resume => self.resume(),
                Event::Look => {}
            }
        }
        self.finish().await
    }

    /// Returns how long a login by a token still lasts.
    fn session_lasts(&mut self) -> Result<Option<Duration>, End> {
        let lasts = self.client.session_lasts();
        if lasts.is_some_and(|lasts| lasts.is_zero()) {
            // Requests that wait on subscriptions may otherwise take forever.
            self.client.subscriptions.end();
            let why = "its token has expired, and it has not logged in again".to_owned();
            return Err(End::AfterAnswers(why));
        }
        Ok(lasts)
    }

    /// Returns whether another request may begin now. It must not while the bytes of the last
    /// answer have yet to be taken from a quota, which they may use up, nor before the last answer
    /// has its memory.
    fn may_take(&self) -> bool {
        let may_follow = |last: &Pending| {
            let is_alone = matches!(last.reply, Reply::Alone(_));
            !last.is_limited && !is_alone && !matches!(last.room, Room::Turn { .. })
        };
        let has_room = self.pending.len() < REQUESTS_MAX;
        self.hold.is_none() && has_room && self.pending.back().is_none_or(may_follow)
    }

    /// Returns the largest request that is accepted now.
    fn request_bytes_max(&self) -> usize {
        let max = self.broker.config().request_bytes_max;
        match self.client.is_known() {
            true => max,
            false => max.min(UNKNOWN_BYTES_MAX),
        }
    }

    /// Makes room for arriving bytes. Returns `false` when requests were answered to free memory;
    /// the caller handles these first.
    async fn make_room(&mut self) -> Result<bool, End> {
        let missing = missing_bytes(&self.received, self.request_bytes_max())?;
        let whole = self.received.len() + missing;
        if whole > UNCOUNTED_BYTES_MAX && self.arriving.is_none() {
            self.arriving = Some(Arriving {
                memory: self.memory_for(whole).await?,
                bytes: whole,
                waited: Duration::ZERO,
                silent: Duration::ZERO,
            });
            return Ok(false);
        }
        let room = missing.clamp(self.room, READ_BYTES_MAX);
        self.received.reserve(room);
        Ok(true)
    }

    /// Returns for how long the other side may be silent.
    fn silence_max(&self) -> Duration {
        let config = self.broker.config();
        match (self.received.is_empty(), self.is_quiet) {
            // `check_arriving` adds up these times.
            (false, _) if self.arriving.is_some() => PRESSED_LOOK_EVERY.min(self.large_stall_max()),
            (false, _) => config.read_stall_max,
            (true, false) => QUIET_AFTER.min(config.idle_max),
            (true, true) => config.idle_max,
        }
    }

    /// Returns for how long a client may stop in the middle of a large request.
    fn large_stall_max(&self) -> Duration {
        self.broker.config().read_stall_max.min(LARGE_STALL_MAX)
    }

    /// Refuses a client that has stopped in the middle of a large request, or sends it slowly while
    /// others need the memory.
    fn check_arriving(&self) -> Result<(), End> {
        let Some(arriving) = &self.arriving else {
            return Ok(());
        };
        let stall_max = self.large_stall_max();
        if arriving.silent >= stall_max {
            let why = "it has stopped in the middle of a request".to_owned();
            return Err(End::AfterAnswers(why));
        }
        let is_slow = arriving.waited >= patience(stall_max, self.received.len());
        if is_slow && self.broker.memory().is_wanted(arriving.bytes) {
            let why = "it sends its request slowly, and others need the memory".to_owned();
            return Err(End::AfterAnswers(why));
        }
        Ok(())
    }

    /// Handles a silence of that length.
    fn silent(&mut self, is_idle: bool) -> Result<(), End> {
        if self.arriving.is_some() {
            return Ok(());
        }
        if !self.received.is_empty() {
            let why = "it has stopped in the middle of a request".to_owned();
            return Err(End::AfterAnswers(why));
        }
        if !self.is_quiet {
            self.received = BytesMut::new();
            self.room = READ_BYTES_MIN;
            self.is_quiet = true;
            return Ok(());
        }
        // Otherwise the client waits for an answer, as it should.
        if is_idle { Err(End::Gone) } else { Ok(()) }
    }

    /// Begins no further request, and answers those in progress within a bounded time.
    async fn finish(&mut self) -> Result<(), End> {
        let until = Instant::now() + self.broker.config().write_stall_max;
        while !self.pending.is_empty() {
            let Ok(reply) = timeout_at(until, first_reply(&mut self.pending)).await else {
                return Err(End::Gone);
            };
            self.answer(reply).await?;
        }
        Ok(())
    }

    /// Begins the requests that have arrived whole.
    async fn take_requests(&mut self) -> Result<(), End> {
        while self.may_take() {
            let bytes_max = self.request_bytes_max();
            let Some(frame) = take_frame(&mut self.received, bytes_max)? else {
                return Ok(());
            };
            let bytes = frame.len();
            let memory = match self.arriving.take() {
                Some(arriving) => arriving.memory,
                None => self.memory_for(frame.len()).await?,
            };
            if frame.len() > READ_BYTES_MAX {
                // Otherwise the next bytes would keep all of the old memory, and no budget counts
                // that.
                self.received = BytesMut::from(&self.received[..]);
            }
            if let Some(login) = self.client.bare_login() {
                self.finish().await?;
                self.take_bare_message(&login, frame).await?;
                continue;
            }
            if bytes > REFUSED_BYTES_MAX
                && let Some(api) = request_api(&frame)
                && !self.client.may_ask(api)
            {
                let why = format!("it sends {api:?} before it has logged in");
                return Err(End::AfterAnswers(why));
            }
            let (mut header, request, _fields) = match self.decode(frame).await? {
                Ok(request) => request,
                Err(error) => {
                    if let Some(answer) = error.answer() {
                        self.finish().await?;
                        self.write(answer, AnswerRooms::default()).await?;
                        continue;
                    }
                    return Err(End::AfterAnswers(error.to_string()));
                }
            };
            let bound = requests::bound(
                &self.broker,
                &mut self.client,
                header.version,
                bytes,
                &request,
            );
            let began = Instant::now();
            let held = self.hold_for_objective(header.api);
            let measured = self.broker.objectives.begin(header.api, began);
            let room = self.room_for(bound).await?;
            let reply = requests::handle(&self.broker, &mut self.client, &header, request);
            // A slice of the frame would keep the memory of later bytes until the answer is sent.
            header.client_id = header.client_id.as_deref().map(copy_of);
            let wait = self.throttle(&header, Traffic::Produced, bytes);
            let wait = wait.max(held);
            let consumed = traffic_of(header.api).filter(|traffic| *traffic == Traffic::Consumed);
            let limit = consumed.and_then(|traffic| self.client.limit(traffic));
            self.pending.push_back(Pending {
                header,
                began,
                wait,
                _measured: measured,
                is_limited: limit.is_some(),
                reply,
                room,
                _memory: memory,
            });
        }
        Ok(())
    }

    /// Decodes a request. Its fields may take many times the memory of the frame, so they are counted while the request
    /// waits for memory of its answer.
    async fn decode(&mut self, frame: Bytes) -> Result<Decoded, End> {
        let decoded = decode_counted_request(frame.clone());
        let fields = decoded.as_ref().map_or(0, |(_, _, fields)| *fields);
        let bytes = fields * FIELD_BYTES;
        if bytes <= UNCOUNTED_BYTES_MAX {
            return Ok(decoded.map(|(header, request, _)| (header, request, None)));
        }
        let may_hold = self.pending.is_empty() || bytes <= FIELDS_BEHIND_BYTES_MAX;
        if may_hold && let Some(memory) = self.broker.memory().try_take_decoded(bytes) {
            return Ok(decoded.map(|(header, request, _)| (header, request, Some(memory))));
        }
        // Only the frame waits, which is counted, and no answer holds memory meanwhile. Once the earlier requests are
        // answered, the fields wait only for memory of other clients' answers, which these take or are closed.
        drop(decoded);
        self.answer_all().await?;
        let memory = self.broker.memory();
        let mut stop = self.stop.clone();
        let memory = tokio::select! {
            biased;
            memory = memory.take_decoded(bytes) => memory,
            _ = stop.wait_for(|stop| *stop) => return Err(End::Gone),
        };
        Ok(decode_request(frame).map(|(header, request)| (header, request, Some(memory))))
    }

    /// Handles a message of a login that has no request around it; its answer has none either.
    async fn take_bare_message(&mut self, login: &Login, message: Bytes) -> Result<(), End> {
        let from = self.client.peer().address;
        let broker = Arc::clone(&self.broker);
        let answer = broker.security().message(login, from, message).await?;
        let answer = answer.map_err(|error| End::Refused(error.to_string()))?;
        let mut frame = BytesMut::with_capacity(4 + answer.len());
        frame.put_u32(answer.len() as u32);
        frame.put(answer);
        let frame = Pieces::from_iter([frame.freeze()]);
        self.write(frame, AnswerRooms::default()).await
    }

    /// Waits for memory for a request of `bytes` bytes. The connection gives back its own memory
    /// first, so that no connection waits for memory while it holds some.
    async fn memory_for(&mut self, bytes: usize) -> Result<OwnedSemaphorePermit, End> {
        loop {
            if let Some(memory) = self.broker.memory().try_take(bytes) {
                return Ok(memory);
            }
            if self.pending.is_empty() {
                return Ok(self.broker.memory().take(bytes).await);
            }
            self.answer_first().await?;
        }
    }

    /// Takes the bytes on the wire from the client's quota, if records go in this direction with
    /// the request. The client is held when the quota is used up.
    fn throttle(
        &mut self,
        header: &RequestHeader,
        traffic: Traffic,
        bytes: usize,
    ) -> Option<Duration> {
        // A refused client is not the one whose name its requests carry.
        if traffic_of(header.api) != Some(traffic) || self.client.is_refused() {
            return None;
        }
        let client_id = header.client_id.as_deref().unwrap_or_default();
        let wait = self.client.throttle(traffic, client_id, bytes)?;
        self.hold(traffic, wait);
        Some(wait)
    }

    /// Holds a client whose requests would be answered too late for the objective of their kind.
    fn hold_for_objective(&mut self, api: ApiKey) -> Option<Duration> {
        let wait = self.broker.objectives.hold(api)?.min(HOLD_MAX);
        self.hold_for(wait, None);
        Some(wait)
    }

    fn hold(&mut self, traffic: Traffic, wait: Duration) {
        let unpaid = (wait > HOLD_MAX).then_some(traffic);
        self.hold_for(wait.min(HOLD_MAX), unpaid);
    }

    fn hold_for(&mut self, wait: Duration, unpaid: Option<Traffic>) {
        let until = Instant::now() + wait;
        if self.hold.as_ref().is_none_or(|hold| hold.until < until) {
            self.hold = Some(Hold { until, unpaid });
        }
    }

    /// Ends the client's hold, unless the client is still deep in debt. Its quota may have changed
    /// meanwhile.
    fn resume(&mut self) {
        let hold = self.hold.take();
        if let Some(traffic) = hold.and_then(|hold| hold.unpaid)
            && let Some(wait) = self.client.throttle(traffic, self.client.id(), 0)
        {
            self.hold(traffic, wait);
        }
    }
}

#[cfg(test)]
mod tests;
