//! The expected counts of a run.

use std::collections::BTreeMap;
use std::thread;

use super::facts::{ADS, Facts, campaign_of_ads};
use super::feed::Made;

/// The number of events of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KindCounts {
    /// Times that an ad was seen.
    pub views: u64,
    /// Times that one was clicked.
    pub clicks: u64,
    /// Times that something was bought.
    pub purchases: u64,
}

impl KindCounts {
    /// Returns the number of events of all kinds.
    pub fn events(&self) -> u64 {
        self.views + self.clicks + self.purchases
    }

    fn add(&mut self, other: &KindCounts) {
        self.views += other.views;
        self.clicks += other.clicks;
        self.purchases += other.purchases;
    }
}

/// The events of one window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowCounts {
    /// By the ad's number, then by kind.
    by_ad: Vec<[u64; 3]>,
}

impl Default for WindowCounts {
    fn default() -> WindowCounts {
        WindowCounts {
            by_ad: vec![[0; 3]; ADS as usize],
        }
    }
}

impl WindowCounts {
    /// Returns the counts of an ad.
    pub fn of_ad(&self, ad: u32) -> KindCounts {
        let [views, clicks, purchases] = self.by_ad[ad as usize];
        KindCounts {
            views,
            clicks,
            purchases,
        }
    }

    /// Returns the counts of all ads of a campaign.
    pub fn of_campaign(&self, campaign: u32) -> KindCounts {
        let mut counts = KindCounts::default();
        for (of, ad) in campaign_of_ads().into_iter().zip(0..) {
            if of == campaign {
                counts.add(&self.of_ad(ad));
            }
        }
        counts
    }
}

/// The events that instances have generated, by window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    windows: BTreeMap<i64, WindowCounts>,
    /// The earliest start of any instance's last window.
    complete_until_ms: i64,
}

impl Expected {
    /// Recounts the events that instances have generated, each from its first event on.
    pub fn of(instances: &[Vec<Made>]) -> Expected {
        let mut expected = Expected {
            windows: BTreeMap::new(),
            complete_until_ms: i64::MAX,
        };
        let parts: Vec<_> = thread::scope(|scope| {
            let threads = instances.iter().zip(0..);
            let threads: Vec<_> = threads
                .map(|(made, instance)| scope.spawn(move || count(instance, made)))
                .collect();
            threads
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .collect()
        });
        for part in parts {
            let part = part.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let last = part.last().map_or(i64::MIN, |(window, _)| *window);
            expected.complete_until_ms = expected.complete_until_ms.min(last);
            for (window, counts) in part {
                let sums = &mut expected.windows.entry(window).or_default().by_ad;
                for (sum, count) in sums.iter_mut().flatten().zip(counts.by_ad.iter().flatten()) {
                    *sum += count;
                }
            }
        }
        expected
    }

    /// Returns the windows by their starts, in milliseconds since 1970 UTC.
    pub fn windows(&self) -> &BTreeMap<i64, WindowCounts> {
        &self.windows
    }

    /// Returns the time that every instance has reached: windows that end until then are complete.
    pub fn complete_until_ms(&self) -> i64 {
        self.complete_until_ms
    }
}

fn count(instance: u32, made: &[Made]) -> Vec<(i64, WindowCounts)> {
    let mut next = 0;
    let count_window = |made: &Made| {
        let mut counts = WindowCounts::default();
        for number in next..next + made.events {
            let facts = Facts::new(instance, number);
            counts.by_ad[facts.ad() as usize][facts.kind() as usize] += 1;
        }
        next += made.events;
        (made.window_ms, counts)
    };
    made.iter().map(count_window).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Block, Fed, Feed, Schedule};
    use std::time::Duration;

    #[test]
    fn the_expected_counts_equal_the_generated_ones() {
        let schedule = Schedule {
            start_ms: -3_000,
            window_ms: 1_000,
            rate: 50_000,
            duration_ms: 3_500,
        };
        let mut found: BTreeMap<i64, WindowCounts> = BTreeMap::new();
        let mut made = Vec::new();
        for instance in 0..3 {
            let mut feed = Feed::new(schedule, instance);
            let mut block = Block::default();
            while feed.next(Duration::from_millis(3_500), &mut block) == Fed::Events {
                for event in block.events() {
                    let window = event.time_ms().div_euclid(1_000) * 1_000;
                    let counts = found.entry(window).or_default();
                    counts.by_ad[event.ad() as usize][event.kind() as usize] += 1;
                }
            }
            made.push(feed.made().to_vec());
        }
        let expected = Expected::of(&made);
        assert_eq!(*expected.windows(), found);
        assert_eq!(expected.complete_until_ms(), 0);
        let window = &expected.windows()[&-2_000];
        let by_ad: u64 = (0..ADS).map(|ad| window.of_ad(ad).events()).sum();
        let by_campaign = (0..100).map(|campaign| window.of_campaign(campaign).events());
        let by_campaign: u64 = by_campaign.sum();
        assert_eq!(by_ad, by_campaign);
        assert!((149_000..=151_000).contains(&by_ad), "{by_ad}");
    }
}
