//! The progress of a fused stage.

use std::time::Duration;

use crate::sources::positions::{self, Position};
use crate::stage::chain::Chain;
use crate::stage::contract::Progress;
use crate::stage::fused::stage::FusedStage;
use crate::stage::input::Input;
use crate::stage::terminal::Terminal;
use crate::state::ordered::WouldWait;
use crate::time::alignment::Aligned;
use crate::time::gauge::{LateByPartition, SourceTime};

impl<I, C, T> Progress for FusedStage<I, C, T>
where
    I: Input,
    C: Chain<I::Item>,
    T: Terminal<C::Out>,
{
    fn source_times(&self) -> Option<(Vec<SourceTime>, Duration)> {
        let times = self.watched.times.iter().filter_map(|time| time.read());
        (!self.watched.times.is_empty()).then(|| (times.collect(), self.watched.idle_after))
    }

    fn late(&self) -> LateByPartition {
        let mut sum = LateByPartition::new();
        for (partition, events) in self.watched.times.iter().flat_map(|time| time.late()) {
            *sum.entry(partition).or_default() += events;
        }
        sum
    }

    fn positions(&self) -> Option<Vec<Position>> {
        let sources = &self.watched.positions;
        let read = sources.iter().flat_map(|source| source.read());
        (!sources.is_empty()).then(|| positions::all(read))
    }

    fn try_positions(&self) -> Result<Option<Vec<Position>>, WouldWait> {
        let sources = &self.watched.positions;
        let read = sources.iter().map(|source| source.try_read());
        let read: Vec<_> = read.collect::<Result<_, _>>()?;
        Ok((!sources.is_empty()).then(|| positions::all(read.into_iter().flatten())))
    }

    fn skew_max_ms(&self) -> Option<i64> {
        self.instances.first()?.instance.lock().time.skew_max_ms()
    }

    fn align(&self, places: &mut dyn Iterator<Item = Aligned>) {
        for (slot, place) in self.instances.iter().zip(places) {
            slot.instance.lock().time.align(place);
        }
    }
}
