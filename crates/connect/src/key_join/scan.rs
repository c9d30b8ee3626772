//! The way over the left records that a changed key of the right stream concerns.

use millstream_base::Timestamp;
use serde::{Deserialize, Serialize};

/// A place among the left records of a secondary key: a partition, and the first key in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    pub partition: u32,
    pub key: Vec<u8>,
}

/// A way over the left records of one secondary key, from the first one to the last. Where the right key changes meanwhile, the
/// records behind the present place still see the change, and the way begins again for those before it: so it ends however often the
/// key changes, if it changes less often than once in a lap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scan {
    /// The time of the last change, in milliseconds.
    time: i64,
    /// The next place to look at.
    next: Place,
    /// The end of this lap; `None` for that of all records.
    end: Option<Place>,
    /// Another lap follows, from the first record to here.
    again: Option<Place>,
}

impl Scan {
    /// Begins with the first record.
    pub fn new(time: Timestamp) -> Scan {
        Scan {
            time: time.0,
            next: Place::default(),
            end: None,
            again: None,
        }
    }

    /// The right key has changed again.
    pub fn change(&mut self, time: Timestamp) {
        self.time = self.time.max(time.0);
        self.end = None;
        self.again = Some(self.next.clone()).filter(|place| *place != Place::default());
    }

    /// Returns the time of the last change.
    pub fn time(&self) -> Timestamp {
        Timestamp(self.time)
    }

    /// Returns the next place to look at.
    pub fn next(&self) -> &Place {
        &self.next
    }

    /// The records before `next` have been looked at; `None` at the end of all records. Returns whether there are further ones.
    pub fn advance(&mut self, next: Option<Place>) -> bool {
        let is_inside = |next: &Place| self.end.as_ref().is_none_or(|end| next < end);
        match next.filter(is_inside) {
            Some(next) => self.next = next,
            None => match self.again.take() {
                Some(end) => {
                    self.next = Place::default();
                    self.end = Some(end);
                }
                None => return false,
            },
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(key: u8) -> Place {
        Place {
            partition: 0,
            key: vec![key],
        }
    }

    /// Goes over ten keys, each a step. The right key changes before these steps. Returns the steps of the last look at each key.
    fn last_looks(changes: &[usize]) -> Vec<usize> {
        let mut scan = Scan::new(Timestamp(0));
        let mut looks = vec![0; 10];
        for step in 1.. {
            assert!(step < 1_000, "it does not end");
            if changes.contains(&step) {
                scan.change(Timestamp(step as i64));
            }
            let at = scan.next().key.first().copied().unwrap_or_default();
            looks[usize::from(at)] = step;
            if !scan.advance((at < 9).then(|| place(at + 1))) {
                return looks;
            }
        }
        unreachable!("it has ended")
    }

    #[test]
    fn each_record_is_looked_at_once_if_nothing_changes() {
        let looks = last_looks(&[]);
        assert_eq!(looks, (1..=10).collect::<Vec<_>>());
    }

    #[test]
    fn each_record_is_looked_at_after_the_last_change() {
        for changes in [
            &[1][..],
            &[2],
            &[5],
            &[10],
            &[3, 4],
            &[5, 12],
            &[5, 13, 20, 29],
        ] {
            let looks = last_looks(changes);
            let last = *changes.last().unwrap();
            assert!(
                looks.iter().all(|look| *look >= last),
                "{changes:?}: {looks:?}"
            );
        }
    }

    #[test]
    fn records_behind_the_place_of_a_change_are_not_looked_at_twice() {
        // The fifth step is that of key 4.
        assert_eq!(last_looks(&[5]), [11, 12, 13, 14, 5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn a_change_at_the_beginning_adds_nothing() {
        assert_eq!(last_looks(&[1]), last_looks(&[]));
    }
}
