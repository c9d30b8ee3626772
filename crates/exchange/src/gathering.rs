//! The points where a rank waits for all others: at the beginning and at the end.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::ExchangeError;
use crate::fate::Fate;
use crate::fingerprint::{Fingerprint, Hello};

/// The most unread hellos of a rank: a rank that has finished an agreement may have begun the next one, but no further,
/// since that needs all others.
const HELLOS_MAX: usize = 2;

/// The arrivals from each rank: its hellos, and whether it has left.
pub struct Gathering {
    state: Mutex<State>,
    /// All are here, one is gone, or there was a failure.
    changed: Condvar,
}

struct State {
    ranks: Vec<Presence>,
    /// The number of ranks with an unread hello.
    here: usize,
    gone: usize,
    /// The last fingerprint. Most ranks send the same, and one copy of it is enough.
    last: Option<Arc<Fingerprint>>,
}

impl State {
    /// The first rank that is not here, and does not come any more.
    fn left_without_hello(&self) -> Option<u32> {
        let mut ranks = (0..).zip(&self.ranks);
        let (rank, _) = ranks.find(|(_, rank)| rank.has_left && rank.hellos.is_empty())?;
        Some(rank)
    }
}

#[derive(Debug, Clone, Default)]
struct Presence {
    hellos: VecDeque<Hello>,
    has_left: bool,
}

impl Gathering {
    pub fn new(count: u32) -> Gathering {
        let ranks = vec![Presence::default(); count as usize];
        Gathering {
            state: Mutex::new(State {
                ranks,
                here: 0,
                gone: 0,
                last: None,
            }),
            changed: Condvar::new(),
        }
    }

    /// Adds a rank's hello.
    ///
    /// # Errors
    /// When the rank sends too many.
    pub fn say_hello(&self, from: u32, mut hello: Hello) -> Result<(), String> {
        let mut state = self.state.lock();
        let state = &mut *state;
        match &state.last {
            Some(last) if *last == hello.fingerprint => hello.fingerprint = last.clone(),
            _ => state.last = Some(hello.fingerprint.clone()),
        }
        let hellos = &mut state.ranks[from as usize].hellos;
        if hellos.len() == HELLOS_MAX {
            return Err("it began too many agreements".to_owned());
        }
        hellos.push_back(hello);
        if hellos.len() == 1 {
            state.here += 1;
        }
        if state.here == state.ranks.len() {
            self.changed.notify_all();
        }
        Ok(())
    }

    pub fn leave(&self, from: u32) {
        let mut state = self.state.lock();
        let had_left = mem::replace(&mut state.ranks[from as usize].has_left, true);
        state.gone += usize::from(!had_left);
        // All have left, or one for which the others wait.
        self.changed.notify_all();
    }

    /// Wakes the waiters after a failure.
    pub fn disturb(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    /// Waits for the next hello of every rank; in order of the ranks. The inner error is a rank that has left without
    /// one.
    pub fn all_hellos(&self, fate: &Fate) -> Result<Result<Vec<Hello>, u32>, ExchangeError> {
        let mut state = self.wait(fate, |state| {
            state.here == state.ranks.len() || state.left_without_hello().is_some()
        })?;
        if let Some(rank) = state.left_without_hello() {
            return Ok(Err(rank));
        }
        let hellos = state
            .ranks
            .iter_mut()
            .filter_map(|rank| rank.hellos.pop_front())
            .collect();
        state.here = state
            .ranks
            .iter()
            .filter(|rank| !rank.hellos.is_empty())
            .count();
        Ok(Ok(hellos))
    }

    /// Waits until every rank has left.
    pub fn all_left(&self, fate: &Fate) -> Result<(), ExchangeError> {
        self.wait(fate, |state| state.gone == state.ranks.len())
            .map(drop)
    }

    fn wait(
        &self,
        fate: &Fate,
        is_done: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'_, State>, ExchangeError> {
        let mut state = self.state.lock();
        loop {
            fate.check()?;
            if is_done(&state) {
                return Ok(state);
            }
            self.changed.wait(&mut state);
        }
    }
}
