//! The end of serving flows.

use millstream_flow::serving::{Reply, Respond};
use millstream_flow::{Chain, Entry};

use crate::event::Event;
use crate::flow_builder::Flow;
use crate::stream::Stream;

impl<I, C> Stream<I, C, Reply>
where
    I: Entry,
    C: Chain<I::Item, Out = Event<Reply>>,
{
    /// Sends the responses to their callers, as soon as they are here: see [`Flow::requests`].
    pub fn respond(self) -> Flow {
        let Stream {
            flow, operators, ..
        } = self;
        let name = flow.stage_name("respond");
        operators
            .map(|event: &Event<Reply>| event.item.clone())
            .sink(&name, Respond);
        flow
    }
}
