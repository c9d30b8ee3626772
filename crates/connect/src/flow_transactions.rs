//! The names of the transactions of flows.

use std::fmt;

use millstream_flow::SinkStart;

/// The prefix of the transactional ids of flows.
const PREFIX: &str = "flow/";

/// Identifies the owner of transactions: `flow/<flow>/<sink>/<rank>/<slot>` is a transactional id. In names `%` and `/`
/// are written as `%25` and `%2F`, so that no two flows share an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowTransactionId {
    /// The name of the flow.
    pub flow: String,
    /// The name of its sink.
    pub sink: String,
    /// The rank.
    pub rank: u32,
}

impl FlowTransactionId {
    /// Returns the id of a sink's transactions.
    pub fn of(start: &SinkStart<'_>) -> FlowTransactionId {
        FlowTransactionId {
            flow: start.flow.to_owned(),
            sink: start.sink.to_owned(),
            rank: start.rank,
        }
    }

    /// Reads a transactional id; `None` if it is not of a flow.
    pub fn parse(id: &str) -> Option<FlowTransactionId> {
        let mut parts = id.strip_prefix(PREFIX)?.split('/');
        let (flow, sink) = (unescape(parts.next()?)?, unescape(parts.next()?)?);
        let rank = parts.next()?.parse().ok()?;
        let _slot: usize = parts.next()?.parse().ok()?;
        parts
            .next()
            .is_none()
            .then_some(FlowTransactionId { flow, sink, rank })
    }

    /// Returns the transactional id of a slot.
    pub(crate) fn slot(&self, slot: usize) -> String {
        format!("{self}/{slot}")
    }

    /// Returns whether a transactional id belongs to this sink and this rank, or to a former rank whose transactions
    /// this one takes over.
    pub(crate) fn is_heir_of(&self, id: &str, ranks: u32) -> bool {
        FlowTransactionId::parse(id).is_some_and(|other| {
            let is_sink = (&other.flow, &other.sink) == (&self.flow, &self.sink);
            is_sink && other.rank % ranks.max(1) == self.rank
        })
    }
}

impl fmt::Display for FlowTransactionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (flow, sink) = (escape(&self.flow), escape(&self.sink));
        write!(f, "{PREFIX}{flow}/{sink}/{}", self.rank)
    }
}

pub(crate) fn escape(name: &str) -> String {
    name.replace('%', "%25").replace('/', "%2F")
}

fn unescape(name: &str) -> Option<String> {
    let mut parts = name.split('%');
    let mut text = parts.next()?.to_owned();
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        text.push(match code {
            "25" => '%',
            "2F" => '/',
            _ => return None,
        });
        text.push_str(rest);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(flow: &str, sink: &str, rank: u32) -> FlowTransactionId {
        FlowTransactionId {
            flow: flow.to_owned(),
            sink: sink.to_owned(),
            rank,
        }
    }

    #[test]
    fn a_transaction_id_round_trips_with_any_flow_and_sink_names() {
        for (flow, sink) in [("words", "counts"), ("a/b", "50%"), ("%2F", "/"), ("", "")] {
            let id = id(flow, sink, 3);
            assert_eq!(FlowTransactionId::parse(&id.slot(1)), Some(id));
        }
        assert_ne!(id("a/b", "c", 0).slot(0), id("a", "b/c", 0).slot(0));
        for other in [
            "flow/a/b/0",
            "flow/a/b/0/1/2",
            "flow/a/b/x/0",
            "flow/%/b/0/0",
            "tx",
            "flow/é%2é/b/0/0",
        ] {
            assert_eq!(FlowTransactionId::parse(other), None, "{other}");
        }
    }

    #[test]
    fn one_of_fewer_ranks_inherits_each_transaction_id_of_more_ranks() {
        for rank in 0..7 {
            let old = id("f", "s", rank).slot(0);
            let heirs = (0..3).filter(|heir| id("f", "s", *heir).is_heir_of(&old, 3));
            assert_eq!(heirs.count(), 1);
        }
        assert!(!id("f", "s", 0).is_heir_of(&id("g", "s", 0).slot(0), 1));
    }
}
