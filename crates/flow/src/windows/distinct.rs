//! The approximate number of different values.

use std::fmt;
use std::hash::Hash;
use std::marker::PhantomData;

use datasketches::hll::{HllSketch, HllType, HllUnion};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::aggregate::{Aggregate, Combine};

/// Registers of a sketch, as a power of two: the estimate's standard error is 1.6 %, and a state
/// takes up to 4 KiB (a few bytes per value as long as they are few).
const REGISTERS_LOG2: u8 = 12;

/// How many different values the items have: exact for few, and with a standard error of 1.6 % for
/// many (HyperLogLog). Equal values count once wherever they were seen; the estimate depends
/// neither on their order nor on where they were counted. [`ExactDistinct`](super::ExactDistinct) counts all exactly.
///
/// ```
/// use millstream_flow::windows::{Aggregate, Combine, Distinct};
///
/// struct View { user: String }
///
/// let users = Distinct::of(|view: &View| view.user.as_str());
/// let mut state = users.empty();
/// for user in ["ada", "grace", "ada"] {
///     users.add(&mut state, &View { user: user.to_owned() });
/// }
/// assert_eq!(users.result(&state, 3), 2);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Distinct<F, V: ?Sized> {
    value: F,
    of: PhantomData<fn(&V)>,
}

impl<F, V: ?Sized> Distinct<F, V> {
    /// Counts the values that `value` returns.
    pub fn of<T: ?Sized>(value: F) -> Self
    where
        F: Fn(&T) -> &V,
    {
        Self {
            value,
            of: PhantomData,
        }
    }
}

/// The values so far: a HyperLogLog sketch.
#[derive(Clone)]
pub struct DistinctSketch(HllUnion);

impl Default for DistinctSketch {
    fn default() -> Self {
        let Ok(union) = HllUnion::new(REGISTERS_LOG2) else {
            unreachable!("2^4 to 2^21 registers are allowed");
        };
        Self(union)
    }
}

impl fmt::Debug for DistinctSketch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DistinctSketch(about {})", self.0.composite_estimate())
    }
}

impl Serialize for DistinctSketch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Registers of 6 bits can hold no value that a sketch cannot have: registers of 8 bits could, and the library
        // does not check that when it reads them.
        let sketch = self.0.to_sketch(HllType::Hll6);
        sketch.serialize().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for DistinctSketch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        let sketch = HllSketch::deserialize(&bytes).map_err(D::Error::custom)?;
        if sketch.lg_config_k() != REGISTERS_LOG2 || sketch.target_type() != HllType::Hll6 {
            return Err(D::Error::custom("a sketch of another size"));
        }
        let mut state = Self::default();
        state.0.update(&sketch);
        Ok(state)
    }
}

impl<F, V> Combine for Distinct<F, V>
where
    F: Send + Sync + 'static,
    V: ?Sized + 'static,
{
    type State = DistinctSketch;
    type Out = u64;

    fn empty(&self) -> DistinctSketch {
        DistinctSketch::default()
    }

    fn merge(&self, state: &mut DistinctSketch, other: &DistinctSketch) {
        state.0.update(&other.0.to_sketch(HllType::Hll8));
    }

    fn result(&self, state: &DistinctSketch, _: u64) -> u64 {
        // The usual estimate is somewhat better, and depends on the order of the values.
        state.0.composite_estimate().round() as u64
    }
}

impl<T, F, V> Aggregate<T> for Distinct<F, V>
where
    T: ?Sized,
    F: Fn(&T) -> &V + Send + Sync + 'static,
    V: Hash + ?Sized + 'static,
{
    #[inline]
    fn add(&self, state: &mut DistinctSketch, item: &T) {
        state.0.update_value((self.value)(item));
    }
}
