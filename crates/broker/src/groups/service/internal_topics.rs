//! Topics that the broker makes for groups of Kafka Streams.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use millstream_log::{Log, StreamConfig};
use parking_lot::Mutex;

use crate::groups::{Creation, GroupName, InternalTopic};
use crate::security::service::SecurityService;
use crate::security::{Operation, Principal, Resource};
use crate::topic_names::check_name;

/// The results of creating topics for groups, until the coordinator takes note of them.
pub type Outcomes = Arc<Mutex<Vec<(GroupName, Result<(), String>)>>>;

/// Gives a topic that is to be created its settings: values by their names, and `None` for the default. An error says why
/// the settings are refused.
pub type SetTopic = fn(&mut StreamConfig, &[(&str, Option<&str>)]) -> Result<(), String>;

/// Creates topics in a thread of its own, since that waits for the disk.
pub fn create(
    log: &Log,
    security: &Arc<SecurityService>,
    set_topic: SetTopic,
    outcomes: &Outcomes,
    creation: Creation,
) {
    let (log, security) = (log.clone(), Arc::clone(security));
    let outcomes = Arc::clone(outcomes);
    tokio::task::spawn_blocking(move || {
        let made = create_all(&log, &security, set_topic, &creation);
        if let Err(why) = &made {
            tracing::warn!(
                "cannot create the topics of group {}: {why}",
                creation.group
            );
        }
        outcomes.lock().push((creation.group, made));
    });
}

fn create_all(
    log: &Log,
    security: &SecurityService,
    set_topic: SetTopic,
    creation: &Creation,
) -> Result<(), String> {
    let partitions = creation
        .topics
        .iter()
        .map(|topic| topic.partitions.max(0) as u64);
    log.check_partitions(partitions.sum())
        .map_err(|error| format!("{error}."))?;
    let mut topics = creation.topics.iter();
    topics.try_for_each(|topic| create_one(log, security, set_topic, creation, topic))
}

fn create_one(
    log: &Log,
    security: &SecurityService,
    set_topic: SetTopic,
    creation: &Creation,
    topic: &InternalTopic,
) -> Result<(), String> {
    let name = topic.name.as_str();
    check_name(name).map_err(|why| format!("Topic {name}: {why}."))?;
    if !may_create(security, creation, name) {
        return Err(format!("Topic {name}: the member may not create it."));
    }
    if !matches!(topic.replication_factor, -1..=1) {
        return Err(format!(
            "Topic {name}: there is one broker, so the replication factor is 1."
        ));
    }
    let mut config = StreamConfig {
        streamlets: u32::try_from(topic.partitions).unwrap_or(0),
        ..StreamConfig::default()
    };
    let settings = topic.settings.iter();
    let settings = settings.map(|(setting, value)| (&**setting, Some(&**value)));
    let settings: Vec<(&str, Option<&str>)> = settings.collect();
    set_topic(&mut config, &settings).map_err(|why| format!("Topic {name}: {why}."))?;
    let made = log.stream_or_create(name, config);
    made.map(drop)
        .map_err(|error| format!("Topic {name}: {error}."))
}

fn may_create(security: &SecurityService, creation: &Creation, topic: &str) -> bool {
    if !security.is_restricted() {
        return true;
    }
    let principal: Option<Principal> = creation.principal.parse().ok();
    let address: Option<IpAddr> = creation.host.trim_start_matches('/').parse().ok();
    principal.zip(address).is_some_and(|(principal, address)| {
        let from = SocketAddr::new(address, 0);
        let may = |resource| security.permits(&principal, from, Operation::Create, resource);
        may(Resource::CLUSTER) || may(Resource::topic(topic))
    })
}
