//! A setting: its type, documentation and default, and the description of its value in responses.

use millstream_base::nearest;
use millstream_log::SETTINGS_BYTES_MAX;
use millstream_wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsSynonym,
};
use millstream_wire::{ResponseError, StrBytes};

use super::value::Values;

/// The source of a value, by its number in Kafka's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i8)]
pub enum Source {
    /// It was set for the topic.
    Topic = 1,
    /// It was set for this broker while it ran.
    Broker = 2,
    /// It was set for all brokers while they ran.
    AllBrokers = 3,
    /// The broker was started with it.
    Started = 4,
    /// It is the default.
    Default = 5,
    /// It was set for a target of the log of the program.
    Logger = 6,
    /// It was set for a subscription to metrics of clients.
    ClientMetrics = 7,
    /// It was set for the group.
    Group = 8,
}

/// A setting of any kind of resource.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub name: &'static str,
    pub values: Values,
    pub default: &'static str,
    /// The setting's effect here, or the reason why it has none.
    pub documentation: &'static str,
    /// Returns why this server does not support a value that is valid for Kafka.
    pub refuse: fn(&str) -> Option<String>,
}

/// The reason why settings are not shown or not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub error: ResponseError,
    pub message: String,
}

impl Refused {
    pub fn new(error: ResponseError, message: impl Into<String>) -> Refused {
        let message = message.into();
        Refused { error, message }
    }

    /// A value that makes no sense.
    pub fn invalid(message: impl Into<String>) -> Refused {
        Refused::new(ResponseError::InvalidConfig, message)
    }

    /// A request that makes no sense.
    pub fn request(message: impl Into<String>) -> Refused {
        Refused::new(ResponseError::InvalidRequest, message)
    }
}

/// A value, with its name and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub source: Source,
    pub name: &'static str,
    pub value: String,
}

impl Setting {
    pub const fn new(
        name: &'static str,
        values: Values,
        default: &'static str,
        documentation: &'static str,
    ) -> Setting {
        Setting {
            name,
            values,
            default,
            documentation,
            refuse: |_| None,
        }
    }

    /// The setting with a check of its own, after that of its type.
    pub const fn refusing(self, refuse: fn(&str) -> Option<String>) -> Setting {
        Setting { refuse, ..self }
    }

    /// Finds a setting by its name.
    ///
    /// # Errors
    /// When there is none; the error names the nearest one.
    pub fn named<'a>(
        settings: impl IntoIterator<Item = &'a Setting> + Clone,
        of: &str,
        name: &str,
    ) -> Result<&'a Setting, Refused> {
        let found = settings
            .clone()
            .into_iter()
            .find(|setting| setting.name == name);
        found.ok_or_else(|| {
            let known = settings.into_iter().map(|setting| setting.name);
            let meant = nearest(name, known).map(|known| format!("; did you mean {known}?"));
            let meant = meant.unwrap_or_default();
            Refused::invalid(format!("{of} have no setting {name:?}{meant}"))
        })
    }

    /// Parses a value of the setting.
    ///
    /// # Errors
    /// When the value is too long, not valid or not supported; the error names the setting.
    pub fn read(&self, text: &str) -> Result<String, String> {
        let (name, bytes) = (self.name, text.len());
        if bytes > SETTINGS_BYTES_MAX {
            return Err(format!(
                "{name}: the value has {bytes} bytes, and all settings together at most {SETTINGS_BYTES_MAX}"
            ));
        }
        let read = self.values.read(text).and_then(|value| {
            let refused = (self.refuse)(&value);
            refused.map_or(Ok(value), Err)
        });
        read.map_err(|why| format!("{name}: {why}"))
    }

    /// The default, as the last of the values found.
    pub fn found_by_default(&self) -> Found {
        Found {
            source: Source::Default,
            name: self.name,
            value: self.default.to_owned(),
        }
    }

    /// Describes the setting: the first of `found` is in force; the others follow as the values that it overrides.
    pub fn describe(
        &self,
        found: &[Found],
        options: &DescribeOptions,
    ) -> DescribeConfigsResourceResult {
        let first = found.first();
        let synonyms = found.iter().filter(|_| options.synonyms).map(|found| {
            DescribeConfigsSynonym::default()
                .with_name(StrBytes::from_static_str(found.name))
                .with_value(Some(StrBytes::from_string(found.value.clone())))
                .with_source(found.source as i8)
        });
        let value = first.map_or_else(String::new, |found| found.value.clone());
        let source = first.map_or(Source::Default, |found| found.source);
        let documentation = StrBytes::from_static_str(self.documentation);
        DescribeConfigsResourceResult::default()
            .with_name(StrBytes::from_static_str(self.name))
            .with_value(Some(StrBytes::from_string(value)))
            .with_config_source(source as i8)
            .with_config_type(self.values.code())
            .with_synonyms(synonyms.collect())
            .with_documentation(options.documentation.then_some(documentation))
    }
}

/// The parts of a description that a request asks for.
#[derive(Debug, Clone, Copy)]
pub struct DescribeOptions {
    pub synonyms: bool,
    pub documentation: bool,
}
