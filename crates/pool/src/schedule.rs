//! The decisions of a pool: which seat has a slot. Without threads or a clock, so that tests run it in simulated time.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::class::Class;
use crate::controller::{FULL, Level};

/// A seat keeps its slot for this long while another seat of its class waits, unless it gives the slot back.
pub const SLICE: Duration = Duration::from_millis(1);

/// A best-effort seat that has waited for this long gets a slot for one [`SLICE`], whatever else waits.
pub const STARVING: Duration = Duration::from_millis(50);

/// A member of the pool.
pub type MemberId = u64;

/// A thread of a member.
pub type SeatId = u64;

/// The seats that hold slots, and those that wait for one.
///
/// Latency-critical seats come first. Within a class slots go by *lead*: the time for which a member has held slots,
/// divided by its share. The member with the smallest lead is next. A member that comes back starts with the lead of the
/// member that is furthest behind, so that it cannot save up time (as virtual time in fair queueing).
///
/// Best-effort work may be limited to a *level*, a part of all slots: then it has a budget of time, which is refilled at that
/// rate and holds a slice at most. At level 0 it has what a starving seat gets, and no more.
///
/// No slot is free while a seat waits that may have one.
pub struct Schedule {
    slots: usize,
    members: BTreeMap<MemberId, Member>,
    holding: Vec<Holding>,
    /// In the order in which they came.
    waiting: Vec<Waiting>,
    /// The lead of a member that comes back, by class. Never falls.
    floors: [Duration; 2],
    level: Level,
    /// The time that best-effort work may still have, in nanoseconds, below [`FULL`].
    budget_ns: i64,
    /// When the budget was last refilled.
    refilled_at: Duration,
}

/// The outcome of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offered {
    /// The seat keeps its slot.
    Keeps,
    /// It waits for another one; this seat has its slot now, if any may have it.
    Waits(Option<SeatId>),
}

struct Member {
    class: Class,
    share: u32,
    /// The time for which its seats have held slots.
    taken: Duration,
    /// The same divided by its share, and raised to the floor when it comes back.
    lead: Duration,
}

struct Holding {
    seat: SeatId,
    member: MemberId,
    since: Duration,
    /// The time up to which the slot is counted.
    counted: Duration,
    /// It got the slot because it starved: it keeps the slot for a slice.
    has_starved: bool,
}

struct Waiting {
    seat: SeatId,
    member: MemberId,
    since: Duration,
}

/// The classes of the seats that wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Latency-critical seats wait.
    pub critical: bool,
    /// Best-effort seats wait.
    pub best_effort: bool,
    /// Best-effort work is limited: its seats have to ask at each offer.
    pub is_limited: bool,
}

/// A member's part of the pool at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Seats that hold slots.
    pub holding: usize,
    /// Seats that wait for one.
    pub waiting: usize,
    /// The time for which its seats have held slots.
    pub taken: Duration,
}

impl Schedule {
    /// Creates the schedule of a pool with `slots` slots.
    pub fn new(slots: usize) -> Self {
        Schedule {
            slots,
            members: BTreeMap::new(),
            holding: Vec::new(),
            waiting: Vec::new(),
            floors: [Duration::ZERO; 2],
            level: FULL,
            budget_ns: 0,
            refilled_at: Duration::ZERO,
        }
    }

    /// Limits best-effort work to a level. Call [`fill`](Self::fill) behind it.
    pub fn limit(&mut self, level: Level, now: Duration) {
        self.count(now);
        self.level = level;
        self.budget_ns = self.budget_ns.min(0);
    }

    /// Returns the level of best-effort work.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Gives free slots to waiting seats that may have one. Returns them.
    pub fn fill(&mut self, now: Duration) -> Vec<SeatId> {
        self.count(now);
        let mut granted = Vec::new();
        while self.has_free()
            && let Some(next) = self.next(now, None)
        {
            granted.push(self.grant(next, now));
        }
        granted
    }

    /// Returns how long it takes until a waiting seat may have a slot that is free; `None` if no slot is free, or no seat waits.
    pub fn until_filled(&mut self, now: Duration) -> Option<Duration> {
        self.count(now);
        let first = self.waiting.iter().find(|_| self.has_free())?;
        let starves = (first.since + STARVING).saturating_sub(now);
        let rate = self.slots as i64 * i64::from(self.level);
        if rate == 0 {
            return Some(starves);
        }
        let refilled_ns = (1 - self.budget_ns).max(0) * i64::from(FULL) / rate;
        Some(starves.min(Duration::from_nanos(refilled_ns.unsigned_abs())))
    }

