//! The thread that pushes to one consumer.
//!
//! The thread waits on one doorbell: the log rings it when there is more, the consumer when it has
//! made progress, and the connection when it ends. Of the shared memory the thread reads only the
//! consumer's progress, and checks it: a consumer that writes a false value loses its own
//! subscription only.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::{Duration, Instant};

use millstream_base::{ByteSize, Cursor};
use millstream_log::Slice;
use millstream_share::{BadProgress, Descriptor, Kind, Publisher, Rung, WAIT_MAX};
use millstream_wire::ResponseError;

use super::outlet::{Delivery, Outlet, Progress, RefusedPlace};
use super::shared::{MayShare, Shared, Terms};
use crate::access::Access;
use crate::broker::Broker;
use crate::native::refused::Refused;
use crate::pins::{Blocks, Holder, PRESSED_STALL_MAX, Pins};

/// The most descriptors of one source that are pushed before the next source has its turn.
const BURST: usize = 16;

/// The time between two looks at a consumer that holds memory.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The same while it holds up others, or others hold it up.
const LOOK_PRESSED: Duration = Duration::from_millis(20);

/// The most bytes that a source may have in flight.
const AHEAD_BYTES_MAX: u64 = 64 << 20;

/// The thread's state: it pushes until the subscription ends.
pub struct PushThread {
    pub broker: Arc<Broker>,
    pub access: Access,
    /// The version of access rules and quotas at the last check that the client may share memory.
    pub version: Option<u64>,
    pub may_share: MayShare,
    pub publisher: Publisher,
    pub waker: Waker,
    pub sources: Vec<Source>,
    /// The pool blocks that the subscription holds.
    pub blocks: Blocks,
    pub holder: Arc<Holder>,
    pub terms: Terms,
    pub shared: Arc<Shared>,
}

/// Reports the end of a thread, for any reason.
struct Ending {
    pins: Arc<Pins>,
    holder: Arc<Holder>,
    shared: Arc<Shared>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let failed = || {
            let message = "the pushing thread has failed";
            Refused::new(ResponseError::UnknownServerError, message)
        };
        self.shared.end.send_if_modified(|end| {
            let is_untold = end.is_none();
            end.get_or_insert_with(failed);
            is_untold
        });
        self.pins.remove(&self.holder);
    }
}

/// The state of one source.
pub struct Source {
    outlet: Outlet,
    /// The slice that each descriptor in flight pins.
    held: VecDeque<Option<Slice>>,
    /// The number of finished descriptors.
    finished: u64,
    /// The bytes of the slices in `held`.
    bytes: usize,
    /// The time when the source last finished a descriptor, or got the first that it holds.
    went_on: Instant,
}

impl Source {
    pub fn new(outlet: Outlet) -> Source {
        Source {
            outlet,
            held: VecDeque::new(),
            finished: 0,
            bytes: 0,
            went_on: Instant::now(),
        }
    }
}

/// The reason why there is nothing to push to a source; of several sources the last in this order
/// counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rest {
    /// There are no chunks.
    Idle,
    /// The source has enough in flight.
    Full,
    /// Other subscriptions hold the memory, or this one does itself.
    Pressed,
    /// There may be more.
    None,
}

impl PushThread {
    /// Pushes until the subscription ends, and reports the end.
    pub fn run(self) {
        // The ending server waits for this thread, which must have dropped its log before.
        let _ending = Ending {
            pins: Arc::clone(self.broker.pins()),
            holder: Arc::clone(&self.holder),
            shared: Arc::clone(&self.shared),
        };
        self.push_and_end();
    }

    fn push_and_end(mut self) {
        let Err(refused) = self.push_until_end();
        if !self.shared.is_over.load(Ordering::Acquire) {
            let why = refused.clone().message().unwrap_or_default();
            tracing::warn!(consumer = %self.access.principal(), "a subscription that shares memory ends: {why}");
        }
        // The consumer learns of the end first; then others may have the memory.
        self.publisher.end(refused.code().into());
        self.sources.clear();
        self.shared.end.send_replace(Some(refused));
    }

