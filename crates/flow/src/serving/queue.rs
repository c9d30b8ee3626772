//! The queue of a flow's requests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use std::{io, mem};

use millstream_base::Clock;
use millstream_pool::{Meter, Objective, Pool};
use parking_lot::Mutex;

use crate::build::flow::Flow;
use crate::error::FlowError;
use crate::ranks::references::References;
use crate::run::running::Running;
use crate::serving::call::Call;
use crate::serving::error::CallError;
use crate::serving::pending::{Pending, Slot};
use crate::serving::request::Request;
use crate::serving::source::RequestSource;
use crate::sources::source::{Output, SourceStatus};

/// The settings of a flow's requests.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestSettings {
    /// The most requests that wait for their response, or that the flow still holds; 1,024 by default.
    pub requests_max: usize,
    /// Their memory at most, in bytes; 64 MiB by default.
    pub requests_bytes_max: usize,
    /// The most bytes of a request's body; 1 MiB by default.
    pub body_bytes_max: usize,
    /// The time from a request to its response, or to the beginning of a streamed one; 10 s by default.
    pub time_max: Duration,
    /// The latency that requests are to have; none by default. While it is missed, best-effort work of the process has hardly any
    /// processor time, and a request that would be answered too late is refused at once.
    pub objective: Option<Objective>,
    /// The web origins whose pages may use the flow over HTTP, such as `https://shop.example.com`: none by default, beside
    /// the server's own. `*` allows all.
    pub origins: Vec<String>,
}

impl Default for RequestSettings {
    fn default() -> Self {
        RequestSettings {
            requests_max: 1_024,
            requests_bytes_max: 64 << 20,
            body_bytes_max: 1 << 20,
            time_max: Duration::from_secs(10),
            objective: None,
            origins: Vec::new(),
        }
    }
}

/// The queue of a flow's requests. A clone is another handle of the same queue.
#[derive(Clone)]
pub struct Requests {
    shared: Arc<Shared>,
}

/// A place in a queue, for a request that is still being read. Dropped, it is free again.
#[must_use = "a place that is dropped is given up"]
pub struct Admitted {
    place: Place,
    slot: Arc<Slot>,
}

type FailureWatch = Box<dyn Fn() -> Option<FlowError> + Send + Sync>;

/// The state that callers and the flow's sources share.
pub struct Shared {
    flow: String,
    settings: RequestSettings,
    clock: Arc<dyn Clock>,
    pool: Arc<Pool>,
    /// The calls that have gone to other ranks, if there are some.
    references: Option<Arc<References>>,
    queue: Mutex<Queue>,
    /// Returns the flow's error; set when the flow has begun.
    failure: Mutex<Option<FailureWatch>>,
}

/// No call is dropped while this is locked: its drop gives its place back here.
#[derive(Default)]
struct Queue {
    phase: Phase,
    waiting: VecDeque<Call>,
    /// The places that are taken, by their numbers, and so by their deadlines: calls that wait, and those that the flow has.
    places: BTreeMap<u64, (Duration, Arc<Slot>)>,
    next_place: u64,
    bytes: usize,
    /// The sources that are not closed.
    sources: usize,
    /// The flow's; all of its sources have the same.
    waker: Option<Waker>,
    /// Measures requests while the flow runs, if it has an objective.
    meter: Option<Arc<Meter>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    NotBegun,
    Open,
    Closed,
}

impl Requests {
    /// Returns an empty queue for a flow, to which further operators are added.
    pub fn new(flow: &Flow, settings: RequestSettings) -> Requests {
        let shared = Shared {
            flow: flow.name(),
            settings,
            clock: Arc::clone(&flow.settings.clock),
            pool: Arc::clone(&flow.settings.pool),
            references: flow.references(),
            queue: Mutex::default(),
            failure: Mutex::default(),
        };
        Requests {
            shared: Arc::new(shared),
        }
    }

    /// Returns the sources of the flow: as many workers can read requests at once. Made once.
    pub fn sources(&self, count: usize) -> Vec<RequestSource> {
        let count = count.max(1);
        (0..count)
            .map(|_| RequestSource::new(&self.shared))
            .collect()
    }

