//! Regular expressions of topics.

use std::collections::BTreeSet;

use crate::groups::TopicName;
use crate::groups::topics::Topics;
use crate::pattern::compile;

/// The topics that match; none if the expression does not compile any more.
pub(in crate::groups) fn matching(regex: &str, topics: &Topics) -> BTreeSet<TopicName> {
    match compile(regex) {
        Ok(regex) => topics
            .all()
            .filter(|name| regex.is_match(name))
            .cloned()
            .collect(),
        Err(_) => BTreeSet::new(),
    }
}