    fn push_until_end(&mut self) -> Result<std::convert::Infallible, Refused> {
        let count = self.sources.len();
        let mut first = 0;
        loop {
            let rings = self.publisher.rings();
            self.check()?;
            let mut rest = Rest::Idle;
            for index in (first..count).chain(0..first) {
                rest = rest.max(self.push(index)?);
            }
            // While memory is short, the sources take turns to ask for it first.
            first = (first + 1) % count;
            self.check_stall()?;
            if rest != Rest::None {
                self.publisher.wait(rings, self.wait_max(rest));
            }
        }
    }

    /// Checks whether the subscription may go on.
    fn check(&mut self) -> Result<(), Refused> {
        if self.shared.is_over.load(Ordering::Acquire) {
            let message = "the connection has ended";
            return Err(Refused::new(ResponseError::ResourceNotFound, message));
        }
        let version = Some(self.access.version());
        if self.version != version {
            (self.may_share)()
                .map_err(|why| Refused::new(ResponseError::TopicAuthorizationFailed, why))?;
            self.version = version;
        }
        Ok(())
    }

    /// Checks that the consumer has made progress in time, as far as is known.
    fn check_stall(&self) -> Result<(), Refused> {
        let holding = self.sources.iter().filter(|source| source.bytes > 0);
        let went_on = holding.map(|source| source.went_on).min();
        let went_on = went_on.unwrap_or_else(Instant::now);
        let stalled = went_on.elapsed();
        self.holder.note(went_on);
        // Another subscription may have seen the stall before this thread saw the progress.
        let is_revoked = self.holder.is_revoked() && stalled >= PRESSED_STALL_MAX;
        if is_revoked || stalled > self.broker.config().push_stall_max {
            let message = format!(
                "the consumer has made no progress for {} ms with {} in hand",
                stalled.as_millis(),
                ByteSize(self.sources.iter().map(|source| source.bytes as u64).sum())
            );
            return Err(Refused::new(ResponseError::RequestTimedOut, message));
        }
        Ok(())
    }

    fn wait_max(&self, rest: Rest) -> Duration {
        let wait_max = match rest {
            Rest::Pressed => LOOK_PRESSED,
            _ if self.sources.iter().all(|source| source.held.is_empty()) => WAIT_MAX,
            _ => LOOK_EVERY.min(self.broker.config().push_stall_max),
        };
        let told_in = self.sources.iter().map(|source| source.outlet.told_in());
        match told_in.flatten().min() {
            Some(told_in) if rest == Rest::Idle => told_in.min(wait_max),
            // A source without room has to wait.
            _ => wait_max,
        }
    }

    /// Pushes the available chunks to a source, up to a bound.
    fn push(&mut self, index: usize) -> Result<Rest, Refused> {
        self.release(index)?;
        for _ in 0..BURST {
            let rest = self.has_room(index)?;
            if rest != Rest::None {
                return Ok(rest);
            }
            let source = &mut self.sources[index];
            match source.outlet.next(self.terms.handed_bytes)? {
                Delivery::Chunks(progress, slice) => {
                    let descriptor = Descriptor {
                        position: slice.position() as u64,
                        bytes: slice.len() as u64,
                        ..descriptor(Kind::Chunks, &progress)
                    };
                    self.hand(index, &descriptor, Some(slice))?;
                }
                Delivery::Passed(progress) => {
                    self.hand(index, &descriptor(Kind::Moved, &progress), None)?;
                }
                Delivery::Refused(place) => self.hand(index, &refusal(&place), None)?,
                Delivery::Nothing | Delivery::Busy if source.outlet.has_more(&self.waker) => {}
                // The consumer itself may hold the missing memory.
                Delivery::Busy if !self.blocks.is_empty() => return Ok(Rest::Pressed),
                Delivery::Nothing | Delivery::Busy => return Ok(Rest::Idle),
            }
        }
        Ok(Rest::None)
    }

