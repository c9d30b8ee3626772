//! The decisions of a pool: which seat has a slot. Without threads or a clock, so that tests run it in simulated time.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::class::Class;

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
/// No slot is free while a seat waits.
pub struct Schedule {
    slots: usize,
    members: BTreeMap<MemberId, Member>,
    holding: Vec<Holding>,
    /// In the order in which they came.
    waiting: Vec<Waiting>,
    /// The lead of a member that comes back, by class. Never falls.
    floors: [Duration; 2],
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
        }
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
        // Nothing waits while a slot is free.
        let has_slot = self.has_free();
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

    /// A seat that could give up its slot asks whether it has to. Then it waits for another one, and the seat that is returned
    /// has its slot now.
    pub fn offer(&mut self, seat: SeatId, now: Duration) -> Option<SeatId> {
        self.count(now);
        let index = self.holding.iter().position(|held| held.seat == seat)?;
        let held = &self.holding[index];
        let (member, class) = (held.member, self.class(held.member));
        let has_had_slice = now.saturating_sub(held.since) >= SLICE;
        let is_protected = held.has_starved && !has_had_slice;
        // Seats of one member do not take slots from each other.
        let next = self.next(now, Some(member))?;
        let waiting = &self.waiting[next];
        let is_due = match (self.class(waiting.member), class) {
            (Class::Critical, Class::BestEffort) => !is_protected,
            (Class::BestEffort, Class::Critical) => has_had_slice && self.is_starving(waiting, now),
            _ => has_had_slice && self.lead(waiting.member) <= self.lead(member),
        };
        if !is_due {
            return None;
        }
        self.holding.swap_remove(index);
        let granted = self.grant(next, now);
        self.waiting.push(Waiting {
            seat,
            member,
            since: now,
        });
        Some(granted)
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
        for held in &mut self.holding {
            let taken = now.saturating_sub(held.counted);
            held.counted = held.counted.max(now);
            let member = self.members.get_mut(&held.member).expect("it has joined");
            member.taken += taken;
            member.lead += taken / member.share;
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
            .or_else(|| of_class(Class::BestEffort));
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
