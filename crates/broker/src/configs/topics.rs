//! The settings of topics: their checks, and their place in a stream's config.

use std::collections::BTreeSet;

use millstream_log::{StreamConfig, StreamDefaults};

use super::change::{Change, Changes, Own, apply};
use super::setting::{Refused, Setting};
use super::tables::topics::{Reader, SETTINGS, TopicSetting};

/// The settings of topics, without their names at the broker.
pub fn settings() -> impl Iterator<Item = &'static Setting> + Clone {
    SETTINGS.iter().map(|topic| &topic.setting)
}

fn named(name: &str) -> Option<&'static TopicSetting> {
    SETTINGS.iter().find(|topic| topic.setting.name == name)
}

/// Checks combinations of settings.
///
/// # Errors
/// When a check fails; the error names both settings.
pub fn check(own: &Own) -> Result<(), Refused> {
    let number = |name: &str| own.get(name).and_then(|value| value.parse::<i64>().ok());
    for topic in &SETTINGS {
        let (name, Some(bound)) = (topic.setting.name, topic.at_most) else {
            continue;
        };
        match (number(name), number(bound)) {
            (Some(least), Some(most)) if least > most => {
                let why = format!("{name} is {least}, and more than {bound}, which is {most}");
                return Err(Refused::invalid(why));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The settings that a stream has of its own.
pub fn own(config: &StreamConfig) -> Own {
    let mut own: Own = config.settings.clone();
    for topic in &SETTINGS {
        let Reader::Field(field) = topic.reader else {
            continue;
        };
        let name = topic.setting.name;
        match (field.get)(config, own.contains_key(name)) {
            Some(value) => own.insert(name.to_owned(), value),
            None => own.remove(name),
        };
    }
    own
}

/// The settings of a stream of its own that can be changed.
pub fn changeable(config: &StreamConfig) -> Own {
    let mut own = own(config);
    own.retain(|name, _| named(name).is_none_or(|topic| !topic.is_fixed_at_creation));
    own
}

/// Gives a stream the settings that have changed from `before` to `after`.
pub fn put(config: &mut StreamConfig, before: &Own, after: &Own) {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names
        .into_iter()
        .filter(|name| before.get(*name) != after.get(*name))
    {
        let value = after.get(name);
        if let Some(Reader::Field(field)) = named(name).map(|topic| topic.reader) {
            (field.put)(config, value.map(String::as_str));
        }
        match value {
            Some(value) => config.settings.insert(name.clone(), value.clone()),
            None => config.settings.remove(name),
        };
    }
}

/// The defaults of the broker for topics, as `broker` returns them by their names.
pub fn defaults<'a>(broker: impl Fn(&str) -> Option<&'a str>) -> StreamDefaults {
    let mut config = StreamConfig::default();
    for topic in &SETTINGS {
        let Some(value) = topic.of_broker.and_then(&broker) else {
            continue;
        };
        match topic.reader {
            Reader::None | Reader::Shares => {}
            Reader::Field(field) => (field.put)(&mut config, Some(value)),
            Reader::Log => {
                let name = topic.setting.name.to_owned();
                config.settings.insert(name, value.to_owned());
            }
        }
    }
    StreamDefaults {
        retention_ms: config.retention_ms,
        retention: config.retention,
        chunk_bytes_max: config.chunk_bytes_max,
        settings: config.settings,
    }
}

/// Gives a topic that is to be created its settings: values by their names, and `None` for the default.
///
/// # Errors
/// When a setting does not exist, or a value is not valid for it.
pub fn set_of_created(
    config: &mut StreamConfig,
    settings: &[(&str, Option<&str>)],
) -> Result<(), Refused> {
    let settings = settings.iter();
    let changes = settings.map(|(name, value)| (*name, value.map_or(Change::Delete, Change::Set)));
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
    use millstream_base::ByteSize;
    use millstream_log::RETENTION_MS;

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
        let of_kafka: Vec<&str> = names
            .filter(|name| !name.starts_with("millstream."))
            .collect();
        assert!(of_kafka.is_sorted());
        let of_dead_letters = 1;
        let of_kafka_4_3 = of_kafka.len() - of_dead_letters;
        assert_eq!(of_kafka_4_3, 33, "as many as Kafka 4.3 shows of a topic");
    }

    #[test]
    fn a_setting_has_no_effect_exactly_if_its_documentation_says_so() {
        for TopicSetting {
            setting, reader, ..
        } in &SETTINGS
        {
            let refuses = ["compact", "2", "true"].map(|value| (setting.refuse)(value).is_some());
            let has_effect = !matches!(reader, Reader::None) || refuses.contains(&true);
            let is_documented = !setting.documentation.starts_with("Has no effect");
            assert_eq!(has_effect, is_documented, "{}", setting.name);
        }
    }

    #[test]
    fn the_guide_names_each_setting_with_an_effect() {
        let page = include_str!("../../../../docs/kafka.md");
        for setting in settings() {
            if !setting.documentation.starts_with("Has no effect") {
                let name = setting.name;
                let is_named = ["`", "="]
                    .iter()
                    .any(|end| page.contains(&format!("`{name}{end}")));
                assert!(is_named, "docs/kafka.md does not name {name}");
            }
        }
    }

    #[test]
    fn the_shown_defaults_equal_the_settings_of_a_new_stream() {
        let config = StreamConfig::default();
        assert_eq!(own(&config), Own::new());
        for topic in &SETTINGS {
            if let Reader::Field(field) = topic.reader {
                let shown = (field.get)(&config, true);
                // A stream without a bound of its own takes chunks of up to a segment.
                let shown = shown.unwrap_or_else(|| config.segment.0.to_string());
                assert_eq!(shown, topic.setting.default, "{}", topic.setting.name);
            }
        }
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