    /// Returns whether a source may be handed more; if not, the consumer rings when it has made
    /// progress.
    fn has_room(&mut self, index: usize) -> Result<Rest, Refused> {
        let source = &self.sources[index];
        let under_way = source.held.len();
        let ahead_bytes = self.terms.ahead_bytes.0.clamp(1, AHEAD_BYTES_MAX) as usize;
        if under_way == 0 {
            // One slice is free for each subscription. With one for each source, sources that stop could hold all memory.
            let has_room = self.blocks.is_empty() || self.broker.pins().has_room(&self.holder);
            return Ok(if has_room { Rest::None } else { Rest::Pressed });
        }
        let is_full = source.bytes >= ahead_bytes || under_way >= self.publisher.entries() as usize;
        let rest = match is_full {
            true => Rest::Full,
            false if self.broker.pins().has_room(&self.holder) => return Ok(Rest::None),
            false => Rest::Pressed,
        };
        // The consumer does not ring for each descriptor: half of its backlog is enough to go on
        // with.
        let wanted = source.finished + under_way.div_ceil(2) as u64;
        let progress = self.publisher.want_progress(index, wanted);
        Ok(match progress.map_err(bad_progress)? >= wanted {
            true => Rest::None,
            false => rest,
        })
    }

    fn hand(
        &mut self,
        index: usize,
        descriptor: &Descriptor,
        slice: Option<Slice>,
    ) -> Result<(), Refused> {
        if let Some(slice) = &slice {
            self.blocks.add(slice);
        }
        let source = &mut self.sources[index];
        if source.bytes == 0 {
            // The source held nothing before, so its stall time begins now.
            source.went_on = Instant::now();
        }
        source.bytes += slice.as_ref().map_or(0, |slice| slice.len());
        source.held.push_back(slice);
        let pushed = self.publisher.push(index, descriptor);
        pushed.map_err(|full| Refused::new(ResponseError::UnknownServerError, full.to_string()))?;
        if self.publisher.flush(index) == Rung::WaitsForByte {
            self.shared.owed[index].send_replace(true);
        }
        Ok(())
    }

    /// Releases the slices that a source has finished.
    fn release(&mut self, index: usize) -> Result<(), Refused> {
        let finished = self.publisher.progress(index).map_err(bad_progress)?;
        let source = &mut self.sources[index];
        if source.finished == finished {
            return Ok(());
        }
        while source.finished < finished {
            source.finished += 1;
            let Some(Some(slice)) = source.held.pop_front() else {
                continue;
            };
            source.bytes -= slice.len();
            self.blocks.remove(&slice);
        }
        source.went_on = Instant::now();
        Ok(())
    }
}

fn bad_progress(error: BadProgress) -> Refused {
    let message = format!("the consumer broke the rules of shared memory: {error}");
    Refused::new(ResponseError::InvalidRequest, message)
}

fn descriptor(kind: Kind, progress: &Progress) -> Descriptor {
    let Cursor {
        streamlet,
        segment,
        group,
        position,
        ..
    } = progress.cursor;
    Descriptor {
        place: progress.place,
        from: progress.from.0,
        next: progress.next.0,
        end: progress.end.0,
        cursor: millstream_share::Cursor {
            streamlet: streamlet.0,
            segment: segment.0,
            group: group.0,
            position: position.0,
        },
        start_group: progress.start.group.0,
        start_position: progress.start.position.0,
        ..Descriptor::new(kind)
    }
}

fn refusal(place: &RefusedPlace) -> Descriptor {
    Descriptor {
        place: place.place,
        code: place.refused.code().into(),
        from: place.earliest.0,
        next: place.earliest.0,
        end: place.earliest.0,
        ..Descriptor::new(Kind::Refused)
    }
}
