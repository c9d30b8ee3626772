//! An entry of the table of settings: the values of a setting, its texts, and the field that takes its value.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::ValueParser;
use clap::{Arg, ArgMatches};
use millstream_base::ByteSize;
use millstream_broker::{BrokerConfig, started_documentation};
use millstream_log::{LogConfig, POOL_BYTES_MIN};

use super::table::{LISTEN_DEFAULT, Settings};
use crate::values;

/// The prefix of the variables of the environment that hold settings.
pub const VARIABLE_PREFIX: &str = "MILLSTREAM_";

/// The commands that use a setting. Their help shows its flag, and other commands refuse the flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Commands that connect to a server. A profile may hold these settings.
    Client,
    /// Commands that open the data directory.
    Log,
    /// `start`, which serves Kafka clients.
    Broker,
    /// Commands that serve HTTP.
    Http,
    /// Commands that run flows.
    Flows,
    /// `quickstart`, beside the settings of the log, of HTTP and of flows.
    Quickstart,
    /// All commands.
    Always,
}

/// The default of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ByDefault {
    None,
    /// A value, as the settings' file may hold it.
    Value(String),
    /// A description, for a default that depends on the command or on the machine.
    Words(String),
}

/// The least and the largest value.
#[derive(Debug, Clone)]
pub struct Bounds {
    pub least: String,
    pub most: Option<String>,
}

impl Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.most {
            Some(most) => write!(f, "{} to {most}", self.least),
            None => write!(f, "{} or more", self.least),
        }
    }
}

/// The texts of a setting, and the commands that use it.
#[derive(Debug)]
pub struct About {
    /// A value's name in the help.
    value_name: &'static str,
    /// The effect of the setting. The help, the page and DescribeConfigs have this text.
    pub doc: String,
    /// Further sentences, for the page alone.
    pub more: &'static str,
    pub bounds: Option<Bounds>,
    pub default: ByDefault,
    /// A value for the sample of the settings' file, which has the default if there is none here.
    pub example: &'static str,
    pub uses: &'static [Use],
    /// Names of the broker's settings in Kafka.
    pub kafka: &'static [&'static str],
    /// A second variable of the environment.
    pub short_variable: Option<&'static str>,
    /// Settings whose flags this flag excludes.
    excludes: &'static [&'static str],
    /// A flag without a value means `true`.
    is_switch: bool,
}

/// The field that takes the value of a setting.
enum Field<T: 'static> {
    /// None: other code reads the value.
    None,
    Broker(fn(&mut BrokerConfig) -> &mut T),
    Log(fn(&mut LogConfig) -> &mut T),
}

/// Reads a value, or says which values there are.
type Read<T> = dyn Fn(&str) -> Result<T, String> + Send + Sync;

/// An entry of the table for values of the type `T`.
pub struct Entry<T: 'static> {
    about: About,
    read: Box<Read<T>>,
    /// Reads the value of the flag.
    parser: ValueParser,
    /// Writes a value as the settings' file may hold it.
    show: fn(&T) -> String,
    field: Field<T>,
}

/// Values that `read` accepts.
pub fn value<T>(
    value_name: &'static str,
    read: impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static,
) -> Entry<T>
where
    T: Clone + Send + Sync,
{
    Entry {
        about: About {
            value_name,
            doc: String::new(),
            more: "",
            bounds: None,
            default: ByDefault::None,
            example: "",
            uses: &[],
            kafka: &[],
            short_variable: None,
            excludes: &[],
            is_switch: false,
        },
        parser: ValueParser::new(read.clone()),
        read: Box::new(read),
        show: |_| String::new(),
        field: Field::None,
    }
}

/// Paths of files or folders. A flag may name one that is not UTF-8.
pub fn paths(value_name: &'static str) -> Entry<PathBuf> {
    Entry {
        parser: ValueParser::path_buf(),
        ..value(value_name, values::path)
    }
}

/// Texts that are not empty.
pub fn texts() -> Entry<String> {
    value("NAME", values::text)
}

/// `true` or `false`.
pub fn switches() -> Entry<bool> {
    let mut entry = value("BOOL", values::boolean);
    entry.about.is_switch = true;
    Entry {
        parser: ValueParser::bool(),
        show: bool::to_string,
        ..entry
    }
}

