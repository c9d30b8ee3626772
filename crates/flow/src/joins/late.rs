//! Items that come behind the watermark of a join.

use std::fmt::{self, Debug, Display};
use std::sync::Arc;

use millstream_base::Timestamp;
use serde_json::{Value, json};

use crate::error::BoxError;
use crate::stage::attempt::Attempt;
use crate::stage::chain::Chain;
use crate::stage::rejected::Rejected;
use crate::stage::user_code::Label;
use crate::state::late::{LateTally, LateTo};
use crate::state::partial::StateReader;
use crate::state::size::StateSize;

/// An item that a join emits: a result, or an item that came too late for it.
#[derive(Debug, Clone)]
pub enum OrLate<T, O> {
    /// A result.
    Result(O),
    /// An item that came too late.
    Late(T, BehindWatermark),
}

/// The reason for which an item has no partners: the error of its dead letter. Times are in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BehindWatermark {
    time: Timestamp,
    watermark: Timestamp,
}

impl Display for BehindWatermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "late: event time {} ms, watermark {} ms",
            self.time.0, self.watermark.0
        )
    }
}

impl std::error::Error for BehindWatermark {}

/// The late items of a join, as a state element that readers see: their number is under the key `count`.
#[derive(Clone)]
pub struct LateItems {
    operator: Arc<str>,
    tally: Arc<LateTally>,
}

/// The key of the number of late items.
const COUNT: &str = "count";

impl LateItems {
    pub fn new(operator: &str, to: LateTo) -> LateItems {
        let tally = Arc::new(LateTally::default());
        tally.lead(to);
        LateItems {
            operator: operator.into(),
            tally,
        }
    }

    /// Returns the operator.
    pub fn label(&self) -> Label {
        Label(Arc::clone(&self.operator))
    }

    /// Counts a late item, and emits it if it becomes a dead letter.
    #[cold]
    pub fn add<T>(
        &self,
        item: impl FnOnce() -> T,
        time: Timestamp,
        watermark: Timestamp,
        emit: impl FnOnce(T, BehindWatermark),
    ) {
        let late = BehindWatermark { time, watermark };
        let to = self.tally.to();
        self.tally.add(1);
        self.tally.warn_once(&self.operator, late, to);
        if to == LateTo::DeadLetters {
            emit(item(), late);
        }
    }
}

impl StateReader for LateItems {
    fn get(&self, key: &str) -> Option<Value> {
        (key == COUNT).then(|| json!(self.tally.events()))
    }

    fn keys(&self, limit: usize) -> Vec<String> {
        [COUNT].into_iter().take(limit).map(str::to_owned).collect()
    }

    fn late_events(&self) -> Option<u64> {
        Some(self.tally.events())
    }

    fn late_to(&self) -> LateTo {
        self.tally.to()
    }

    fn size(&self) -> StateSize {
        StateSize::unknown("late items")
    }

    fn save(&self) -> Result<Vec<u8>, BoxError> {
        Ok(postcard::to_stdvec(&self.tally.events())?)
    }

    fn restore(&self, saved: &[u8]) -> Result<(), BoxError> {
        self.tally.restore(postcard::from_bytes(saved)?);
        Ok(())
    }
}

/// Lets results pass, and makes dead letters of late items.
pub struct InTime<C> {
    pub(crate) before: C,
    /// The join.
    pub(crate) label: Label,
}

impl<In: ?Sized, C, T, O> Chain<In> for InTime<C>
where
    C: Chain<In, Out = OrLate<T, O>>,
    T: Debug + 'static,
    O: 'static,
{
    type Out = O;

    #[inline]
    fn process<A: Attempt>(&self, attempt: &A, item: &In, out: &mut impl FnMut(&O)) {
        self.before
            .process(attempt, item, &mut |result| match result {
                OrLate::Result(result) => out(result),
                OrLate::Late(item, late) => {
                    attempt.reject_late(Rejected::late(&self.label.0, item, (*late).into()));
                }
            });
    }
}
