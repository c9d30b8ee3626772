//! The levels of the program's log lines, by their targets. They last until the program ends, as with Kafka.

use std::fmt;
use std::str::FromStr;

use millstream_base::nearest;
use millstream_wire::StrBytes;
use millstream_wire::messages::describe_configs_request::DescribeConfigsResource;
use millstream_wire::messages::describe_configs_response::DescribeConfigsResourceResult;

use super::change::{Change, Changes};
use super::is_asked_for;
use super::setting::{Refused, Source};
use crate::broker::Broker;

/// The target of all lines whose own target has no level.
pub const ROOT: &str = "root";

/// The least important lines that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Only errors.
    Error,
    /// Warnings too.
    Warn,
    /// What happens now and then too.
    Info,
    /// What helps to find faults too.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    const ALL: [(&'static str, LogLevel); 5] = [
        ("DEBUG", LogLevel::Debug),
        ("ERROR", LogLevel::Error),
        ("INFO", LogLevel::Info),
        ("TRACE", LogLevel::Trace),
        ("WARN", LogLevel::Warn),
    ];
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = LogLevel::ALL.iter().find(|(_, level)| level == self);
        f.pad(found.map_or("", |(name, _)| name))
    }
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<LogLevel, String> {
        let found = LogLevel::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, level)| *level).ok_or_else(|| {
            let names = LogLevel::ALL.map(|(name, _)| name);
            format!("{text:?} is no level; there are {}", names.join(", "))
        })
    }
}

/// What the program writes to its log: the broker shows and changes it for administrators.
pub trait LogLevels: Send + Sync {
    /// The targets with their levels, [`ROOT`] among them; `None` where nothing is written.
    fn levels(&self) -> Vec<(&'static str, Option<LogLevel>)>;

    /// Gives a target a level, or that of [`ROOT`].
    fn set(&self, target: &str, level: Option<LogLevel>);
}

/// What nothing is written of is called.
const OFF: &str = "OFF";

fn levels(broker: &Broker) -> Vec<(&'static str, Option<LogLevel>)> {
    broker.log_levels().map_or_else(Vec::new, LogLevels::levels)
}

/// Refuses a name that is not that of this broker.
fn check_name(broker: &Broker, name: &str) -> Result<(), Refused> {
    let id = broker.config().node_id.to_string();
    match name == id {
        true => Ok(()),
        false => Err(Refused::request(format!(
            "there is no broker {name:?}: the only one is {id}"
        ))),
    }
}

/// Describes the levels of all targets.
///
/// # Errors
/// When there is no such broker.
pub fn describe(
    broker: &Broker,
    resource: &DescribeConfigsResource,
) -> Result<Vec<DescribeConfigsResourceResult>, Refused> {
    check_name(broker, &resource.resource_name)?;
    let levels = levels(broker).into_iter();
    let levels = levels.filter(|(target, _)| is_asked_for(resource, target));
    let described = levels.map(|(target, level)| {
        let level = level.map_or_else(|| OFF.to_owned(), |level| level.to_string());
        DescribeConfigsResourceResult::default()
            .with_name(StrBytes::from_static_str(target))
            .with_value(Some(StrBytes::from_string(level)))
            .with_config_source(Source::Logger as i8)
    });
    Ok(described.collect())
}

/// Changes the levels of targets: of all or of none.
///
/// # Errors
/// When there is no such broker, target or level.
pub fn alter(
    broker: &Broker,
    name: &str,
    changes: &Changes<'_>,
    validate_only: bool,
) -> Result<(), Refused> {
    check_name(broker, name)?;
    let known = levels(broker);
    let changes = changes.iter().map(|(target, change)| {
        if !known.iter().any(|(known, _)| known == target) {
            let meant = nearest(target, known.iter().map(|(known, _)| *known));
            let meant = meant.map(|known| format!("; did you mean {known}?"));
            let meant = meant.unwrap_or_default();
            return Err(Refused::invalid(format!(
                "there is no logger {target:?}{meant}"
            )));
        }
        match change {
            Change::Set(level) => match level.parse() {
                Ok(level) => Ok((*target, Some(level))),
                Err(why) => Err(Refused::invalid(format!("{target}: {why}"))),
            },
            Change::Delete if *target == ROOT => {
                let why = format!("the level of {ROOT} can be changed, and not be taken away");
                Err(Refused::request(why))
            }
            Change::Delete => Ok((*target, None)),
            Change::Append(_) | Change::Subtract(_) => {
                let why = format!("{} does not apply to levels", change.name());
                Err(Refused::request(why))
            }
        }
    });
    let changes: Vec<(&str, Option<LogLevel>)> = changes.collect::<Result<_, _>>()?;
    if let Some(levels) = broker.log_levels().filter(|_| !validate_only) {
        for (target, level) in changes {
            levels.set(target, level);
        }
    }
    Ok(())
}