/// Numbers from `least` on, up to `most` where there is a bound.
pub fn numbers<T>(least: T, most: Option<T>) -> Entry<T>
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync,
{
    let bounds = Bounds {
        least: least.to_string(),
        most: most.as_ref().map(T::to_string),
    };
    let entry = Entry {
        show: T::to_string,
        ..value("N", values::number(least, most))
    };
    entry.within(bounds)
}

/// Sizes from `least` bytes on.
pub fn sizes(least: u64) -> Entry<ByteSize> {
    let least = ByteSize(least);
    let entry = Entry {
        show: size_text,
        ..value("SIZE", values::size_from(least))
    };
    match least {
        ByteSize(0) => entry,
        least => entry.within(Bounds {
            least: size_text(&least),
            most: None,
        }),
    }
}

/// Times.
pub fn times() -> Entry<Duration> {
    Entry {
        show: time_text,
        ..value("TIME", values::time)
    }
}

/// Times from `least` to `most`.
pub fn times_within(least: Duration, most: Duration) -> Entry<Duration> {
    let bounds = Bounds {
        least: time_text(&least),
        most: Some(time_text(&most)),
    };
    let entry = Entry {
        show: time_text,
        ..value("TIME", values::time_within(least, most))
    };
    entry.within(bounds)
}

fn size_text(size: &ByteSize) -> String {
    size.to_string().replace(' ', "")
}

fn time_text(time: &Duration) -> String {
    humantime::format_duration(*time).to_string()
}

impl<T: Clone + Send + Sync> Entry<T> {
    /// Sets the effect, as a sentence without its period.
    pub fn doc(mut self, doc: &str) -> Entry<T> {
        self.about.doc = doc.to_owned();
        self
    }

    /// Takes the effect from the broker's documentation of its setting with this name of Kafka's.
    ///
    /// # Panics
    /// If the broker has no such setting.
    pub fn documented_as(mut self, kafka: &'static [&'static str; 1]) -> Entry<T> {
        let [name] = kafka;
        let doc = started_documentation(name);
        let doc = doc.unwrap_or_else(|| panic!("the broker is not started with {name}"));
        self.about.doc = doc.trim_end_matches('.').to_owned();
        self.kafka(kafka)
    }

    pub fn kafka(mut self, names: &'static [&'static str]) -> Entry<T> {
        self.about.kafka = names;
        self
    }

    pub fn more(mut self, more: &'static str) -> Entry<T> {
        self.about.more = more;
        self
    }

    pub fn within(mut self, bounds: Bounds) -> Entry<T> {
        self.about.bounds = Some(bounds);
        self
    }

    pub fn default(mut self, value: impl Display) -> Entry<T> {
        self.about.default = ByDefault::Value(value.to_string());
        self
    }

    /// Describes a default that is not one value.
    pub fn otherwise(mut self, words: impl Into<String>) -> Entry<T> {
        self.about.default = ByDefault::Words(words.into());
        self
    }

    pub fn example(mut self, example: &'static str) -> Entry<T> {
        self.about.example = example;
        self
    }

    pub fn used_by(mut self, uses: &'static [Use]) -> Entry<T> {
        self.about.uses = uses;
        self
    }

    pub fn short_variable(mut self, variable: &'static str) -> Entry<T> {
        self.about.short_variable = Some(variable);
        self
    }

    pub fn excludes(mut self, settings: &'static [&'static str]) -> Entry<T> {
        self.about.excludes = settings;
        self
    }

    /// The field of the broker's config that takes the value. The default is that of the field.
    pub fn in_broker(mut self, field: fn(&mut BrokerConfig) -> &mut T) -> Entry<T> {
        let default = (self.show)(field(&mut BrokerConfig::new(LISTEN_DEFAULT)));
        self.field = Field::Broker(field);
        self.with_default_of_field(default)
    }

    /// As [`in_broker`](Entry::in_broker), for the log's config.
    pub fn in_log(mut self, field: fn(&mut LogConfig) -> &mut T) -> Entry<T> {
        let mut config = LogConfig::with_pool("", ByteSize(POOL_BYTES_MIN));
        let default = (self.show)(field(&mut config));
        self.field = Field::Log(field);
        self.with_default_of_field(default)
    }

    fn with_default_of_field(self, default: String) -> Entry<T> {
        match default.is_empty() {
            true => self,
            false => self.default(default),
        }
    }

    /// Makes the setting, whose value is at this place.
    pub fn named(
        self,
        name: &'static str,
        value: fn(&Settings) -> &Option<T>,
        place: fn(&mut Settings) -> &mut Option<T>,
    ) -> Setting {
        let Entry { read, field, .. } = self;
        let put: Box<Put> = Box::new(move |settings, config| {
            let Some(value) = value(settings).clone() else {
                return;
            };
            match (config, &field) {
                (Config::Broker(config), Field::Broker(field)) => *field(config) = value,
                (Config::Log(config), Field::Log(field)) => *field(config) = value,
                (Config::Broker(_) | Config::Log(_), _) => {}
            }
        });
        Setting {
            name,
            about: self.about,
            parser: self.parser,
            fill: Box::new(move |settings, text| {
                let value = read(text)?;
                place(settings).get_or_insert(value);
                Ok(())
            }),
            take: Box::new(move |settings, matches| {
                if let Some(value) = matches.get_one::<T>(name) {
                    *place(settings) = Some(value.clone());
                }
            }),
            put,
        }
    }
}

