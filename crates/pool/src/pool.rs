//! A pool and its members.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use parking_lot::Mutex;
use serde::Serialize;

use crate::class::Class;
use crate::controller::Level;
use crate::objective::{Objective, seconds};
use crate::schedule::{MemberId, Schedule, SeatId, Wanted};
use crate::seat::{Cell, STALL, Seat};
use crate::supervisor::{Decision, Meter, ObjectiveView, Supervisor};

/// The slots of a process, and the members that share them.
pub struct Pool {
    slots: NonZeroUsize,
    started_at: Instant,
    /// The classes that seats wait for, as flags. Written under the lock of `state`, read by seats without it: a seat that
    /// sees a flag late offers its slot a little later.
    wanted: AtomicU8,
    /// Whether a slot is free. Written under the lock of `state`, read without it as a hint.
    has_free: AtomicBool,
    pub(crate) state: Mutex<State>,
    supervisor: Arc<Supervisor>,
}

/// The members and the seats. Under the lock of the pool.
pub struct State {
    pub schedule: Schedule,
    /// The waiting seat that looks for blocked threads from time to time.
    pub watcher: Option<SeatId>,
    seats: BTreeMap<SeatId, SeatState>,
    names: BTreeMap<MemberId, (String, Class, NonZeroUsize)>,
    /// How often a slot was taken from a blocked thread.
    stalls: u64,
    /// The id of the last member or seat that was added.
    last_id: u64,
}

struct SeatState {
    cell: Arc<Cell>,
    /// The offers of its thread when the watcher last saw a new one or it got its slot, and when that was.
    seen: (u64, Duration),
}

const CRITICAL: u8 = 1;
const BEST_EFFORT: u8 = 2;
const LIMITED: u8 = 4;

/// A member's part of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemberView {
    /// Its name.
    pub name: String,
    /// The class of its work.
    pub class: Class,
    /// Its share.
    pub share: usize,
    /// Threads of it that hold a slot.
    pub holding: usize,
    /// Threads of it that wait for a slot.
    pub waiting: usize,
    /// The time for which its threads have held slots; in JSON `taken_seconds`.
    #[serde(rename = "taken_seconds", serialize_with = "seconds")]
    pub taken: Duration,
}

/// A pool at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PoolView {
    /// The number of slots.
    pub slots: usize,
    /// The part of all slots that best-effort work may have, in percent.
    pub level: Level,
    /// How often a slot was taken from a blocked thread.
    pub stalls: u64,
    /// The members in the order in which they joined.
    pub members: Vec<MemberView>,
    /// The objectives, and how they stand.
    pub objectives: Vec<ObjectiveView>,
    /// The last changes of the level, the newest last.
    pub decisions: Vec<Decision>,
    /// The time since the pool was created, on the scale of the decisions.
    pub age_seconds: f64,
}

impl Pool {
    /// Creates a pool with this number of slots.
    pub fn new(slots: NonZeroUsize) -> Arc<Pool> {
        let started_at = Instant::now();
        Arc::new_cyclic(|pool| Pool {
            slots,
            started_at,
            wanted: AtomicU8::new(0),
            has_free: AtomicBool::new(true),
            state: Mutex::new(State {
                schedule: Schedule::new(slots.get()),
                watcher: None,
                seats: BTreeMap::new(),
                names: BTreeMap::new(),
                stalls: 0,
                last_id: 0,
            }),
            supervisor: Supervisor::new(pool, started_at),
        })
    }

