//! Names of streams.

use crate::error::{LogError, Result};

/// The longest name, which is Kafka's bound on names of topics. Names are part of keys, paths and protocols.
const NAME_BYTES_MAX: usize = 249;

/// The prefix of the names of the node's own streams.
pub const OWN_PREFIX: &str = "__";

/// The names that no stream of a user may have: the names of the node's own streams, and of Kafka's internal topics, which
/// clients treat specially. All other names that begin with `__` are free, since tools
/// call topics so.
const RESERVED: [&str; 14] = [
    "__catalog",
    "__positions",
    "__journal",
    "__groups",
    "__transactions",
    "__security",
    "__configs",
    "__shares",
    "__share_groups",
    "__consumer_offsets",
    "__transaction_state",
    "__share_group_state",
    "__cluster_metadata",
    "__remote_log_metadata",
];

/// The prefixes of the names of objects' contents, and of streams that later programs may need.
const RESERVED_PREFIXES: [&str; 2] = ["__object/", "__millstream"];

/// Returns whether the name is reserved for the node or for Kafka.
///
/// ```
/// assert!(millstream_log::is_reserved("__consumer_offsets"));
/// assert!(!millstream_log::is_reserved("__debezium-heartbeat.db"));
/// ```
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
        || RESERVED_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// Checks the name of a stream that a user makes.
pub fn check_name(name: &str) -> Result<()> {
    check_plain(name)?;
    if is_reserved(name) {
        return refuse(name, "the node needs this name for itself");
    }
    Ok(())
}

/// Checks a name of whatever a user makes.
pub fn check_plain(name: &str) -> Result<()> {
    let refuse = |why| refuse(name, why);
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | ':');
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return refuse("1 to 249 characters");
    }
    if !name.chars().all(allowed) {
        return refuse("only letters, digits and . _ - / :");
    }
    if name == "." || name == ".." {
        return refuse("it means a folder");
    }
    Ok(())
}

fn refuse(name: &str, why: &'static str) -> Result<()> {
    Err(LogError::BadName {
        name: name.chars().take(NAME_BYTES_MAX).collect(),
        why,
    })
}
