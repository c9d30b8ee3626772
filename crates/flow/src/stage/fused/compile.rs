//! Makes a stage of a row of operators that has an input of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use parking_lot::Mutex;

use crate::stage::chain::Chain;
use crate::stage::fused::instance::{Instance, Slot};
use crate::stage::fused::stage::FusedStage;
use crate::stage::fused::watched::WatchedSource;
use crate::stage::input::Input;
use crate::stage::metrics::Counters;
use crate::stage::row::Row;
use crate::stage::terminal::Terminal;
use crate::time::stage_time::StageTime;

/// Makes a stage of a row. `stopping` is set when the flow's owner stops it.
pub fn compile<I, C, T>(row: Row<I, C, T>, stopping: &Arc<AtomicBool>) -> FusedStage<I, C, T>
where
    I: Input,
    C: Chain<I::Item>,
    T: Terminal<C::Out>,
{
    let mut watched = WatchedSource::default();
    let instances = row.instances.into_iter();
    let instances: Vec<_> = instances
        .map(|(input, terminal)| {
            let time = StageTime::new(row.watermarks, input.partitions());
            watched.add(&input, &time);
            Slot::new(Instance::new(input, terminal, time))
        })
        .collect();
    FusedStage {
        name: row.name,
        chain: row.chain,
        live: AtomicUsize::new(instances.len()),
        order: (row.keeps_order && instances.len() > 1).then(Mutex::default),
        instances,
        turn: AtomicUsize::new(0),
        busy: AtomicUsize::new(0),
        giving_since_ns: AtomicU64::new(0),
        having_more: AtomicUsize::new(0),
        is_blocked: AtomicBool::new(false),
        idle_since: AtomicU64::new(0),
        emits_watermarks: row.emits_watermarks,
        watched,
        input: row.channel,
        outputs: row.outputs,
        stopping: Arc::clone(stopping),
        counters: Counters::default(),
    }
}