    /// Adds a member.
    ///
    /// # Panics
    /// If it is a member already, or `share` is 0.
    pub fn join(&mut self, member: MemberId, class: Class, share: u32) {
        assert!(share > 0, "the share of a member is at least 1");
        let state = Member {
            class,
            share,
            taken: Duration::ZERO,
            lead: self.floors[class as usize],
        };
        let earlier = self.members.insert(member, state);
        assert!(earlier.is_none(), "member {member} has joined twice");
    }

    /// Removes a member.
    ///
    /// # Panics
    /// If one of its seats holds a slot or waits for one.
    pub fn leave(&mut self, member: MemberId) {
        assert!(!self.is_active(member), "a seat of {member} is in use");
        self.members.remove(&member);
    }

    /// A seat wants a slot. Returns whether it has one now; otherwise it waits.
    pub fn ask(&mut self, seat: SeatId, member: MemberId, now: Duration) -> bool {
        self.count(now);
        if !self.is_active(member) {
            let state = self.members.get_mut(&member).expect("it has joined");
            state.lead = state.lead.max(self.floors[state.class as usize]);
        }
        // No seat waits that may have the free slot.
        let has_slot = self.has_free()
            && (self.class(member) == Class::Critical || self.may_have_best_effort());
        match has_slot {
            true => self.holding.push(Holding {
                seat,
                member,
                since: now,
                counted: now,
                has_starved: false,
            }),
            false => self.waiting.push(Waiting {
                seat,
                member,
                since: now,
            }),
        }
        has_slot
    }

    /// A seat gives its slot back. Returns the seat that has it now.
    pub fn give_back(&mut self, seat: SeatId, now: Duration) -> Option<SeatId> {
        self.count(now);
        let held = self.holding.iter().position(|held| held.seat == seat);
        self.holding.swap_remove(held?);
        let next = self.next(now, None)?;
        Some(self.grant(next, now))
    }

    /// A seat that could give up its slot asks whether it has to.
    ///
    /// # Panics
    /// If it has none.
    pub fn offer(&mut self, seat: SeatId, now: Duration) -> Offered {
        self.count(now);
        let held = self.holding.iter().position(|held| held.seat == seat);
        let index = held.expect("the seat has a slot");
        let held = &self.holding[index];
        let (member, class) = (held.member, self.class(held.member));
        let has_had_slice = now.saturating_sub(held.since) >= SLICE;
        if held.has_starved && !has_had_slice {
            return Offered::Keeps;
        }
        // Seats of one member do not take slots from each other.
        let next = self.next(now, Some(member));
        let has_to_go = class == Class::BestEffort && !self.may_have_best_effort();
        let is_due = next.is_some_and(|next| {
            let waiting = &self.waiting[next];
            match (self.class(waiting.member), class) {
                (Class::Critical, Class::BestEffort) => true,
                (Class::BestEffort, Class::Critical) => {
                    has_had_slice && self.is_starving(waiting, now)
                }
                _ => has_had_slice && self.lead(waiting.member) <= self.lead(member),
            }
        });
        if !is_due && !has_to_go {
            return Offered::Keeps;
        }
        self.holding.swap_remove(index);
        let granted = next.map(|next| self.grant(next, now));
        self.waiting.push(Waiting {
            seat,
            member,
            since: now,
        });
        Offered::Waits(granted)
    }

    /// Whether another seat of the member would have a slot soon: one is free, or others hold more than their part.
    pub fn has_more_for(&self, member: MemberId) -> bool {
        let class = self.class(member);
        let may_go = |held: &Holding| match (self.class(held.member), class) {
            _ if held.member == member => false,
            (Class::BestEffort, Class::Critical) => true,
            (Class::Critical, Class::BestEffort) => false,
            _ => self.lead(held.member) > self.lead(member) + SLICE,
        };
        self.has_free() || (self.waiting.is_empty() && self.holding.iter().any(may_go))
    }

    /// Whether a slot is free.
    pub fn has_free(&self) -> bool {
        self.holding.len() < self.slots
    }

    /// Whether a seat has a slot.
    pub fn holds(&self, seat: SeatId) -> bool {
        self.holding().any(|held| held == seat)
    }

