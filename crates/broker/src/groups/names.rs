//! The names of groups, members and topics, and their numbers: generations, epochs, ids.

use std::fmt;

/// Makes a type of texts that are shared.
macro_rules! text {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::ops::Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                $name(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                $name(text.into())
            }
        }

        impl From<std::sync::Arc<str>> for $name {
            fn from(text: std::sync::Arc<str>) -> Self {
                $name(text)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}
pub(crate) use text;

text! {
    /// A consumer group: Kafka's `group.id`.
    GroupName
}
text! {
    /// A member of a group, for as long as it belongs to it. Empty in the requests of a client that has no id yet.
    MemberId
}
text! {
    /// The identity of a static member across its restarts: Kafka's `group.instance.id`.
    InstanceId
}
text! {
    /// A topic.
    TopicName
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number! {
    /// The number of a partition in its topic, from 0.
    Partition(i32)
}
number! {
    /// The number of rebalances of a classic group; negative in the requests of a client that is no member.
    ///
    /// In requests about offsets, a member of a group of KIP-848 sends its epoch here.
    Generation(i32)
}
number! {
    /// The epoch of a group of KIP-848, or of one of its members.
    Epoch(i32)
}
number! {
    /// The epoch of the leader that a consumer read from, by its own account.
    LeaderEpoch(i32)
}
number! {
    /// A topic, for as long as it exists: another one of the same name has another id.
    TopicId(u128)
}
number! {
    /// The caller's number for a request; its answer carries it.
    RequestId(u64)
}
number! {
    /// 16 random bytes from the caller, in case a member needs an id.
    RandomBytes(u128)
}

impl Generation {
    /// The generation in a request that does not come from a member.
    pub const NONE: Generation = Generation(-1);
}

impl Epoch {
    /// The epoch that a member sends to join, or to join again.
    pub const JOIN: Epoch = Epoch(0);
    /// The epoch that a member sends to leave.
    pub const LEAVE: Epoch = Epoch(-1);
    /// The epoch that a static member sends to leave for a while.
    pub const LEAVE_FOR_NOW: Epoch = Epoch(-2);
}

impl RandomBytes {
    /// As a random UUID, in text.
    ///
    /// ```
    /// use millstream_broker::groups::RandomBytes;
    /// assert_eq!(RandomBytes(0).uuid(), "00000000-0000-4000-8000-000000000000");
    /// ```
    pub fn uuid(self) -> String {
        // Version 4, variant 1; the remaining 122 bits are random.
        let bits = self.0 & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
        let (first, second) = ((bits >> 96) as u32, (bits >> 80) as u16);
        let (third, fourth) = ((bits >> 64) as u16, (bits >> 48) as u16);
        let last = bits as u64 & 0xffff_ffff_ffff;
        format!("{first:08x}-{second:04x}-{third:04x}-{fourth:04x}-{last:012x}")
    }
}
