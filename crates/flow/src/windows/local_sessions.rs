//! Partial sessions by key.

use std::hash::Hash;

use super::aggregate::Aggregate;
use super::grid::{Lateness, is_passed};
use super::key_sessions::KeySessions;
use super::local::{Arrival, Partial};
use super::map::Map;

#[derive(Debug)]
pub(super) struct SessionTable<K, S> {
    gap_ms: i64,
    lateness: Lateness,
    by_key: Map<K, KeySessions<S>>,
    /// Sessions of all keys.
    len: usize,
    /// No session begins before this.
    first_min: i64,
}

impl<K: Hash + Eq + Clone, S> SessionTable<K, S> {
    pub fn new(gap_ms: i64, lateness: Lateness) -> Self {
        Self {
            gap_ms,
            lateness,
            by_key: Map::default(),
            len: 0,
            first_min: i64::MAX,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    #[inline(never)]
    pub fn add<T, A>(
        &mut self,
        aggregate: &A,
        key: &K,
        time: i64,
        watermark: i64,
        item: &T,
    ) -> Arrival
    where
        T: ?Sized,
        A: Aggregate<T, State = S>,
    {
        if time.saturating_add(self.gap_ms) <= self.lateness.closed_by(watermark) {
            return Arrival::Late;
        }
        self.first_min = self.first_min.min(time);
        let sessions = self.by_key.get_or_make(key, KeySessions::default);
        let before = sessions.len();
        let session = sessions.join(aggregate, self.gap_ms, time, time);
        session.cell.add(aggregate, time, item);
        self.len = self.len - before + sessions.len();
        Arrival::OnTime
    }

    /// A session that begins before the watermark could join one that ends by then.
    pub fn flush(&mut self, watermark: i64, out: &mut impl FnMut(Partial<K, S>)) {
        if self.len == 0 || !is_passed(self.first_min, watermark) {
            return;
        }
        let (mut first_min, mut len) = (i64::MAX, 0);
        self.by_key.retain(|key, sessions| {
            while let Some(earliest) = sessions.earliest() {
                if !is_passed(earliest.first, watermark) {
                    first_min = first_min.min(earliest.first);
                    break;
                }
                if let Some(session) = sessions.pop_earliest() {
                    out(Partial::new(key.clone(), session.first, 0, session.cell));
                }
            }
            len += sessions.len();
            sessions.len() > 0
        });
        (self.first_min, self.len) = (first_min, len);
    }
}