    /// Returns the classes of the seats that wait.
    pub fn wanted(&self) -> Wanted {
        let waits = |class| self.waiting.iter().any(|it| self.class(it.member) == class);
        Wanted {
            critical: waits(Class::Critical),
            best_effort: waits(Class::BestEffort),
            is_limited: self.level < FULL,
        }
    }

    /// The seats that hold slots.
    pub fn holding(&self) -> impl Iterator<Item = SeatId> {
        self.holding.iter().map(|held| held.seat)
    }

    /// The seats that wait, in the order in which they came.
    pub fn waiting(&self) -> impl Iterator<Item = SeatId> {
        self.waiting.iter().map(|it| it.seat)
    }

    /// Returns the part of a member that has joined.
    pub fn part(&mut self, member: MemberId, now: Duration) -> Part {
        self.count(now);
        let holding = self.holding.iter().filter(|held| held.member == member);
        let waiting = self.waiting.iter().filter(|it| it.member == member);
        Part {
            holding: holding.count(),
            waiting: waiting.count(),
            taken: self.members[&member].taken,
        }
    }

    /// Counts the time for which slots were held, up to now.
    fn count(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.refilled_at).as_nanos() as i64;
        self.refilled_at = self.refilled_at.max(now);
        let refilled = elapsed * self.slots as i64 * i64::from(self.level) / i64::from(FULL);
        self.budget_ns = (self.budget_ns + refilled).min(SLICE.as_nanos() as i64);
        for held in &mut self.holding {
            let taken = now.saturating_sub(held.counted);
            held.counted = held.counted.max(now);
            let member = self.members.get_mut(&held.member).expect("it has joined");
            member.taken += taken;
            member.lead += taken / member.share;
            if member.class == Class::BestEffort && self.level < FULL {
                self.budget_ns -= taken.as_nanos() as i64;
            }
        }
        for class in [Class::Critical, Class::BestEffort] {
            let active = self.active().filter(|member| self.class(*member) == class);
            let least = active.map(|member| self.lead(member)).min();
            let floor = &mut self.floors[class as usize];
            *floor = least.map_or(*floor, |least| least.max(*floor));
        }
    }

    /// Returns the index of the waiting seat that is next, of members other than `except`.
    fn next(&self, now: Duration, except: Option<MemberId>) -> Option<usize> {
        let others = || {
            let waiting = self.waiting.iter().enumerate();
            waiting.filter(|(_, it)| Some(it.member) != except)
        };
        let has_best_effort = self
            .holding
            .iter()
            .any(|held| self.class(held.member) == Class::BestEffort);
        let starving = (!has_best_effort)
            .then(|| others().find(|(_, waiting)| self.is_starving(waiting, now)))
            .flatten();
        let of_class = |class| {
            let waiting = others().filter(move |(_, it)| self.class(it.member) == class);
            waiting.min_by_key(|(_, it)| self.lead(it.member))
        };
        let next = starving
            .or_else(|| of_class(Class::Critical))
            .or_else(|| of_class(Class::BestEffort).filter(|_| self.may_have_best_effort()));
        next.map(|(index, _)| index)
    }

    /// Gives a slot to a waiting seat.
    fn grant(&mut self, index: usize, now: Duration) -> SeatId {
        let has_starved = self.is_starving(&self.waiting[index], now);
        let Waiting { seat, member, .. } = self.waiting.remove(index);
        self.holding.push(Holding {
            seat,
            member,
            since: now,
            counted: now,
            has_starved,
        });
        seat
    }

    /// Whether the level leaves a slot to best-effort work.
    fn may_have_best_effort(&self) -> bool {
        self.level == FULL || self.budget_ns > 0
    }

    fn is_starving(&self, waiting: &Waiting, now: Duration) -> bool {
        self.class(waiting.member) == Class::BestEffort
            && now.saturating_sub(waiting.since) >= STARVING
    }

    fn class(&self, member: MemberId) -> Class {
        self.members[&member].class
    }

    fn lead(&self, member: MemberId) -> Duration {
        self.members[&member].lead
    }

    fn is_active(&self, member: MemberId) -> bool {
        self.active().any(|active| active == member)
    }

    /// The members with seats that hold slots or wait.
    fn active(&self) -> impl Iterator<Item = MemberId> {
        let holding = self.holding.iter().map(|held| held.member);
        holding.chain(self.waiting.iter().map(|it| it.member))
    }
}

#[cfg(test)]
mod tests;
