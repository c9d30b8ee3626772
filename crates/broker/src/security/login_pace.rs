//! Slows down guesses of passwords: for each user and network, and for each network over all users.
//!
//! After a wrong password, the next attempt of the same user from the same network waits before its
//! check, and each further failure doubles the wait. Attempts wait before the check and not before
//! the answer, since otherwise many connections could guess concurrently. A user's attempts from
//! other networks do not wait, so wrong logins from one network do not lock a user out elsewhere. A
//! network with many failures, for any names, waits as a whole, except for users with a recent
//! successful login from there.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

/// The wait after the first wrong password. Each further one doubles it.
const DELAY_MIN: Duration = Duration::from_millis(100);

/// The longest wait of a user and network: 17,280 guesses a day.
const DELAY_MAX: Duration = Duration::from_secs(5);

/// The failures of a network, over all users, after which it waits as a whole.
const NETWORK_FAILURES_FREE: u32 = 100;

/// The longest wait of a network. It is shorter than that of a user, since many users may come from there.
const NETWORK_DELAY_MAX: Duration = Duration::from_secs(1);

/// Failures and successes are forgotten after this time without another one.
const FORGET_AFTER: Duration = Duration::from_secs(15 * 60);

/// The most users and networks that are remembered; beyond, the older half is forgotten.
const ENTRIES_MAX: usize = 1 << 16;

/// The longest wait of an attempt for its check; beyond, it is refused unchecked. A client that
/// waits for longer has gone.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// An attempt to log in: the user and the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    of_user: Key,
    of_network: Key,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    network: IpAddr,
    /// The hash of the user's name, which may be long; `None` for all users of the network.
    user: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// Wrong passwords since the last right one.
    failures: u32,
    /// No attempt is checked before this time.
    free_at: Duration,
    /// The last failure or success.
    last: Duration,
}

/// The users and networks that failed to log in lately.
#[derive(Debug, Default)]
pub struct LoginPace {
    entries: HashMap<Key, Entry>,
    hasher: RandomState,
}

impl LoginPace {
    /// Returns an attempt as a user, which need not exist, from an address.
    pub fn attempt(&self, user: &str, from: IpAddr) -> Attempt {
        let network = network(from);
        Attempt {
            of_user: Key {
                network,
                user: Some(self.hasher.hash_one(user)),
            },
            of_network: Key {
                network,
                user: None,
            },
        }
    }

    /// Begins an attempt if it may be checked now. After failures, the next attempt of the same
    /// user and network then has to wait.
    ///
    /// # Errors
    /// When the attempt has to wait: returns the time to try again.
    pub fn begin(&mut self, attempt: Attempt, now: Duration) -> Result<(), Duration> {
        let keys = [Some(attempt.of_user), self.network_of(attempt, now)];
        let keys = keys.into_iter().flatten();
        let free_at = keys.clone().filter_map(|key| self.fresh(key, now));
        let free_at = free_at.map(|entry| entry.free_at).max().unwrap_or_default();
        if free_at > now {
            return Err(free_at);
        }
        for key in keys {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.free_at = now + delay(key, entry.failures);
            }
        }
        Ok(())
    }

    /// Notes that the password was wrong, or the user unknown.
    pub fn failed(&mut self, attempt: Attempt, now: Duration) {
        for key in [attempt.of_user, attempt.of_network] {
            let mut entry = self.fresh(key, now).unwrap_or_default();
            entry.failures = entry.failures.saturating_add(1);
            entry.free_at = now + delay(key, entry.failures);
            entry.last = now;
            self.set(key, entry);
        }
    }

    /// Notes that the password was right: failures of this user from this network no longer count.
    pub fn succeeded(&mut self, attempt: Attempt, now: Duration) {
        let entry = Entry {
            last: now,
            ..Entry::default()
        };
        self.set(attempt.of_user, entry);
    }

    /// Returns the network of an attempt, unless the user has logged in from there lately, and not
    /// failed since.
    fn network_of(&self, attempt: Attempt, now: Duration) -> Option<Key> {
        let is_good = |entry: Entry| entry.failures == 0;
        let is_good = self.fresh(attempt.of_user, now).is_some_and(is_good);
        (!is_good).then_some(attempt.of_network)
    }

    fn fresh(&self, key: Key, now: Duration) -> Option<Entry> {
        let entry = self.entries.get(&key).copied();
        entry.filter(|entry| is_fresh(entry, now))
    }

    fn set(&mut self, key: Key, entry: Entry) {
        if self.entries.len() >= ENTRIES_MAX && !self.entries.contains_key(&key) {
            self.make_room(entry.last);
        }
        self.entries.insert(key, entry);
    }

    fn make_room(&mut self, now: Duration) {
        self.entries.retain(|_, entry| is_fresh(entry, now));
        if self.entries.len() < ENTRIES_MAX {
            return;
        }
        let mut times: Vec<Duration> = self.entries.values().map(|entry| entry.last).collect();
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(middle);
        let median = *median;
        let mut excess = middle;
        self.entries.retain(|_, entry| {
            let goes = entry.last <= median && excess > 0;
            excess -= usize::from(goes);
            !goes
        });
    }
}

fn is_fresh(entry: &Entry, now: Duration) -> bool {
    now.saturating_sub(entry.last) < FORGET_AFTER
}

