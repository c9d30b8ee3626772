//! Generates events from a seed.

use fastrand::Rng;
use millstream_base::Timestamp;

use crate::event::{AGENT_BYTES, Ad, Campaign, Event, Kind};

/// The number of campaigns.
pub const CAMPAIGNS: u32 = 100;

/// The number of ads of each campaign.
pub const AD_CAMPAIGNS: u32 = 10;

/// The number of ads.
pub const ADS: u32 = CAMPAIGNS * AD_CAMPAIGNS;

/// The seed of the campaigns. It is constant, so that an ad's campaign is the same in every run: stored events outlive a
/// run.
const CAMPAIGNS_SEED: u64 = 0xAD5;

/// User agents of common programs.
const AGENTS: [[u8; AGENT_BYTES]; 3] = [
    agent("Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"),
    agent("Mozilla/5.0 (Macintosh) AppleWebKit/605.1.15 Version/17.5 Safari"),
    agent("Lynx/2.9.2 libwww-FM/2.14 SSL-MM/1.4.1 OpenSSL/3.0.15"),
];

const fn agent(name: &str) -> [u8; AGENT_BYTES] {
    let mut padded = [0; AGENT_BYTES];
    let (start, _) = padded.split_at_mut(name.len());
    start.copy_from_slice(name.as_bytes());
    padded
}

/// Returns the campaign of each ad, by the ad's number.
pub fn campaign_of_ads() -> Vec<Campaign> {
    let mut campaigns: Vec<Campaign> = (0..ADS).map(|ad| Campaign(ad / AD_CAMPAIGNS)).collect();
    Rng::with_seed(CAMPAIGNS_SEED).shuffle(&mut campaigns);
    campaigns
}

/// Generates events; the same ones for the same seed and times.
#[derive(Debug, Clone)]
pub struct Generator {
    random: Rng,
}

impl Generator {
    /// Returns a generator for a seed.
    pub fn new(seed: u64) -> Generator {
        Generator {
            random: Rng::with_seed(seed),
        }
    }

    /// Returns the next event.
    pub fn event(&mut self, time: Timestamp) -> Event {
        let random = &mut self.random;
        let kind = match random.u8(0..3) {
            0 => Kind::View,
            1 => Kind::Click,
            _ => Kind::Purchase,
        };
        let agent = &AGENTS[random.usize(0..AGENTS.len())];
        Event {
            time,
            ad: Ad(random.u32(0..ADS)),
            kind,
            form: random.u8(0..5),
            user: random.u128(..),
            page: random.u128(..),
            address: random.u128(..),
            agent: *agent,
        }
    }
}
