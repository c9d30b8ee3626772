//! An event, in memory and as a record's value.
//!
//! ```text
//! byte  0        8      12   13   14      16        32        48         64            136
//!       ├────────┼──────┼────┼────┼───────┼─────────┼─────────┼──────────┼─────────────┤
//!       │ time   │ ad   │kind│form│ 0     │ user    │ page    │ address  │ user agent  │
//!       └────────┴──────┴────┴────┴───────┴─────────┴─────────┴──────────┴─────────────┘
//! ```
//!
//! Numbers are little-endian: the time in milliseconds since 1970 UTC, the ad's number, the kind (0
//! view, 1 click, 2 purchase), the form of the ad (0 to 4). User and page are UUIDs, the address is
//! an IPv6 one, the user agent is padded with zeros. The systems of the literature send events of
//! 136 bytes in this benchmark.

use std::fmt;

use millstream_base::Timestamp;
use serde::{Deserialize, Serialize};

/// Size of an encoded event.
pub const EVENT_BYTES: usize = 136;

const USER: usize = 16;
const PAGE: usize = 32;
const ADDRESS: usize = 48;
const AGENT: usize = 64;
/// Room for the user agent.
pub(crate) const AGENT_BYTES: usize = EVENT_BYTES - AGENT;

/// The number of an ad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ad(pub u32);

/// The number of a campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Campaign(pub u32);

impl fmt::Display for Campaign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A user's action on an ad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The ad was shown on a user's page.
    View = 0,
    /// It was clicked.
    Click = 1,
    /// A purchase followed.
    Purchase = 2,
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The time of the action.
    pub time: Timestamp,
    /// The ad.
    pub ad: Ad,
    /// The action.
    pub kind: Kind,
    /// Banner, modal, sponsored search, mail, mobile: 0 to 4.
    pub form: u8,
    /// The user.
    pub user: u128,
    /// The page that showed it.
    pub page: u128,
    /// The user's address.
    pub address: u128,
    /// The user's program.
    pub agent: [u8; AGENT_BYTES],
}

/// Bytes are not an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// The number of bytes is wrong.
    #[error("an event has {EVENT_BYTES} bytes, and this record {0}")]
    Length(usize),
    /// The kind is unknown.
    #[error("an event's kind is 0, 1 or 2, and this one's {0}")]
    Kind(u8),
    /// The ad is unknown.
    #[error("ads are numbered from 0 to {max}, and this event is about {0}", max = crate::ADS - 1)]
    Ad(u32),
}

impl Event {
    /// Returns the value of the event's record.
    pub fn encode(&self) -> [u8; EVENT_BYTES] {
        let mut bytes = [0; EVENT_BYTES];
        bytes[0..8].copy_from_slice(&self.time.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.ad.0.to_le_bytes());
        bytes[12] = self.kind as u8;
        bytes[13] = self.form;
        bytes[USER..PAGE].copy_from_slice(&self.user.to_le_bytes());
        bytes[PAGE..ADDRESS].copy_from_slice(&self.page.to_le_bytes());
        bytes[ADDRESS..AGENT].copy_from_slice(&self.address.to_le_bytes());
        bytes[AGENT..].copy_from_slice(&self.agent);
        bytes
    }

    /// Returns the event in a record's value.
    ///
    /// # Errors
    /// When the value is not an event.
    pub fn decode(value: &[u8]) -> Result<Event, EventError> {
        let bytes: &[u8; EVENT_BYTES] = value
            .try_into()
            .map_err(|_| EventError::Length(value.len()))?;
        let ad = u32::from_le_bytes(part(bytes, 8));
        if ad >= crate::ADS {
            return Err(EventError::Ad(ad));
        }
        Ok(Event {
            time: Timestamp(i64::from_le_bytes(part(bytes, 0))),
            ad: Ad(ad),
            kind: match bytes[12] {
                0 => Kind::View,
                1 => Kind::Click,
                2 => Kind::Purchase,
                kind => return Err(EventError::Kind(kind)),
            },
            form: bytes[13],
            user: u128::from_le_bytes(part(bytes, USER)),
            page: u128::from_le_bytes(part(bytes, PAGE)),
            address: u128::from_le_bytes(part(bytes, ADDRESS)),
            agent: part(bytes, AGENT),
        })
    }
}

/// The `N` bytes from `start`, which lie within an event.
fn part<const N: usize>(bytes: &[u8; EVENT_BYTES], start: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[start..start + N]);
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: Event = Event {
        time: Timestamp(0x0102_0304_0506),
        ad: Ad(0x0102),
        kind: Kind::Click,
        form: 4,
        user: 1,
        page: 2,
        address: 3,
        agent: [b'a'; AGENT_BYTES],
    };

    #[test]
    fn the_layout_is_as_documented() {
        let bytes = EVENT.encode();
        assert_eq!(
            bytes[..16],
            [6, 5, 4, 3, 2, 1, 0, 0, 2, 1, 0, 0, 1, 4, 0, 0]
        );
        assert_eq!((bytes[16], bytes[32], bytes[48]), (1, 2, 3));
        assert_eq!(bytes[64..], [b'a'; 72]);
        assert_eq!(Event::decode(&bytes), Ok(EVENT));
    }

    #[test]
    fn bytes_that_are_not_an_event_are_refused() {
        let mut bytes = EVENT.encode();
        assert_eq!(Event::decode(&bytes[1..]), Err(EventError::Length(135)));
        bytes[12] = 3;
        assert_eq!(Event::decode(&bytes), Err(EventError::Kind(3)));
        bytes[11] = 1;
        assert_eq!(Event::decode(&bytes), Err(EventError::Ad(0x0100_0102)));
    }
}