    /// Admits requests: the flow runs. Until then they get [`CallError::NotBegun`].
    ///
    /// # Errors
    /// If there are other ranks or an objective, and the machine gives no thread for them.
    pub fn begin(&self, running: &Running) -> Result<(), FlowError> {
        *self.shared.failure.lock() = Some(Box::new(running.failure_watch()));
        let shared = &self.shared;
        let begun = shared.references.as_ref().map_or(Ok(()), |it| it.begin());
        let meter = begun.and_then(|()| shared.meter());
        let meter = meter.map_err(|error| FlowError::Worker {
            flow: shared.flow.clone(),
            error: Arc::new(error),
        })?;
        let mut queue = shared.queue.lock();
        if queue.phase == Phase::NotBegun {
            queue.phase = Phase::Open;
            queue.meter = meter;
        }
        Ok(())
    }

    /// Returns whether it admits requests: the flow has begun, and has not ended.
    pub fn is_open(&self) -> bool {
        self.shared.queue.lock().phase == Phase::Open
    }

    /// Returns the name of the flow.
    pub fn flow(&self) -> &str {
        &self.shared.flow
    }

    /// Returns the settings.
    pub fn settings(&self) -> &RequestSettings {
        &self.shared.settings
    }

    /// Returns how many requests wait for the flow, or are in it.
    pub fn waiting(&self) -> usize {
        self.shared.queue.lock().places.len()
    }

    /// Calls the flow with a request. Never waits; the response, or the reason for which there is none, is in the result.
    pub fn call(&self, request: Request) -> Pending {
        let body = request.body().len();
        match self.admit(body, request.bytes()) {
            Ok(admitted) => admitted.call(request),
            Err(error) => {
                let slot = Slot::settled(Err(error));
                Pending::new(
                    slot,
                    Arc::clone(&self.shared.clock),
                    Duration::ZERO,
                    self.shared.late(),
                )
            }
        }
    }

    /// Takes a place for a request whose body has at most `body_bytes`, and which has `bytes` in all. The time for the
    /// response begins here.
    ///
    /// # Errors
    /// If the body is too large, the queue is full, or the flow does not run.
    pub fn admit(&self, body_bytes: usize, bytes: usize) -> Result<Admitted, CallError> {
        let shared = &self.shared;
        let (settings, flow) = (&shared.settings, || shared.flow.clone());
        if body_bytes > settings.body_bytes_max {
            return Err(CallError::TooLarge {
                flow: flow(),
                bytes_max: settings.body_bytes_max,
            });
        }
        let mut queue = shared.queue.lock();
        match queue.phase {
            Phase::Open => {}
            Phase::NotBegun => return Err(CallError::NotBegun { flow: flow() }),
            Phase::Closed => {
                drop(queue);
                return Err(shared.end());
            }
        }
        let (requests, waiting_bytes) = (queue.places.len(), queue.bytes);
        // A request that is larger than the memory of all is admitted alone.
        let has_room = queue.bytes == 0 || queue.bytes + bytes <= settings.requests_bytes_max;
        if requests >= settings.requests_max || !has_room {
            return Err(CallError::Full {
                flow: flow(),
                requests,
                bytes: waiting_bytes,
            });
        }
        let measured = queue.meter.as_ref().map(|meter| meter.begin()).transpose();
        let measured = measured.map_err(|retry_after| CallError::Overloaded {
            flow: flow(),
            retry_after,
        })?;
        let (number, slot) = (queue.next_place, Slot::new(measured));
        let deadline = shared.clock.monotonic().saturating_add(settings.time_max);
        queue.next_place += 1;
        queue.bytes += bytes;
        queue.places.insert(number, (deadline, Arc::clone(&slot)));
        drop(queue);
        let place = Place {
            shared: Arc::clone(shared),
            number,
            bytes,
            deadline,
        };
        Ok(Admitted { place, slot })
    }
}

impl Admitted {
    /// Calls the flow with the request.
    pub fn call(self, request: Request) -> Pending {
        let shared = Arc::clone(&self.place.shared);
        let slot = Arc::clone(&self.slot);
        let clock = Arc::clone(&shared.clock);
        let pending = Pending::new(slot, clock, self.place.deadline, shared.late());
        shared.put(self, request);
        pending
    }

    /// Returns the time until the call is too late.
    pub fn time_left(&self) -> Duration {
        let now = self.place.shared.clock.monotonic();
        self.place.deadline.saturating_sub(now)
    }

    /// Returns the error of a call that is too late.
    pub fn late(&self) -> CallError {
        self.place.shared.late()
    }
}

