//! New topics that ask for compaction, which is not supported yet.

use millstream_log::{RETENTION_BYTES, RETENTION_MS};

use super::tables::topics::{CLEANUP, COMPACT, DELETE};

/// A setting and its value; `None` for its default.
type Setting<'a> = (&'a str, Option<&'a str>);

/// Replaces `compact` among the settings of a new topic: the topic keeps every record.
///
/// A reader of a compacted topic finds the last record of each key, and any number of records before that one. So a topic
/// that keeps all of them serves the same readers, and takes more room. With `compact,delete` the retention holds.
pub fn keep_whole<'a>(
    topic: &str,
    settings: impl Iterator<Item = Setting<'a>>,
) -> Vec<Setting<'a>> {
    let mut settings: Vec<Setting> = settings.collect();
    let policies = settings.iter().rev().find_map(|(name, value)| {
        let value = value.filter(|_| *name == CLEANUP)?;
        Some(Vec::from_iter(value.split(',').map(str::trim)))
    });
    let policies = policies.unwrap_or_default();
    let is_known = |policy: &&str| matches!(*policy, COMPACT | DELETE);
    if !policies.contains(&COMPACT) || !policies.iter().all(is_known) {
        return settings;
    }
    tracing::warn!(
        "topic {topic} asks for compaction, which is not supported yet: the topic keeps every record"
    );
    settings.retain(|(name, _)| *name != CLEANUP);
    settings.push((CLEANUP, Some(DELETE)));
    if !policies.contains(&DELETE) {
        let is_retention = |name: &str| matches!(name, RETENTION_MS | RETENTION_BYTES);
        settings.retain(|(name, _)| !is_retention(name));
        settings.extend([(RETENTION_MS, Some("-1")), (RETENTION_BYTES, Some("-1"))]);
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(settings: &[(&str, &str)], expected: &[(&str, &str)]) {
        let given = settings.iter().map(|(name, value)| (*name, Some(*value)));
        let expected: Vec<Setting> = expected
            .iter()
            .map(|(name, value)| (*name, Some(*value)))
            .collect();
        assert_eq!(keep_whole("t", given), expected);
    }

    #[test]
    fn a_topic_that_is_compacted_alone_loses_nothing_to_retention() {
        let kept = [
            ("segment.bytes", "100"),
            ("cleanup.policy", "delete"),
            ("retention.ms", "-1"),
            ("retention.bytes", "-1"),
        ];
        check(
            &[
                ("cleanup.policy", "compact"),
                ("segment.bytes", "100"),
                ("retention.ms", "5"),
            ],
            &kept,
        );
    }

    #[test]
    fn a_topic_that_is_compacted_and_deleted_keeps_its_retention() {
        let expected = [("retention.ms", "5"), ("cleanup.policy", "delete")];
        check(
            &[("cleanup.policy", "compact, delete"), ("retention.ms", "5")],
            &expected,
        );
    }

    #[test]
    fn other_policies_are_left_as_they_are() {
        for policy in ["delete", "compact,none", ""] {
            let settings = [("cleanup.policy", policy), ("retention.ms", "5")];
            check(&settings, &settings);
        }
        check(&[], &[]);
    }
}