    /// Returns the pool of the process, with a slot for each processor that the process may use.
    pub fn of_process() -> Arc<Pool> {
        static POOL: OnceLock<Arc<Pool>> = OnceLock::new();
        let processors = || thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Arc::clone(POOL.get_or_init(|| Pool::new(processors())))
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> NonZeroUsize {
        self.slots
    }

    /// Adds a member. Its work gets slots by its class; beside others of the class, by its share.
    pub fn join(self: &Arc<Self>, name: &str, class: Class, share: NonZeroUsize) -> Arc<Member> {
        let mut state = self.state.lock();
        let id = state.new_id();
        let part = u32::try_from(share.get()).unwrap_or(u32::MAX);
        state.schedule.join(id, class, part);
        state.names.insert(id, (name.to_owned(), class, share));
        drop(state);
        Arc::new(Member {
            pool: Arc::clone(self),
            id,
            class,
        })
    }

    /// Returns the members in the order in which they joined.
    pub fn view(&self) -> Vec<MemberView> {
        let now = self.now();
        let state = &mut *self.state.lock();
        let names = state.names.iter();
        let view = names.map(|(id, (name, class, share))| {
            let part = state.schedule.part(*id, now);
            MemberView {
                name: name.clone(),
                class: *class,
                share: share.get(),
                holding: part.holding,
                waiting: part.waiting,
                taken: part.taken,
            }
        });
        view.collect()
    }

    /// Returns all that is to be seen of the pool.
    pub fn report(&self) -> PoolView {
        let state = self.state.lock();
        let (level, stalls) = (state.schedule.level(), state.stalls);
        drop(state);
        PoolView {
            slots: self.slots.get(),
            level,
            stalls,
            members: self.view(),
            objectives: self.objectives(),
            decisions: self.decisions(),
            age_seconds: self.now().as_secs_f64(),
        }
    }

    /// Adds work with an objective: the result measures its requests. While an objective is missed, best-effort work has hardly
    /// any slots; it gets them back step by step while all latencies are low.
    ///
    /// # Errors
    /// If the machine gives no thread.
    pub fn objective(&self, name: &str, objective: Objective) -> io::Result<Arc<Meter>> {
        self.supervisor.add(name, objective)
    }

    /// Returns the objectives and how they stand.
    pub fn objectives(&self) -> Vec<ObjectiveView> {
        self.supervisor.objectives()
    }

    /// Returns the last changes of the level of best-effort work, the newest last.
    pub fn decisions(&self) -> Vec<Decision> {
        self.supervisor.decisions()
    }

    /// Returns the time that a thread computes at most, as far as it can tell, before it offers its slot: 50 µs, or the 200th part of
    /// the shortest objective, but no less than 10 µs.
    pub fn activation_ns(&self) -> u64 {
        self.supervisor.activation_ns()
    }

    /// Limits best-effort work to this part of all slots.
    pub(crate) fn limit_best_effort(&self, level: Level) {
        let now = self.now();
        let mut state = self.state.lock();
        state.schedule.limit(level, now);
        state.look_after(now);
        self.publish(&state);
    }

    /// Returns how often a slot was taken from a thread that had not offered it for [`STALL`] while others waited.
    pub fn stalls(&self) -> u64 {
        self.state.lock().stalls
    }

    /// The time since the pool was created.
    pub(crate) fn now(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// Tells seats without the lock how the schedule stands. The caller holds the lock.
    pub(crate) fn publish(&self, state: &State) {
        let Wanted {
            critical,
            best_effort,
            is_limited,
        } = state.schedule.wanted();
        let critical = if critical { CRITICAL } else { 0 };
        let best_effort = if best_effort { BEST_EFFORT } else { 0 };
        let limited = if is_limited { LIMITED } else { 0 };
        self.wanted
            .store(critical | best_effort | limited, Ordering::Relaxed);
        let has_free = state.schedule.has_free();
        self.has_free.store(has_free, Ordering::Relaxed);
    }

    /// Whether a seat of the class has to ask now and then whether it has to give up its slot, and whether it has to ask at
    /// each offer.
    #[inline]
    pub(crate) fn wanted_beside(&self, class: Class) -> (bool, bool) {
        let wanted = self.wanted.load(Ordering::Relaxed);
        let at_once = class == Class::BestEffort && wanted & (CRITICAL | LIMITED) > 0;
        (wanted > 0, at_once)
    }
}

impl State {
    pub fn add_seat(&mut self, cell: &Arc<Cell>) -> SeatId {
        let id = self.new_id();
        let seat = SeatState {
            cell: Arc::clone(cell),
            seen: (0, Duration::ZERO),
        };
        self.seats.insert(id, seat);
        id
    }

    /// Removes a seat without a slot.
    pub fn remove_seat(&mut self, id: SeatId) {
        self.seats.remove(&id);
    }

    /// A seat has got a slot. Wakes its thread.
    pub fn begin(&mut self, id: SeatId, now: Duration) {
        let seat = self.seat(id);
        seat.seen = (seat.cell.offers.load(Ordering::Relaxed), now);
        seat.cell.bell.notify_one();
    }

    /// Takes the slot of a seat, for the next one.
    pub fn take_back(&mut self, id: SeatId, now: Duration) {
        if let Some(next) = self.schedule.give_back(id, now) {
            self.begin(next, now);
        }
    }

    /// Gives free slots to seats that may have one by now, and takes those of threads that have not offered them for long.
    pub fn look_after(&mut self, now: Duration) {
        for next in self.schedule.fill(now) {
            self.begin(next, now);
        }
        let holding: Vec<SeatId> = self.schedule.holding().collect();
        for id in holding {
            let seat = self.seat(id);
            let offers = seat.cell.offers.load(Ordering::Relaxed);
            let (seen, seen_at) = seat.seen;
            if offers != seen {
                seat.seen = (offers, now);
            } else if now.saturating_sub(seen_at) >= STALL {
                seat.cell.is_revoked.store(true, Ordering::Relaxed);
                self.stalls += 1;
                self.take_back(id, now);
            }
        }
    }

    /// Makes another waiting seat the watcher.
    pub fn next_watcher(&mut self) {
        self.watcher = self.schedule.waiting().next();
        if let Some(watcher) = self.watcher {
            self.seat(watcher).cell.bell.notify_one();
        }
    }

    fn seat(&mut self, id: SeatId) -> &mut SeatState {
        self.seats.get_mut(&id).expect("a seat of the schedule")
    }

    fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.supervisor.close();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

/// A member of a pool, such as a flow. Leaves the pool when it and its seats are dropped.
pub struct Member {
    pub(crate) pool: Arc<Pool>,
    pub(crate) id: MemberId,
    pub(crate) class: Class,
}

impl Member {
    /// Returns a seat for one thread, without a slot.
    pub fn seat(self: &Arc<Self>) -> Seat {
        Seat::new(self)
    }

    /// Returns its pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Whether another thread of the member would have a slot soon: a slot is free, or others have more than their part.
    pub fn has_room(&self) -> bool {
        self.pool.has_free.load(Ordering::Relaxed)
            || self.pool.state.lock().schedule.has_more_for(self.id)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.schedule.leave(self.id);
        state.names.remove(&self.id);
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("id", &self.id)
            .field("class", &self.class)
            .finish_non_exhaustive()
    }
}
