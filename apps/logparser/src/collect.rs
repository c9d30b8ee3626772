//! What ranks have found comes together on one of them.

use millstream_flow::sources::Generator;
use millstream_flow::{Flow, FlowError, FlowSettings, Message, PartialState};

/// A flow that brings the items of all ranks to one of them, where `add` takes them into a state. All
/// ranks call it; on the others the state stays empty.
///
/// # Errors
/// When a rank fails.
pub fn collect<T, S>(
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
    let mut flow = Flow::with_settings(name, settings);
    let collected = flow.partial::<S>("collected");
    let count = items.len() as u64;
    flow.source(
        "found",
        Generator::new(move |number| items[number as usize].clone()).limit(count),
    )
    .gather("collect", at)
    .fold_local(&collected, add);
    flow.run()?.join()?;
    Ok(collected.merged())
}
