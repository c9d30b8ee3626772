//! The applications.

use crate::workload::{ADS, CAMPAIGNS, WindowCounts};

/// What is counted. Each is a graph of an in-memory generator in every instance, and of:
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum App {
    /// One windowed count: events by ad, which is the key that they bring along.
    Swa,
    /// Views alone; the campaign of each ad, from a table; views by campaign.
    Ysb,
    /// Views and clicks, apart; the campaign of each ad; views by campaign, clicks by campaign; both joined by window:
    /// clicks for each view.
    YsbStar,
}

/// What a window says of a key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Counts {
    /// Events, or views.
    pub count: u64,
    /// 0 where none are counted.
    pub clicks: u64,
}

impl App {
    /// How the command line, and the peers, call it.
    pub fn name(self) -> &'static str {
        match self {
            App::Swa => "swa",
            App::Ysb => "ysb",
            App::YsbStar => "ysb-star",
        }
    }

    /// Keys are numbers below this.
    pub fn keys(self) -> u32 {
        match self {
            App::Swa => ADS,
            App::Ysb | App::YsbStar => CAMPAIGNS,
        }
    }

    /// What a window that holds these events must say of a key; `None` when it must say nothing.
    pub fn expected(self, window: &WindowCounts, key: u32) -> Option<Counts> {
        let (count, clicks) = match self {
            App::Swa => (window.of_ad(key).events(), 0),
            App::Ysb => (window.of_campaign(key).views, 0),
            App::YsbStar => {
                let counts = window.of_campaign(key);
                // A join has nothing where one side has nothing.
                match counts.views.min(counts.clicks) {
                    0 => (0, 0),
                    _ => (counts.views, counts.clicks),
                }
            }
        };
        (count > 0).then_some(Counts { count, clicks })
    }
}