/// Returns the wait after `failures` failures.
fn delay(key: Key, failures: u32) -> Duration {
    let (failures, max) = match key.user {
        Some(_) => (failures, DELAY_MAX),
        None => (
            failures.saturating_sub(NETWORK_FAILURES_FREE),
            NETWORK_DELAY_MAX,
        ),
    };
    let Some(doublings) = failures.checked_sub(1) else {
        return Duration::ZERO;
    };
    let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
    DELAY_MIN.saturating_mul(factor).min(max)
}

/// Returns the network of an address: for IPv4 the address itself; for IPv6 its first 64 bits,
/// since a single machine usually has all addresses behind them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTACKER: &str = "10.0.0.1";

    fn attempt(pace: &LoginPace, user: &str, from: &str) -> Attempt {
        pace.attempt(user, from.parse().unwrap())
    }

    /// Guesses concurrently; returns when the last guess was checked.
    fn guess(pace: &mut LoginPace, users: impl Iterator<Item = String>, from: &str) -> Duration {
        let mut now = Duration::from_secs(1);
        for user in users {
            let attempt = attempt(pace, &user, from);
            while let Err(until) = pace.begin(attempt, now) {
                assert!(until > now);
                now = until;
            }
            pace.failed(attempt, now);
        }
        now
    }

    #[test]
    fn a_hundred_guesses_take_minutes() {
        let mut pace = LoginPace::default();
        let users = (0..100).map(|_| "alice".to_owned());
        let end = guess(&mut pace, users, ATTACKER);
        // 0.1 + 0.2 + … + 3.2, and 93 times 5 seconds.
        assert!(end > Duration::from_secs(470), "{end:?}");
        let after = |user, from| pace.begin_of(user, from, end);
        assert!(after("alice", ATTACKER).is_err());
        assert!(after("bob", ATTACKER).is_ok());
        assert!(after("alice", "10.0.0.2").is_ok());
    }

    impl LoginPace {
        fn begin_of(&self, user: &str, from: &str, now: Duration) -> Result<(), Duration> {
            let mut pace = LoginPace {
                entries: self.entries.clone(),
                hasher: self.hasher.clone(),
            };
            let attempt = attempt(&pace, user, from);
            pace.begin(attempt, now)
        }
    }

    #[test]
    fn guesses_under_many_user_names_are_delayed_too() {
        let mut pace = LoginPace::default();
        let early = attempt(&pace, "early", ATTACKER);
        pace.succeeded(early, Duration::from_secs(1));
        let users = (0..400).map(|number| format!("user {number}"));
        let end = guess(&mut pace, users, ATTACKER);
        assert!(end > Duration::from_secs(290), "{end:?}");
        assert!(pace.begin_of("bob", ATTACKER, end).is_err());
        assert!(pace.begin_of("bob", "10.0.0.2", end).is_ok());
        assert!(pace.begin_of("early", ATTACKER, end).is_ok());
    }

    #[test]
    fn after_a_failure_concurrent_password_checks_run_one_at_a_time() {
        let mut pace = LoginPace::default();
        let now = Duration::from_secs(1);
        let alice = attempt(&pace, "alice", ATTACKER);
        pace.failed(alice, now);
        let now = pace.begin(alice, now).unwrap_err();
        assert_eq!(pace.begin(alice, now), Ok(()));
        // The first is not checked yet.
        assert!(pace.begin(alice, now).is_err());
    }

    #[test]
    fn a_correct_password_or_a_quiet_time_ends_the_delay() {
        let mut pace = LoginPace::default();
        let now = Duration::from_secs(1);
        let alice = attempt(&pace, "alice", ATTACKER);
        for _ in 0..20 {
            pace.failed(alice, now);
        }
        assert_eq!(pace.begin(alice, now), Err(now + DELAY_MAX));
        assert_eq!(pace.begin_of("alice", ATTACKER, now + FORGET_AFTER), Ok(()));
        let mut again = LoginPace {
            entries: pace.entries.clone(),
            hasher: pace.hasher.clone(),
        };
        again.failed(alice, now + FORGET_AFTER);
        let delay = DELAY_MIN;
        let now_again = now + FORGET_AFTER;
        assert_eq!(again.begin(alice, now_again), Err(now_again + delay));

        pace.succeeded(alice, now);
        assert_eq!(pace.begin(alice, now), Ok(()));
        pace.failed(alice, now);
        assert_eq!(pace.begin(alice, now), Err(now + DELAY_MIN));
    }

    #[test]
    fn addresses_of_one_ipv6_prefix_share_their_delay() {
        let pace = LoginPace::default();
        let of = |from| attempt(&pace, "alice", from);
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }

    #[test]
    fn memory_is_bounded() {
        let mut pace = LoginPace::default();
        for number in 0..(ENTRIES_MAX as u32 * 2) {
            let from = IpAddr::from(number.to_be_bytes());
            let alice = pace.attempt("alice", from);
            pace.failed(alice, Duration::from_millis(u64::from(number)));
            assert!(pace.entries.len() <= ENTRIES_MAX);
        }
        // The latest are still remembered.
        assert!(pace.entries.len() >= ENTRIES_MAX / 2);
        let last = IpAddr::from((ENTRIES_MAX as u32 * 2 - 1).to_be_bytes());
        let now = Duration::from_millis(ENTRIES_MAX as u64 * 2 - 1);
        let alice = pace.attempt("alice", last);
        assert!(pace.begin(alice, now).is_err());
    }
}
