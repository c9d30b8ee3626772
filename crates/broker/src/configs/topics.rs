//! The settings of topics: their checks, and their place in a stream's config.

use std::collections::BTreeMap;

use millstream_base::ByteSize;
use millstream_log::{
    BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, COMPRESSION, GZIP_LEVEL, RETENTION_BYTES, RETENTION_MS,
    StreamConfig, TIMESTAMP_AFTER_MAX, TIMESTAMP_BEFORE_MAX, TIMESTAMP_TYPE, ZSTD_LEVEL,
};

use super::change::{Change, Changes, Own, apply};
use super::setting::{Refused, Setting};
use super::topic_table::{
    CHUNK_BYTES, CLEANUP, COMPACTION_LAG_MAX, COMPACTION_LAG_MIN, COPIES, DELETE, DURABILITY,
    GROUP_BYTES, REMOTE, SETTINGS,
};
use super::uncompacted::keep_whole;
use super::value::items_of;

/// The settings that are also fields of the stream's config.
const FIELDS: [&str; 5] = [
    RETENTION_MS,
    RETENTION_BYTES,
    CHUNK_BYTES,
    GROUP_BYTES,
    DURABILITY,
];

/// The most segments of a group: the log's bound.
const GROUP_SEGMENTS_MAX: u64 = 65_536;

/// The settings of topics, without their names at the broker.
pub fn settings() -> impl Iterator<Item = &'static Setting> + Clone {
    SETTINGS.iter().map(|topic| &topic.setting)
}

/// Checks combinations of settings, and the limits that this server adds to single values.
///
/// # Errors
/// When a check fails; the error names the setting and the reason.
pub fn check(own: &Own) -> Result<(), Refused> {
    let value = |name: &str| own.get(name).map(String::as_str);
    match value(CLEANUP) {
        None | Some(DELETE) => {}
        Some(policy) if items_of(policy).contains(&"compact") => {
            return Err(Refused::invalid(format!(
                "{CLEANUP}: this server does not compact yet: records stay until retention removes them, so only {DELETE} is taken"
            )));
        }
        Some(policy) => {
            let why = format!("{CLEANUP}: {policy:?} is no policy; only {DELETE} is taken");
            return Err(Refused::invalid(why));
        }
    }
    if let Some(copies) = value(COPIES).filter(|copies| *copies != "1") {
        return Err(Refused::invalid(format!(
            "{COPIES}: {copies} replicas never have a batch, since there is one broker"
        )));
    }
    if value(REMOTE) == Some("true") {
        let why = format!("{REMOTE}: this server has no remote storage");
        return Err(Refused::invalid(why));
    }
    let number = |name: &str| value(name).and_then(|value| value.parse::<i64>().ok());
    let (least, most) = (number(COMPACTION_LAG_MIN), number(COMPACTION_LAG_MAX));
    match (least, most) {
        (Some(least), Some(most)) if least > most => Err(Refused::invalid(format!(
            "{COMPACTION_LAG_MIN} is {least}, and more than {COMPACTION_LAG_MAX}, which is {most}"
        ))),
        _ => Ok(()),
    }
}

/// The settings that a stream has of its own.
pub fn own(config: &StreamConfig) -> Own {
    let mut own: Own = config.settings.clone();
    let default = StreamConfig::default();
    let mut put = |name: &str, value: Option<u64>| match value {
        Some(value) => {
            own.insert(name.to_owned(), value.to_string());
        }
        // The topic itself is set to have no bound.
        None if own.contains_key(name) => {
            own.insert(name.to_owned(), "-1".to_owned());
        }
        None => {}
    };
    put(RETENTION_MS, config.retention_ms);
    put(RETENTION_BYTES, config.retention.map(|bytes| bytes.0));
    match config.chunk_bytes_max {
        Some(bytes) => own.insert(CHUNK_BYTES.to_owned(), bytes.0.to_string()),
        None => own.remove(CHUNK_BYTES),
    };
    let bytes = group_bytes(config);
    if bytes != group_bytes(&default) || own.contains_key(GROUP_BYTES) {
        own.insert(GROUP_BYTES.to_owned(), bytes.to_string());
    }
    if config.durability != default.durability || own.contains_key(DURABILITY) {
        let name = config.durability.name();
        own.insert(DURABILITY.to_owned(), name.to_owned());
    }
    own
}

/// Gives a stream the settings that have changed from `before` to `after`.
pub fn put(config: &mut StreamConfig, before: &Own, after: &Own) {
    let names = before.keys().chain(after.keys());
    for name in names.filter(|name| before.get(*name) != after.get(*name)) {
        let value = after.get(name);
        if FIELDS.contains(&name.as_str()) {
            put_field(config, name, value.map(String::as_str));
        }
        match value {
            Some(value) => config.settings.insert(name.clone(), value.clone()),
            None => config.settings.remove(name),
        };
    }
}

fn put_field(config: &mut StreamConfig, name: &str, value: Option<&str>) {
    let number = value.and_then(|value| value.parse::<u64>().ok());
    let default = StreamConfig::default();
    match name {
        RETENTION_MS => config.retention_ms = number,
        RETENTION_BYTES => config.retention = number.map(ByteSize),
        CHUNK_BYTES => config.chunk_bytes_max = number.map(ByteSize),
        GROUP_BYTES => match number {
            Some(bytes) => set_group_bytes(config, bytes),
            None => {
                (config.segment, config.group_segments) = (default.segment, default.group_segments);
            }
        },
        DURABILITY => {
            let durability = value.and_then(|value| value.parse().ok());
            config.durability = durability.unwrap_or(default.durability);
        }
        _ => {}
    }
}

