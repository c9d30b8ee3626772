//! Items that go to other ranks as they lie in memory.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zerocopy::{Immutable, IntoBytes, TryFromBytes};

/// Plain data: it is serialized as its bytes in memory, so that an item for another rank is copied into the message
/// and out of it, without a look at its fields. It wraps an item, a field of one, or the state of windows; the
/// wrapped type implements the traits of the crate `zerocopy`, by which it has no pointers and no padding. For large
/// items: a few numbers are not serialized faster this way.
///
/// The bytes are in the machine's own format: all ranks, and a run that resumes from a checkpoint, need machines of the
/// same kind.
///
/// ```
/// use std::num::NonZeroUsize;
/// use std::thread;
/// use millstream_exchange::Ranks;
/// use millstream_flow::sources::Generator;
/// use millstream_flow::{Flow, FlowSettings, Plain};
/// use zerocopy::{Immutable, IntoBytes, TryFromBytes};
///
/// #[derive(Debug, Clone, IntoBytes, TryFromBytes, Immutable)]
/// #[repr(C)]
/// struct Sample { time_ms: u64, values: [f32; 30] }
///
/// # type Error = Box<dyn std::error::Error + Send + Sync>;
/// fn sum_on(ranks: &Ranks) -> Result<u64, Error> {
///     let ranks = ranks.clone();
///     let settings = FlowSettings { ranks, workers: NonZeroUsize::MIN, ..FlowSettings::default() };
///     let flow = Flow::with_settings("samples", settings);
///     let sum = flow.partial::<u64>("sum");
///     flow.source("samples", Generator::new(|time_ms| Sample { time_ms, values: [0.5; 30] }).limit(100))
///         .map(|sample| Plain(sample.clone()))
///         .gather("all", 1)
///         .fold_local(&sum, |sum, sample| *sum += sample.time_ms);
///     flow.run()?.join()?;
///     Ok(sum.merged())
/// }
///
/// let ranks = Ranks::threads(2);
/// let sums: Result<Vec<u64>, Error> = thread::scope(|scope| {
///     let threads: Vec<_> = ranks.iter().map(|ranks| scope.spawn(|| sum_on(ranks))).collect();
///     threads.into_iter().map(|thread| thread.join().unwrap()).collect()
/// });
/// assert_eq!(sums?, [0, 2 * 4950]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Plain<T>(
    /// The data.
    pub T,
);

impl<T> Deref for Plain<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Plain<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: IntoBytes + Immutable> Serialize for Plain<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0.as_bytes())
    }
}

impl<'de, T: TryFromBytes> Deserialize<'de> for Plain<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(Bytes(PhantomData))
    }
}

/// Reads a value from bytes, which need not be aligned.
struct Bytes<T>(PhantomData<fn() -> T>);

impl<T: TryFromBytes> Visitor<'_> for Bytes<T> {
    type Value = Plain<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, name) = (size_of::<T>(), type_name::<T>());
        write!(formatter, "the {bytes} bytes of a {name}")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Plain<T>, E> {
        match T::try_read_from_bytes(bytes) {
            Ok(item) => Ok(Plain(item)),
            Err(_) if bytes.len() == size_of::<T>() => Err(E::custom(format!(
                "no {} has these bytes",
                type_name::<T>()
            ))),
            Err(_) => Err(E::invalid_length(bytes.len(), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq, IntoBytes, TryFromBytes, Immutable)]
    #[repr(u8)]
    enum Kind {
        View = 1,
        Click = 2,
    }

    #[derive(Debug, Clone, Copy, PartialEq, IntoBytes, TryFromBytes, Immutable)]
    #[repr(C)]
    struct Event {
        time: i64,
        ad: u32,
        kind: Kind,
        others: [u8; 3],
    }

    type Item = (u8, Plain<Event>);

    const ITEM: Item = (
        7,
        Plain(Event {
            time: -5,
            ad: 1 << 20,
            kind: Kind::Click,
            others: [1, 2, 3],
        }),
    );

    #[test]
    fn plain_data_is_serialized_as_its_bytes_and_read_at_any_alignment() {
        let bytes = postcard::to_stdvec(&ITEM).unwrap();
        // The first field, and how many bytes follow.
        assert_eq!(bytes[..2], [7, 16]);
        assert_eq!(&bytes[2..], ITEM.1.as_bytes());
        for offset in 0..8 {
            let moved = [&vec![0; offset], &bytes[..]].concat();
            let read: Item = postcard::from_bytes(&moved[offset..]).unwrap();
            assert_eq!(read, ITEM);
        }
    }

    #[test]
    fn bytes_of_another_length_and_invalid_values_are_refused() {
        let refused = |bytes: &[u8]| postcard::from_bytes::<Item>(bytes).is_err();
        let bytes = postcard::to_stdvec(&ITEM).unwrap();
        let of_kind = |kind| {
            let (before, others) = bytes.split_at(bytes.len() - 4);
            [before, &[kind], &others[1..]].concat()
        };
        let (_, event) = postcard::from_bytes::<Item>(&of_kind(Kind::View as u8)).unwrap();
        assert_eq!(event.kind, Kind::View);
        assert!(refused(&of_kind(0)) && refused(&of_kind(3)));
        let shorter = [&[7, 15], &bytes[2..17]].concat();
        let longer = [&[7, 17], &bytes[2..], &[0]].concat();
        assert!(refused(&shorter) && refused(&longer) && refused(&bytes[..17]));
        let error = serde_json::from_str::<Plain<Event>>("\"text\"").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("length 4, expected the 16 bytes")
        );
    }

    proptest! {
        #[test]
        fn reading_arbitrary_bytes_does_not_panic(bytes: Vec<u8>) {
            if let Ok(item) = postcard::from_bytes::<Item>(&bytes) {
                let again = postcard::to_stdvec(&item).unwrap();
                prop_assert_eq!(postcard::from_bytes::<Item>(&again).unwrap(), item);
            }
        }
    }
}
