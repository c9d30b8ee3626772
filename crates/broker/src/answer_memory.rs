//! Memory of answers: one budget for all connections. An answer's share of it is taken before the
//! answer is built, and given back when the client has read the answer or the connection has ended.
//!
//! The budget has three parts. No connection waits for a part while it holds memory of the same or
//! of a later one, so no two connections wait for each other:
//!
//! 1. [`Part::Small`]: answers of known size that may stand behind others that wait.
//! 2. [`Part::Large`]: the other answers of known size, and those that describe the broker's state. A request for one
//!    of these begins when all earlier ones of its connection are answered.
//! 3. [`Part::Late`]: answers that are built after a wait, for records or for other clients. They
//!    are built at the head of their connection's queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit of the account, in bytes: about the answer to a small request.
const UNIT: usize = 256;

/// Answers up to this size are small.
pub const SMALL_BYTES_MAX: usize = 64 << 10;

/// The most answers of unknown size that are built at once. Until its size is known, the budget does not count the
/// answer; it counts all others.
const UNCOUNTED_MAX: usize = 1;

/// A part of the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Small,
    Large,
    Late,
}

/// Each part of the budget has this many of the [`SHARES`]. Records are sent from where they lie,
/// but a slow client's rest of them is copied into memory of the last part.
const PARTS: [(Part, usize); 3] = [(Part::Small, 1), (Part::Large, 1), (Part::Late, 2)];
const SHARES: usize = 4;

/// The budget for answers.
#[derive(Debug)]
pub struct AnswerMemory {
    /// In the order of [`PARTS`].
    accounts: [Arc<Account>; PARTS.len()],
    /// See [`UNCOUNTED_MAX`].
    turns: Arc<Semaphore>,
}

/// The account of one part.
#[derive(Debug)]
struct Account {
    part: Part,
    free: Semaphore,
    /// The size of the part, in units.
    units: u32,
    /// How many answers wait for memory.
    waiting: AtomicUsize,
}

/// Memory of one or more answers. Dropping it gives the memory back.
#[derive(Debug)]
pub struct AnswerRoom {
    account: Arc<Account>,
    units: u32,
}

impl AnswerMemory {
    /// Returns a budget of `bytes` bytes.
    pub fn new(bytes: usize) -> AnswerMemory {
        let account = |(part, shares)| Arc::new(Account::new(part, bytes / SHARES * shares));
        AnswerMemory {
            accounts: PARTS.map(account),
            turns: Arc::new(Semaphore::new(UNCOUNTED_MAX)),
        }
    }

    /// Returns how many bytes are in use.
    pub fn used(&self) -> u64 {
        let used = self.accounts.iter().map(|account| {
            let free = u32::try_from(account.free.available_permits()).unwrap_or(u32::MAX);
            u64::from(account.units.saturating_sub(free))
        });
        used.sum::<u64>() * UNIT as u64
    }

    fn account(&self, part: Part) -> &Arc<Account> {
        &self.accounts[part as usize]
    }

    /// Takes memory for an answer of `bytes` bytes, if it is available at once.
    pub fn try_take(&self, part: Part, bytes: usize) -> Option<AnswerRoom> {
        let account = self.account(part);
        let units = account.units_of(bytes);
        account.free.try_acquire_many(units).ok()?.forget();
        Some(AnswerRoom {
            account: Arc::clone(account),
            units,
        })
    }

    /// Waits for memory for an answer of `bytes` bytes.
    pub async fn take(&self, part: Part, bytes: usize) -> AnswerRoom {
        if let Some(room) = self.try_take(part, bytes) {
            return room;
        }
        let account = self.account(part);
        let units = account.units_of(bytes);
        let _waiting = Waiting::begin(account);
        let permit = account.free.acquire_many(units).await;
        permit.expect("the semaphore is never closed").forget();
        AnswerRoom {
            account: Arc::clone(account),
            units,
        }
    }

    /// Waits for the turn to build an answer of unknown size. The turn ends when the permit is
    /// dropped, which is after the answer has its memory.
    pub async fn turn(&self) -> OwnedSemaphorePermit {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        turn.expect("the semaphore is never closed")
    }
}

impl Account {
    fn new(part: Part, bytes: usize) -> Account {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX).max(1);
        Account {
            part,
            free: Semaphore::new(units as usize),
            units,
            waiting: AtomicUsize::new(0),
        }
    }

    /// Returns an answer's units. An answer that exceeds its part waits until it is alone there.
    fn units_of(&self, bytes: usize) -> u32 {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        units.clamp(1, self.units)
    }
}

/// Counts a wait, however it ends.
struct Waiting<'a>(&'a Account);

