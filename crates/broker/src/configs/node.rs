//! The settings of the broker: those that it was started with, and those that are changed while it runs.
//!
//! The latter are the defaults of topics. They are set for this broker, by its id, or for all brokers, by an empty name;
//! where both are set, those of this broker apply.

use millstream_wire::messages::DescribeConfigsRequest;
use millstream_wire::messages::describe_configs_request::DescribeConfigsResource;
use millstream_wire::messages::describe_configs_response::DescribeConfigsResourceResult;

use super::change::{Changes, Own, apply};
use super::defaults::{ALL_BROKERS, Changed, use_defaults};
use super::setting::{Asked, Found, Refused, Setting, Source};
use super::started::{Fixed, GROUP_BYTES, fixed};
use super::store::{ConfigStore, Kind};
use super::topic_table::{SETTINGS, TopicSetting};
use super::topics;
use super::value::Values;
use super::{asked, is_asked_for};
use crate::broker::Broker;

/// The name that errors give this kind of resource.
const OF: &str = "brokers";

/// Settings that Kafka's brokers take while they run, and that have no effect here and promise none: a broker that stores
/// them does what it was asked to. Settings that promise a bound, such as `max.connections`, are not among them.
const WITHOUT_EFFECT: [Setting; 17] = [
    without_effect("background.threads", THREADS, "10", OWN_THREADS),
    without_effect(
        "follower.replication.throttled.rate",
        RATE,
        RATE_MAX,
        ONE_REPLICA,
    ),
    without_effect(
        "leader.replication.throttled.rate",
        RATE,
        RATE_MAX,
        ONE_REPLICA,
    ),
    without_effect(
        "log.cleaner.backoff.ms",
        Values::Long(0),
        "15000",
        NO_CLEANER,
    ),
    without_effect(
        "log.cleaner.dedupe.buffer.size",
        Values::Long(0),
        "134217728",
        NO_CLEANER,
    ),
    without_effect(
        "log.cleaner.io.buffer.load.factor",
        Values::Ratio,
        "0.9",
        NO_CLEANER,
    ),
    without_effect(
        "log.cleaner.io.buffer.size",
        Values::Int(0, i32::MAX),
        "524288",
        NO_CLEANER,
    ),
    without_effect(
        "log.cleaner.threads",
        Values::Int(0, i32::MAX),
        "1",
        NO_CLEANER,
    ),
    without_effect("num.io.threads", THREADS, "8", OWN_THREADS),
    without_effect("num.network.threads", THREADS, "3", OWN_THREADS),
    without_effect(
        "num.recovery.threads.per.data.dir",
        THREADS,
        "2",
        OWN_THREADS,
    ),
    without_effect("num.replica.fetchers", THREADS, "1", ONE_REPLICA),
    without_effect(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        RATE,
        RATE_MAX,
        ONE_REPLICA,
    ),
    without_effect(
        "sasl.kerberos.kinit.cmd",
        Values::Text,
        "/usr/bin/kinit",
        NO_KERBEROS,
    ),
    without_effect(
        "sasl.kerberos.min.time.before.relogin",
        Values::Long(0),
        "60000",
        NO_KERBEROS,
    ),
    without_effect(
        "sasl.kerberos.ticket.renew.jitter",
        Values::Ratio,
        "0.05",
        NO_KERBEROS,
    ),
    without_effect(
        "sasl.kerberos.ticket.renew.window.factor",
        Values::Ratio,
        "0.8",
        NO_KERBEROS,
    ),
];

const THREADS: Values = Values::Int(1, i32::MAX);
const RATE: Values = Values::Long(0);
const RATE_MAX: &str = "9223372036854775807";

const OWN_THREADS: &str = "Has no effect: the broker sizes its thread pools by itself.";
const ONE_REPLICA: &str = "Has no effect: one broker has the only replica, which is never moved.";
const NO_CLEANER: &str = "Has no effect: the log is not compacted.";
const NO_KERBEROS: &str = "Has no effect: clients cannot log in with Kerberos.";

const fn without_effect(
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
    }
}

/// The settings that can be changed while the broker runs.
fn dynamic() -> impl Iterator<Item = Setting> {
    let of_topics = SETTINGS.iter().filter_map(|topic| {
        let name = topic.of_broker.filter(|name| *name != GROUP_BYTES)?;
        Some(Setting {
            name,
            ..topic.setting
        })
    });
    of_topics.chain(WITHOUT_EFFECT)
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
    let asked = asked(request);
    let changed = Changed::of(broker.configs(), broker.config());
    if !is_this(broker, &resource.resource_name)? {
        let set = dynamic().filter(|setting| {
            changed.all.contains_key(setting.name) && is_asked_for(resource, setting.name)
        });
        let described = set.map(|setting| {
            let mut found: Vec<Found> = changed.found(setting.name).collect();
            found.retain(|found| found.source == Source::AllBrokers);
            setting.describe(&found, &asked)
        });
        return Ok(described.collect());
    }
    let dynamic = dynamic().map(|setting| {
        let mut found: Vec<Found> = changed.found(setting.name).collect();
        found.push(setting.found_by_default());
        (setting, found, false)
    });
    let fixed = fixed(broker).into_iter().map(|Fixed { setting, value }| {
        let mut found = Vec::new();
        if value != setting.default {
            found.push(Found {
                source: Source::Started,
                name: setting.name,
                value,
            });
        }
        if !setting.default.is_empty() || found.is_empty() {
            found.push(setting.found_by_default());
        }
        (setting, found, true)
    });
    let all = dynamic.chain(fixed);
    let all = all.filter(|(setting, ..)| is_asked_for(resource, setting.name));
    Ok(describe_all(all, &asked))
}

fn describe_all(
    all: impl Iterator<Item = (Setting, Vec<Found>, bool)>,
    asked: &Asked,
) -> Vec<DescribeConfigsResourceResult> {
    let described = all
        .map(|(setting, found, is_fixed)| setting.describe(&found, asked).with_read_only(is_fixed));
    described.collect()
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
            let find = |name: &str| find(broker, &known, name);
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

fn find<'k>(broker: &Broker, known: &'k [Setting], name: &str) -> Result<&'k Setting, Refused> {
    if fixed(broker).iter().any(|fixed| fixed.setting.name == name) {
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