impl Shared {
    /// Puts a call behind those that wait.
    fn put(&self, admitted: Admitted, request: Request) {
        let Admitted { place, slot } = admitted;
        let mut queue = self.queue.lock();
        if queue.phase == Phase::Closed {
            drop(queue);
            slot.settle(Err(self.end()));
            return;
        }
        queue.waiting.push_back(Call::new(request, slot, place));
        let waker = queue.waker.clone();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes a share of the calls that wait, so that other sources find some, too.
    pub(super) fn take(
        &self,
        out: &mut Output<Call>,
        budget: usize,
        waker: &Waker,
    ) -> SourceStatus {
        let now = self.clock.monotonic();
        let (mut late, mut settled) = (Vec::new(), Vec::new());
        let mut queue = self.queue.lock();
        if queue.waker.is_none() {
            queue.waker = Some(waker.clone());
        }
        // In the order of their deadlines. A call keeps its place until the flow has dropped it.
        let overdue = queue.places.values().take_while(|(at, _)| *at <= now);
        late.extend(
            overdue
                .map(|(_, slot)| Arc::clone(slot))
                .filter(|slot| !slot.is_settled()),
        );
        let share = queue.waiting.len().div_ceil(queue.sources.max(1));
        let mut left = share.min(budget.max(1));
        while left > 0
            && let Some(call) = queue.waiting.pop_front()
        {
            match call.is_settled() {
                true => settled.push(call),
                false => {
                    left -= 1;
                    out.push(call);
                }
            }
        }
        let mut open = queue.places.values();
        let next = open.find(|(at, slot)| *at > now && !slot.is_settled());
        let next = next.map(|(at, _)| *at);
        let has_more = !queue.waiting.is_empty();
        drop(queue);
        for slot in late {
            slot.settle(Err(self.late()));
        }
        drop(settled);
        match (has_more, next) {
            (true, _) => SourceStatus::Ready,
            (false, Some(at)) => SourceStatus::IdleUntil(at),
            (false, None) => SourceStatus::Idle,
        }
    }

    pub(super) fn open_source(&self) {
        self.queue.lock().sources += 1;
    }

    /// Measures requests, if they have an objective.
    fn meter(&self) -> io::Result<Option<Arc<Meter>>> {
        let name = match &self.references {
            Some(references) => format!("{} on rank {}", self.flow, references.rank()),
            None => self.flow.clone(),
        };
        let objective = self.settings.objective;
        let meter = objective.map(|objective| self.pool.objective(&name, objective));
        meter.transpose()
    }

    /// Ends the queue with its last source: all calls that have no outcome get the flow's end. Other ranks may still answer
    /// those that they have.
    pub(super) fn close_source(&self) {
        let mut queue = self.queue.lock();
        queue.sources -= 1;
        if queue.sources > 0 {
            return;
        }
        queue.phase = Phase::Closed;
        queue.waker = None;
        let meter = queue.meter.take();
        let waiting = mem::take(&mut queue.waiting);
        drop(queue);
        let end = self.end();
        waiting.iter().for_each(|call| call.end(end.clone()));
        if let Some(references) = &self.references {
            references.wait_until_settled(self.settings.time_max);
        }
        let places = self.queue.lock().places.clone();
        for (_, slot) in places.into_values() {
            slot.settle(Err(end.clone()));
        }
        if let Some(references) = &self.references {
            references.close();
        }
        drop((waiting, meter));
    }

    fn late(&self) -> CallError {
        CallError::Late {
            flow: self.flow.clone(),
            time_max: self.settings.time_max,
        }
    }

    /// Returns the reason for which the flow takes no requests any more.
    fn end(&self) -> CallError {
        let failure = self.failure.lock();
        let failure = failure.as_ref().and_then(|failure| failure());
        let flow = self.flow.clone();
        match failure {
            Some(error) => CallError::Failed {
                flow,
                class: error.class(),
            },
            None => CallError::Ended { flow },
        }
    }
}

/// A call's share of the bounds of a queue, until the last handle of the call is dropped.
pub struct Place {
    shared: Arc<Shared>,
    number: u64,
    bytes: usize,
    /// The time at which the call is too late.
    deadline: Duration,
}

impl Place {
    pub fn flow(&self) -> &str {
        &self.shared.flow
    }

    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.clock
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.bytes -= self.bytes;
        let freed = queue.places.remove(&self.number);
        drop(queue);
        // Its outcome may be other code.
        drop(freed);
    }
}
