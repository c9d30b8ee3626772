//! The levels of the program's log lines, by their targets. They last until the program ends, as with Kafka.

use millstream_base::nearest;
use millstream_wire::StrBytes;
use millstream_wire::messages::describe_configs_request::DescribeConfigsResource;
use millstream_wire::messages::describe_configs_response::DescribeConfigsResourceResult;

use super::is_asked_for;
use crate::broker::Broker;
use crate::configs::change::{Change, Changes};
use crate::configs::setting::{Refused, Source};
use crate::configs::{LogLevel, LogLevels, ROOT};

/// The level that turns a target's log lines off.
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
/// When the request names another broker.
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

/// Changes the levels of targets: all the changes or none.
///
/// # Errors
/// When the broker, a target or a level does not exist.
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
                let why = format!("the level of {ROOT} can be changed, but not removed");
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
