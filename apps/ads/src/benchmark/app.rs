//! The applications.

use crate::workload::{ADS, CAMPAIGNS, WindowCounts};

/// A benchmark application. Each has an in-memory generator in every instance, followed by:
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum App {
    /// One windowed count: events by ad, the key that they carry.
    Swa,
    /// A filter of views; the campaign of each ad, from a table; views by campaign.
    Ysb,
    /// Views and clicks, separately; the campaign of each ad; views by campaign, clicks by
    /// campaign; both joined by window: clicks for each view.
    YsbStar,
}

/// The counts of one key in a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Counts {
    /// Events, or views.
    pub count: u64,
    /// 0 where clicks are not counted.
    pub clicks: u64,
}

impl App {
    /// Returns the application's name on the command line and among the peers.
    pub fn name(self) -> &'static str {
        match self {
            App::Swa => "swa",
            App::Ysb => "ysb",
            App::YsbStar => "ysb-star",
        }
    }

    /// Returns the bound of the keys: all are below this.
    pub fn keys(self) -> u32 {
        match self {
            App::Swa => ADS,
            App::Ysb | App::YsbStar => CAMPAIGNS,
        }
    }

    /// Returns the expected counts of a key in a window with these events; `None` when no result is
    /// expected.
    pub fn expected(self, window: &WindowCounts, key: u32) -> Option<Counts> {
        let (count, clicks) = match self {
            App::Swa => (window.of_ad(key).events(), 0),
            App::Ysb => (window.of_campaign(key).views, 0),
            App::YsbStar => {
                let counts = window.of_campaign(key);
                // A join has no result where one side has none.
                match counts.views.min(counts.clicks) {
                    0 => (0, 0),
                    _ => (counts.views, counts.clicks),
                }
            }
        };
        (count > 0).then_some(Counts { count, clicks })
    }
}
