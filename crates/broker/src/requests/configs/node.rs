//! The settings of the broker: those that it was started with, and those that are changed while it runs.
//!
//! The latter are the defaults of topics. They are set for this broker, by its id, or for all brokers, by an empty name;
//! where both are set, those of this broker apply.

use millstream_wire::messages::DescribeConfigsRequest;
use millstream_wire::messages::describe_configs_request::DescribeConfigsResource;
use millstream_wire::messages::describe_configs_response::DescribeConfigsResourceResult;

use super::{is_asked_for, options, started};
use crate::broker::Broker;
use crate::configs::change::{Changes, Own, apply};
use crate::configs::defaults::{ALL_BROKERS, Changed, use_defaults};
use crate::configs::setting::{Found, Refused, Setting, Source};
use crate::configs::store::{ConfigStore, Kind};
use crate::configs::tables::topics::{SETTINGS, TopicSetting};
use crate::configs::tables::without_effect;
use crate::configs::topics;

/// The name that errors give this kind of resource.
const OF: &str = "brokers";

/// The settings that can be changed while the broker runs.
fn dynamic() -> impl Iterator<Item = Setting> {
    let of_topics = SETTINGS.iter().filter_map(|topic| {
        let name = topic.of_broker.filter(|name| !is_started(name))?;
        Some(Setting {
            name,
            ..topic.setting
        })
    });
    of_topics.chain(without_effect::SETTINGS)
}

/// Whether the broker was started with this setting, which then never changes.
fn is_started(name: &str) -> bool {
    let mut started = started::SETTINGS.iter();
    started.any(|started| started.name == name)
}

/// Whether a name is that of this broker; if not, it is that of all.
fn is_this(broker: &Broker, name: &str) -> Result<bool, Refused> {
    let id = broker.config().node_id.to_string();
    match name {
        ALL_BROKERS => Ok(false),
        name if name == id => Ok(true),
        name => Err(Refused::request(format!(
            "there is no broker {name:?}: the only one is {id}"
        ))),
    }
}

/// Returns a function that finds the broker's values for a setting of topics, most important first: its changes, then
/// the default.
pub fn found_for_topics(broker: &Broker) -> impl Fn(&TopicSetting) -> Vec<Found> {
    let changed = Changed::of(broker.configs(), broker.config());
    move |topic| {
        let name = topic.of_broker.unwrap_or(topic.setting.name);
        let mut found: Vec<Found> = changed.found(name).collect();
        found.push(Found {
            name,
            ..topic.setting.found_by_default()
        });
        found
    }
}

/// Describes the broker's settings. The name of all brokers selects only the settings that were changed for all.
///
/// # Errors
/// When the broker does not exist.
pub fn describe(
    broker: &Broker,
    resource: &DescribeConfigsResource,
    request: &DescribeConfigsRequest,
) -> Result<Vec<DescribeConfigsResourceResult>, Refused> {
    let options = options(request);
    let changed = Changed::of(broker.configs(), broker.config());
    if !is_this(broker, &resource.resource_name)? {
        let set = dynamic().filter(|setting| {
            changed.all.contains_key(setting.name) && is_asked_for(resource, setting.name)
        });
        let described = set.map(|setting| {
            let mut found: Vec<Found> = changed.found(setting.name).collect();
            found.retain(|found| found.source == Source::AllBrokers);
            setting.describe(&found, &options)
        });
        return Ok(described.collect());
    }
    let dynamic = dynamic().filter(|setting| is_asked_for(resource, setting.name));
    let dynamic = dynamic.map(|setting| {
        let mut found: Vec<Found> = changed.found(setting.name).collect();
        found.push(setting.found_by_default());
        setting.describe(&found, &options)
    });
    let started = started::SETTINGS.iter();
    let started = started.filter(|started| is_asked_for(resource, started.name));
    let started = started.map(|started| started.describe(broker, &options));
    Ok(dynamic.chain(started).collect())
}

/// Changes settings of the broker, or of all.
///
/// # Errors
/// When the broker or a setting does not exist, the setting is fixed, or a value is not valid for it.
pub fn alter(
    broker: &Broker,
    name: &str,
    changes: &Changes<'_>,
    validate_only: bool,
) -> Result<(), Refused> {
    is_this(broker, name)?;
    let known: Vec<Setting> = dynamic().collect();
    let change = |own: &mut Own| {
        for (setting, change) in changes {
            let find = |name: &str| find(&known, name);
            apply(own, setting, *change, find, |setting| {
                setting.default.to_owned()
            })
            // Kafka refuses it as an invalid request.
            .map_err(|refused| Refused::request(refused.message))?;
        }
        check(own)
    };
    let store: &ConfigStore = broker.configs();
    store.change(Kind::Broker, name, validate_only, change, |_| {
        // The store now holds the change; make topics use it.
        use_defaults(broker.log(), broker.configs(), broker.config());
    })
}

fn find<'k>(known: &'k [Setting], name: &str) -> Result<&'k Setting, Refused> {
    if is_started(name) {
        let why = format!("{name} cannot be changed while the broker runs");
        return Err(Refused::request(why));
    }
    Setting::named(known, OF, name)
}

/// Checks the settings as those of a topic are checked.
fn check(own: &Own) -> Result<(), Refused> {
    let of_topics = SETTINGS.iter().filter_map(|topic| {
        let value = own.get(topic.of_broker?)?;
        Some((topic.setting.name.to_owned(), value.clone()))
    });
    topics::check(&of_topics.collect()).map_err(|refused| Refused::request(refused.message))
}
