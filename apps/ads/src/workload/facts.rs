//! The contents of an event.

/// The number of campaigns.
pub const CAMPAIGNS: u32 = 100;

/// The number of ads, ten for each campaign.
pub const ADS: u32 = 1000;

/// The length of the longest event.
pub const EVENT_BYTES_MAX: usize = AGENT + AGENT_BYTES_MAX;

/// The positions of an event's fields.
pub(super) const AD: usize = 8;
pub(super) const KIND: usize = 12;
pub(super) const FORM: usize = 13;
pub(super) const LENGTH: usize = 14;
const USER: usize = 16;
const AGENT: usize = 64;
const AGENT_BYTES_MAX: usize = 96;

/// Coprime to the number of ads, so that each ad has its own place among those of all campaigns.
const SCATTER: u32 = 7919;

/// The lengths of the user agents' names: 72 bytes on average, multiples of 8.
const AGENT_LENGTHS: [u16; 8] = [48, 56, 64, 72, 72, 80, 88, 96];
const AGENTS: [[u8; AGENT_BYTES_MAX]; 8] = agents();

/// The seeds that make users, pages and addresses of one event differ.
const PEOPLE: [u64; 6] = [
    0x9E6C_63D0_876A_68DE,
    0x3C79_AC49_2BA7_B653,
    0x1C69_B3F7_4AC4_AE35,
    0xD6E8_FEB8_6659_FD93,
    0xA076_1D64_78BD_642F,
    0xE703_7ED1_A0B4_28DB,
];

const fn agents() -> [[u8; AGENT_BYTES_MAX]; 8] {
    const NAME: &[u8; AGENT_BYTES_MAX] =
        b"Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0 (with a number of addons)";
    let mut agents = [*NAME; 8];
    let mut number = 0;
    while number < agents.len() {
        // Each is a program of its own.
        agents[number][8] = b'1' + number as u8;
        number += 1;
    }
    agents
}

/// A user's action on an ad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The ad was shown on a user's page.
    View,
    /// It was clicked.
    Click,
    /// A purchase followed.
    Purchase,
}

impl Kind {
    /// Returns the kind that a byte stands for.
    #[inline]
    pub fn of(byte: u8) -> Kind {
        match byte {
            0 => Kind::View,
            1 => Kind::Click,
            _ => Kind::Purchase,
        }
    }
}

/// The contents of an event, except its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts(u64);

impl Facts {
    /// Returns the contents of the event with this number of an instance: the finalizer of
    /// SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators", 2014) over
    /// both.
    #[inline]
    pub fn new(instance: u32, number: u64) -> Facts {
        let seed = (u64::from(instance) << 40) + number + 1;
        let mut bits = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Facts(bits ^ (bits >> 31))
    }

    /// Returns the ad's number.
    #[inline]
    pub fn ad(self) -> u32 {
        (((self.0 >> 32) * u64::from(ADS)) >> 32) as u32
    }

    /// Returns the action: views, clicks and purchases have equal shares.
    #[inline]
    pub fn kind(self) -> Kind {
        Kind::of(self.kind_byte())
    }

    #[inline]
    fn kind_byte(self) -> u8 {
        (((self.0 & 0xFFFF_FFFF) * 3) >> 32) as u8
    }

    #[inline]
    fn form(self) -> u8 {
        (((self.0 & 0xFFFF) * 5) >> 16) as u8
    }

    /// Writes the event, and returns its length. It overwrites bytes behind the event as well.
    #[inline]
    pub(super) fn write(self, time_ms: i64, to: &mut [u8; EVENT_BYTES_MAX]) -> usize {
        let agent = (self.0 >> 32) as usize % AGENTS.len();
        let length = AGENT as u16 + AGENT_LENGTHS[agent];
        to[..AD].copy_from_slice(&time_ms.to_le_bytes());
        to[AD..KIND].copy_from_slice(&self.ad().to_le_bytes());
        to[KIND] = self.kind_byte();
        to[FORM] = self.form();
        to[LENGTH..USER].copy_from_slice(&length.to_le_bytes());
        for (place, tell_apart) in to[USER..AGENT]
            .as_chunks_mut::<8>()
            .0
            .iter_mut()
            .zip(PEOPLE)
        {
            *place = (self.0 ^ tell_apart).to_le_bytes();
        }
        // A copy of a fixed length takes no loop.
        to[AGENT..].copy_from_slice(&AGENTS[agent]);
        usize::from(length)
    }
}

/// Returns the campaign of each ad, by the ad's number: the table of a static join.
pub fn campaign_of_ads() -> [u32; ADS as usize] {
    let mut campaigns = [0; ADS as usize];
    for (campaign, ad) in campaigns.iter_mut().zip(0..) {
        *campaign = ad * SCATTER % ADS / (ADS / CAMPAIGNS);
    }
    campaigns
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other programs generate the same events: their tests hold these numbers too.
    #[test]
    fn the_first_events_are_golden() {
        let fact = |instance, number| {
            let facts = Facts::new(instance, number);
            (facts.0, facts.ad(), facts.kind_byte(), facts.form())
        };
        assert_eq!(fact(0, 0), (0xE220_A839_7B1D_CDAF, 883, 1, 4));
        assert_eq!(fact(0, 1), (0x6E78_9E6A_A1B9_65F4, 431, 1, 1));
        assert_eq!(fact(1, 0), (0x1937_167E_168D_9372, 98, 0, 2));
    }

    #[test]
    fn each_campaign_has_ten_ads() {
        let campaigns = campaign_of_ads();
        for campaign in 0..CAMPAIGNS {
            let ads = campaigns.iter().filter(|of| **of == campaign).count();
            assert_eq!(ads, 10);
        }
    }

    #[test]
    fn kinds_ads_and_lengths_have_their_documented_frequencies() {
        let events = 1_000_000;
        let mut kinds = [0_u32; 3];
        let mut ads = [0_u32; ADS as usize];
        let mut bytes = 0;
        let mut event = [0; EVENT_BYTES_MAX];
        for number in 0..events {
            let facts = Facts::new(3, number);
            kinds[usize::from(facts.kind_byte())] += 1;
            ads[facts.ad() as usize] += 1;
            bytes += facts.write(0, &mut event);
        }
        for kind in kinds {
            assert!((330_000..337_000).contains(&kind), "{kinds:?}");
        }
        assert!(ads.iter().all(|count| (800..1_200).contains(count)));
        let average = bytes as f64 / events as f64;
        assert!((135.9..136.1).contains(&average), "{average}");
    }
}
