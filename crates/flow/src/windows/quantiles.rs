//! Quantiles, approximately.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sketches_ddsketch::{Config, DDSketch};

use super::aggregate::{Aggregate, Combine};

/// The relative error of a quantile at most.
const ACCURACY: f64 = 0.01;
/// Values nearer to 0 count as 0.
const NEAREST_TO_ZERO: f64 = 1e-9;
/// More than there are numbers from [`NEAREST_TO_ZERO`] to the largest, at this accuracy.
const BINS_MAX: u32 = 1 << 16;

/// Quantiles of the items' values, each within 1 % of its value (DDSketch: Masson, Rim and Lee,
/// "DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees"). They
/// depend neither on the order of the values nor on where they were seen.
///
/// A value within 10^-9 of 0 counts as 0, an infinite one as the largest there is; a NaN is left
/// out. A state has an entry for each bin of values that are within 2 % of each other.
///
/// ```
/// use millstream_flow::windows::{Aggregate, Combine, Quantiles};
///
/// let latency = Quantiles::of(|latency_ms: &f64| *latency_ms, [0.5, 0.99]);
/// let mut state = latency.empty();
/// for latency_ms in 1..=1_000 {
///     latency.add(&mut state, &f64::from(latency_ms));
/// }
/// let quantiles = latency.result(&state, 100);
/// assert!((quantiles[0] - 500.0).abs() < 6.0);
/// assert!((quantiles[1] - 990.0).abs() < 11.0);
/// ```
#[derive(Debug, Clone)]
pub struct Quantiles<F> {
    value: F,
    quantiles: Arc<[f64]>,
    config: Config,
}

impl<F> Quantiles<F> {
    /// The `quantiles`, each from 0 (the least value) to 1 (the largest), of the values that `value` returns. The
    /// result has them in the same order; it is empty if all values are NaN.
    ///
    /// # Panics
    /// If one of `quantiles` is not from 0 to 1.
    pub fn of<T: ?Sized>(value: F, quantiles: impl Into<Vec<f64>>) -> Self
    where
        F: Fn(&T) -> f64,
    {
        let quantiles = quantiles.into();
        for quantile in &quantiles {
            assert!((0.0..=1.0).contains(quantile), "a quantile is from 0 to 1");
        }
        Self {
            value,
            quantiles: quantiles.into(),
            config: config(),
        }
    }

    fn sketch(&self, state: &QuantileBins) -> DDSketch {
        let mut sketch = DDSketch::new(self.config);
        let value = |bin: &i32| (self.config.value(*bin)).clamp(NEAREST_TO_ZERO, f64::MAX);
        // The counts come from another rank, and may be wrong.
        let mut room = u64::MAX;
        let mut add = |value, count: u64| {
            let count = count.min(room);
            room -= count;
            sketch.add_with_count(value, count);
        };
        add(0.0, state.zeros);
        for (bin, count) in &state.negative {
            add(-value(bin), *count);
        }
        for (bin, count) in &state.positive {
            add(value(bin), *count);
        }
        sketch
    }
}

fn config() -> Config {
    Config::new(ACCURACY, BINS_MAX, NEAREST_TO_ZERO)
}

/// The number of values in each bin of a DDSketch.
///
/// Not the sketch itself: it gives up low values when they are many bins apart, depending on the order in which they
/// come, and trusts the bytes that it is deserialized from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuantileBins {
    negative: BTreeMap<i32, u64>,
    zeros: u64,
    positive: BTreeMap<i32, u64>,
}

impl<F: Send + Sync + 'static> Combine for Quantiles<F> {
    type State = QuantileBins;
    type Out = Vec<f64>;

    fn empty(&self) -> QuantileBins {
        QuantileBins::default()
    }

    fn merge(&self, state: &mut QuantileBins, other: &QuantileBins) {
        for (bins, others) in [
            (&mut state.negative, &other.negative),
            (&mut state.positive, &other.positive),
        ] {
            for (bin, count) in others {
                let sum = bins.entry(*bin).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
        state.zeros = state.zeros.saturating_add(other.zeros);
    }

    fn result(&self, state: &QuantileBins, _: u64) -> Vec<f64> {
        let sketch = self.sketch(state);
        let quantiles = self.quantiles.iter();
        quantiles
            .filter_map(|quantile| sketch.quantile(*quantile).ok().flatten())
            .collect()
    }
}

impl<T, F> Aggregate<T> for Quantiles<F>
where
    T: ?Sized,
    F: Fn(&T) -> f64 + Send + Sync + 'static,
{
    #[inline]
    fn add(&self, state: &mut QuantileBins, item: &T) {
        let value = (self.value)(item).clamp(-f64::MAX, f64::MAX);
        let count = if value > NEAREST_TO_ZERO {
            state.positive.entry(self.config.key(value)).or_default()
        } else if value < -NEAREST_TO_ZERO {
            state.negative.entry(self.config.key(-value)).or_default()
        } else if value.is_nan() {
            return;
        } else {
            &mut state.zeros
        };
        *count = count.saturating_add(1);
    }
}