/// A config with fields that take settings.
pub enum Config<'a> {
    Broker(&'a mut BrokerConfig),
    Log(&'a mut LogConfig),
}

type Fill = dyn Fn(&mut Settings, &str) -> Result<(), String> + Send + Sync;
type Take = dyn Fn(&mut Settings, &ArgMatches) + Send + Sync;
type Put = dyn Fn(&Settings, Config<'_>) + Send + Sync;

/// A setting of the table.
pub struct Setting {
    /// The name in the settings' file. The flag and the variable of the environment follow from it.
    pub name: &'static str,
    pub about: About,
    parser: ValueParser,
    fill: Box<Fill>,
    take: Box<Take>,
    put: Box<Put>,
}

impl Setting {
    /// Checks a value from the environment or a file, and takes it unless the setting has a value.
    ///
    /// # Errors
    /// If the value is not valid; the error says which values are.
    pub fn fill(&self, settings: &mut Settings, text: &str) -> Result<(), String> {
        (self.fill)(settings, text)
    }

    /// Takes the value of the flag, if it is there.
    pub fn take(&self, settings: &mut Settings, matches: &ArgMatches) {
        (self.take)(settings, matches);
    }

    /// Puts the value, if there is one, into its field if this config has it.
    pub fn put(&self, settings: &Settings, config: Config<'_>) {
        (self.put)(settings, config);
    }

    /// Returns the variable of the environment.
    pub fn variable(&self) -> String {
        format!("{VARIABLE_PREFIX}{}", self.name.to_ascii_uppercase())
    }

    /// Whether a variable of the environment is this setting's. Its name may have small letters behind the prefix.
    pub fn has_variable(&self, variable: &str) -> bool {
        let name = variable.strip_prefix(VARIABLE_PREFIX);
        self.about.short_variable == Some(variable)
            || name.is_some_and(|name| name.eq_ignore_ascii_case(self.name))
    }

    /// Returns the flag.
    pub fn flag(&self) -> Arg {
        let flag = Arg::new(self.name)
            .long(self.name.replace('_', "-"))
            .global(true)
            .value_name(self.about.value_name)
            .value_parser(self.parser.clone())
            .conflicts_with_all(self.about.excludes)
            .help(self.help());
        match self.about.is_switch {
            true => flag.num_args(0..=1).default_missing_value("true"),
            false => flag,
        }
    }

    /// Returns a value for the sample of the settings' file.
    #[cfg(test)]
    pub fn sample(&self) -> &str {
        match (self.about.example, &self.about.default) {
            ("", ByDefault::Value(default)) => default,
            (example, _) => example,
        }
    }

    fn help(&self) -> String {
        let About { doc, bounds, .. } = &self.about;
        let bounds = bounds.as_ref().map(|bounds| format!(" [bounds: {bounds}]"));
        let default = match &self.about.default {
            ByDefault::None => String::new(),
            ByDefault::Value(text) | ByDefault::Words(text) => format!(" [default: {text}]"),
        };
        format!("{doc}{}{default}", bounds.unwrap_or_default())
    }
}
