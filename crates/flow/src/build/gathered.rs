//! Gathers the items of all ranks on one of them.

use crate::build::flow::Flow;
use crate::error::FlowError;
use crate::ranks::message::Message;
use crate::run::settings::FlowSettings;
use crate::sources::Generator;
use crate::state::partial::PartialState;

/// A flow that brings the items of all ranks to one of them, where `add` takes them into a state. All
/// ranks call it; on the others the state stays empty.
///
/// # Errors
/// When a rank fails.
pub fn gathered<T, S>(
    name: &str,
    settings: FlowSettings,
    items: Vec<T>,
    at: u32,
    add: impl Fn(&mut S, &T) + Send + Sync + 'static,
) -> Result<S, FlowError>
where
    T: Message + Clone + std::fmt::Debug,
    S: PartialState,
{
    let settings = FlowSettings {
        // The items are in memory, and a store of another flow's checkpoints must not hold this flow's.
        checkpoints: None,
        ..settings
    };
    let flow = Flow::with_settings(name, settings);
    let sum = flow.partial::<S>("gathered");
    let count = items.len() as u64;
    flow.source(
        "found",
        Generator::new(move |number| items[number as usize].clone()).limit(count),
    )
    .gather("gather", at)
    .fold_local(&sum, add);
    flow.run()?.join()?;
    Ok(sum.merged())
}