fn group_bytes(config: &StreamConfig) -> u64 {
    config.segment.0 * u64::from(config.group_segments)
}

/// A group is a whole number of segments, so its size is the requested one, or a little more.
fn set_group_bytes(config: &mut StreamConfig, bytes: u64) {
    let segment = bytes
        .next_power_of_two()
        .clamp(BLOCK_BYTES_MIN as u64, BLOCK_BYTES_MAX as u64);
    config.segment = ByteSize(segment);
    config.group_segments = bytes.div_ceil(segment).clamp(1, GROUP_SEGMENTS_MAX) as u32;
}

/// The settings that the log reads and that have no field, under their names for topics and for the broker.
pub const READ_BY_THE_LOG: [&str; 6] = [
    COMPRESSION,
    GZIP_LEVEL,
    ZSTD_LEVEL,
    TIMESTAMP_TYPE,
    TIMESTAMP_BEFORE_MAX,
    TIMESTAMP_AFTER_MAX,
];

/// The broker's setting that applies to topics without a setting `name` of their own.
pub fn of_broker(name: &str) -> Option<&'static str> {
    let mut settings = SETTINGS.iter();
    settings.find(|topic| topic.setting.name == name)?.of_broker
}

/// The defaults of the broker for topics, as `broker` returns them by their names.
pub fn defaults<'a>(broker: impl Fn(&str) -> Option<&'a str>) -> millstream_log::StreamDefaults {
    let of_topic = |name: &str| broker(of_broker(name)?);
    let number = |name: &str| of_topic(name)?.parse::<u64>().ok();
    let read = READ_BY_THE_LOG.into_iter().filter_map(|name| {
        let value = of_topic(name)?;
        Some((name.to_owned(), value.to_owned()))
    });
    millstream_log::StreamDefaults {
        retention_ms: number(RETENTION_MS),
        retention: number(RETENTION_BYTES).map(ByteSize),
        chunk_bytes_max: number(CHUNK_BYTES).map(ByteSize),
        settings: BTreeMap::from_iter(read),
    }
}

/// Gives a topic that is to be created its settings: values by their names, and `None` for the default. A topic that
/// asks for compaction keeps every record.
///
/// # Errors
/// When a setting does not exist, or a value is not valid for it.
pub fn set_of_created<'a>(
    config: &mut StreamConfig,
    topic: &str,
    settings: impl Iterator<Item = (&'a str, Option<&'a str>)>,
) -> Result<(), Refused> {
    let settings = keep_whole(topic, settings).into_iter();
    let changes = settings.map(|(name, value)| (name, value.map_or(Change::Delete, Change::Set)));
    let changes: Changes<'_> = changes.collect();
    let before = own(config);
    let after = changed_topic(&before, &changes)?;
    put(config, &before, &after);
    Ok(())
}

/// The settings of a topic after changes.
pub fn changed_topic(before: &Own, changes: &Changes<'_>) -> Result<Own, Refused> {
    let mut after = before.clone();
    for (name, change) in changes {
        let find = |name: &str| Setting::named(settings(), "topics", name);
        apply(&mut after, name, *change, find, |setting| {
            setting.default.to_owned()
        })?;
    }
    check(&after)?;
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_of_its_setting_and_names_are_in_order() {
        for setting in settings() {
            assert_eq!(
                setting.read(setting.default),
                Ok(setting.default.to_owned())
            );
            assert!(setting.documentation.ends_with('.'), "{}", setting.name);
        }
        let names = settings().map(|setting| setting.name);
        let of_kafka: Vec<&str> = names.filter(|name| *name != DURABILITY).collect();
        assert!(of_kafka.is_sorted());
        assert_eq!(of_kafka.len(), 33, "as many as Kafka 4.3 shows of a topic");
    }

    #[test]
    fn the_defaults_are_those_of_a_stream_that_was_just_made() {
        let config = StreamConfig::default();
        assert_eq!(own(&config), Own::new());
        let default = |name| {
            settings()
                .find(|setting| setting.name == name)
                .unwrap()
                .default
        };
        assert_eq!(default(GROUP_BYTES), group_bytes(&config).to_string());
        assert_eq!(default(CHUNK_BYTES), config.segment.0.to_string());
        assert_eq!(default(DURABILITY), config.durability.name());
    }

    #[test]
    fn a_change_of_one_setting_leaves_the_fields_of_others_alone() {
        let mut config = StreamConfig {
            group_segments: 3,
            segment: ByteSize(1 << 20),
            retention_ms: Some(7),
            ..StreamConfig::default()
        };
        let before = own(&config);
        let mut after = before.clone();
        after.insert("flush.ms".to_owned(), "1".to_owned());
        after.remove(RETENTION_MS);
        put(&mut config, &before, &after);
        assert_eq!(
            (config.group_segments, config.segment),
            (3, ByteSize(1 << 20))
        );
        assert_eq!(config.retention_ms, None);
        assert_eq!(own(&config), after);
    }
}