impl Waiting<'_> {
    fn begin(account: &Account) -> Waiting<'_> {
        account.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(account)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AnswerRoom {
    /// Returns its size.
    pub fn bytes(&self) -> usize {
        self.units as usize * UNIT
    }

    /// Returns whether it is enough for an answer of `bytes` bytes, or all that there is.
    pub fn covers(&self, bytes: usize) -> bool {
        self.units >= self.account.units_of(bytes)
    }

    /// Takes as much more as an answer of `bytes` bytes needs, if it is available at once. Returns
    /// whether the room now covers the answer.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let more = self.account.units_of(bytes).saturating_sub(self.units);
        let taken = more == 0
            || self
                .account
                .free
                .try_acquire_many(more)
                .map(|it| it.forget())
                .is_ok();
        if taken {
            self.units += more;
        }
        taken
    }

    /// Gives back all but `bytes` bytes.
    pub fn shrink(&mut self, bytes: usize) {
        let units = self.account.units_of(bytes);
        if let Some(more) = self.units.checked_sub(units) {
            self.units = units;
            self.account.free.add_permits(more as usize);
        }
    }

    /// Returns the memory beyond `bytes` bytes, which this room then no longer has.
    pub fn split_off(&mut self, bytes: usize) -> AnswerRoom {
        let units = self.units.min(self.account.units_of(bytes));
        AnswerRoom {
            account: Arc::clone(&self.account),
            units: std::mem::replace(&mut self.units, units) - units,
        }
    }

    /// Returns whether other answers wait for memory of this part of the budget.
    pub fn is_wanted(&self) -> bool {
        self.account.waiting.load(Ordering::Relaxed) > 0
    }
}

impl Drop for AnswerRoom {
    fn drop(&mut self) {
        self.account.free.add_permits(self.units as usize);
    }
}

/// The memory of answers that are written together.
#[derive(Debug, Default)]
pub struct AnswerRooms([Option<AnswerRoom>; PARTS.len()]);

impl AnswerRooms {
    pub fn add(&mut self, mut room: AnswerRoom) {
        match &mut self.0[room.account.part as usize] {
            Some(rooms) => rooms.units += std::mem::take(&mut room.units),
            none => *none = Some(room),
        }
    }

    /// Returns whether other answers wait for memory that this one has.
    pub fn are_wanted(&self) -> bool {
        self.0.iter().flatten().any(AnswerRoom::is_wanted)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const BUDGET: usize = 4 << 20;

    #[tokio::test]
    async fn each_part_of_the_budget_leaves_the_others_their_memory() {
        let memory = AnswerMemory::new(BUDGET);
        let mut rooms = Vec::new();
        for (part, shares) in PARTS {
            let part_bytes = BUDGET / SHARES * shares;
            let room = memory.take(part, part_bytes + 1).await;
            assert_eq!(room.bytes(), part_bytes, "one that is too large is alone");
            assert!(memory.try_take(part, 0).is_none());
            rooms.push(room);
        }
        assert_eq!(memory.used(), BUDGET as u64);
        drop(rooms);
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn memory_freed_by_one_answer_goes_to_waiting_answers() {
        let memory = Arc::new(AnswerMemory::new(BUDGET));
        let mut large = memory.take(Part::Large, usize::MAX).await;
        assert!(!large.is_wanted());
        let second = tokio::spawn({
            let memory = Arc::clone(&memory);
            async move { memory.take(Part::Large, 1000).await }
        });
        while !large.is_wanted() {
            tokio::task::yield_now().await;
        }
        large.shrink(100_000);
        let second = timeout(Duration::from_secs(10), second).await;
        let mut rooms = AnswerRooms::default();
        rooms.add(large);
        rooms.add(second.expect("there is room").unwrap());
        rooms.add(memory.take(Part::Small, 1).await);
        assert!(!rooms.are_wanted());
        assert_eq!(memory.used(), (391 + 4 + 1) * UNIT as u64);
        drop(rooms);
        assert_eq!(memory.used(), 0);
        // One that gives up its wait leaves nothing behind.
        let all = memory.take(Part::Late, usize::MAX).await;
        let wait = memory.take(Part::Late, 1);
        assert!(timeout(Duration::from_millis(10), wait).await.is_err());
        assert!(!all.is_wanted());
    }

    #[test]
    fn shrinking_a_room_to_a_larger_size_changes_nothing() {
        let memory = AnswerMemory::new(BUDGET);
        let mut room = memory.try_take(Part::Small, 1000).unwrap();
        room.shrink(2000);
        assert_eq!(room.bytes(), 1024);
        room.shrink(0);
        assert_eq!(room.bytes(), UNIT);
    }

    #[test]
    fn both_halves_of_a_split_room_return_their_own_memory() {
        let memory = AnswerMemory::new(BUDGET);
        let mut room = memory.try_take(Part::Late, 4096).unwrap();
        let rest = room.split_off(1000);
        assert_eq!((room.bytes(), rest.bytes()), (1024, 3072));
        assert_eq!(room.split_off(2000).bytes(), 0);
        drop(room);
        assert_eq!(memory.used(), 3072);
        drop(rest);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn a_room_grows_only_while_there_is_memory() {
        let memory = AnswerMemory::new(BUDGET);
        let mut room = memory.try_take(Part::Small, 1000).unwrap();
        assert!(room.grow(500) && room.bytes() == 1024);
        assert!(room.grow(2000) && room.bytes() == 2048);
        let other = memory
            .try_take(Part::Small, BUDGET / SHARES - 4096)
            .unwrap();
        assert!(!room.grow(8192) && room.bytes() == 2048);
        assert!(!room.covers(8192));
        drop(other);
        assert!(room.grow(usize::MAX) && room.covers(usize::MAX));
        drop(room);
        assert_eq!(memory.used(), 0);
    }
}
