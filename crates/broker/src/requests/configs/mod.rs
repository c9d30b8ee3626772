//! Settings, described and changed: of topics, of the broker, of groups, of the program's log lines, and of subscriptions to
//! metrics of clients.

mod loggers;
mod node;
mod started;

use std::collections::HashSet;
use std::sync::Arc;

use millstream_log::StreamConfig;
use millstream_wire::messages::alter_configs_response::{
    AlterConfigsResourceResponse, AlterConfigsResponse,
};
use millstream_wire::messages::create_topics_response::CreatableTopicConfigs;
use millstream_wire::messages::describe_configs_request::DescribeConfigsResource;
use millstream_wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResponse, DescribeConfigsResult,
};
use millstream_wire::messages::incremental_alter_configs_response as incremental;
use millstream_wire::messages::list_config_resources_response::{
    ConfigResource, ListConfigResourcesResponse,
};
use millstream_wire::messages::{
    AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
};
use millstream_wire::{ResponseError, StrBytes};

pub use self::started::started_documentation;
use super::bounds::{Bound, BoundContext};
use super::handle::{Handle, Refusal, each, errors, messages, refuse_with_code};
use super::rights::{Check, Checked, items, need_cluster};
use crate::access::denied;
use crate::broker::Broker;
use crate::client::Client;
use crate::configs::change::{Change, Changes, Own, changes_of};
use crate::configs::setting::{DescribeOptions, Found, Refused, Setting, Source};
use crate::configs::store::Kind;
use crate::configs::tables::topics::{SETTINGS, TopicSetting};
use crate::configs::topics::changed_topic;
use crate::configs::{client_metrics, groups, topics};
use crate::error::response_error;
use crate::reply::Reply;
use crate::security::{Operation, Resource, ResourceType};
use crate::user_streams::stream_of_users;

/// Kinds of resources.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const LOGGER: i8 = 8;
const CLIENT_METRICS: i8 = 16;
const GROUP: i8 = 32;

/// From this version of ListConfigResources on the client chooses the types; before, it gets subscriptions to metrics.
const LIST_CHOICE_FROM: i16 = 1;

/// Declares the check of each resource: the error depends on its kind.
macro_rules! configured_items {
    ($answers:ident, $operation:expr) => {
        items! { $answers:
            resources, denied(ResourceType::Topic), |client, asked| {
                let (code, name) = (asked.resource_type, &asked.resource_name);
                code != TOPIC || client.access().may_topic($operation, name)
            };
            resources, denied(ResourceType::Group), |client, asked| {
                let resource = Resource::group(&asked.resource_name);
                asked.resource_type != GROUP || client.access().may($operation, resource)
            };
            resources, denied(ResourceType::Cluster), |client, asked| {
                !matches!(asked.resource_type, BROKER | LOGGER | CLIENT_METRICS)
                    || client.access().may($operation, Resource::CLUSTER)
            };
        }
    };
}

/// Describes the settings of topics, brokers, loggers, groups and subscriptions for metrics.
impl Handle for DescribeConfigsRequest {
    const CHECKS: &'static [Check] = &[Check::Items];

    configured_items!(results, Operation::DescribeConfigs);

    fn refuse(&self, refusal: &Refusal) -> DescribeConfigsResponse {
        DescribeConfigsResponse::default().with_results(each(&self.resources, |resource| {
            DescribeConfigsResult::default()
                .with_error_code(refusal.code)
                .with_error_message(refusal.message.clone())
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name.clone())
        }))
    }

    errors!(results.error_code);
    messages!(results.error_message);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::State
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        describe(broker, self)
    }
}

/// Replaces all settings of a resource.
impl Handle for AlterConfigsRequest {
    const CHECKS: &'static [Check] = &[Check::Items];

    configured_items!(responses, Operation::AlterConfigs);

    fn refuse(&self, refusal: &Refusal) -> AlterConfigsResponse {
        AlterConfigsResponse::default().with_responses(each(&self.resources, |resource| {
            AlterConfigsResourceResponse::default()
                .with_error_code(refusal.code)
                .with_error_message(refusal.message.clone())
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name.clone())
        }))
    }

    errors!(responses.error_code);
    messages!(responses.error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(self.resources.len())
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        alter(broker, self)
    }
}

/// Changes single settings of resources.
impl Handle for IncrementalAlterConfigsRequest {
    const CHECKS: &'static [Check] = &[Check::Items];

    configured_items!(responses, Operation::AlterConfigs);

    fn refuse(&self, refusal: &Refusal) -> incremental::IncrementalAlterConfigsResponse {
        let responses = each(&self.resources, |resource| {
            incremental::AlterConfigsResourceResponse::default()
                .with_error_code(refusal.code)
                .with_error_message(refusal.message.clone())
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name.clone())
        });
        incremental::IncrementalAlterConfigsResponse::default().with_responses(responses)
    }

    errors!(responses.error_code);
    messages!(responses.error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(self.resources.len())
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        alter_incrementally(broker, self)
    }
}

/// Lists resources that have settings.
impl Handle for ListConfigResourcesRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_cluster(client, Operation::DescribeConfigs)
    }

    refuse_with_code!();
    errors!(error_code);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::State
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        list(broker, version, self)
    }
}

fn options(request: &DescribeConfigsRequest) -> DescribeOptions {
    DescribeOptions {
        synonyms: request.include_synonyms,
        documentation: request.include_documentation,
    }
}

fn is_asked_for(resource: &DescribeConfigsResource, name: &str) -> bool {
    let keys = resource.configuration_keys.as_ref();
    keys.is_none_or(|keys| keys.iter().any(|key| **key == *name))
}

/// Describes settings.
fn describe(broker: &Arc<Broker>, request: DescribeConfigsRequest) -> Reply {
    // Each is described once, however often it is options for: an answer is no larger than all settings together.
    let mut named = HashSet::new();
    let resources = request.resources.iter();
    let resources = resources
        .filter(|resource| named.insert((resource.resource_type, &resource.resource_name)));
    let results = resources.map(|resource| {
        let result = DescribeConfigsResult::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name.clone());
        match describe_resource(broker, resource, &request) {
            Ok(configs) => result.with_configs(configs),
            Err(Refused { error, message }) => result
                .with_error_code(error.code())
                .with_error_message(Some(StrBytes::from_string(message))),
        }
    });
    DescribeConfigsResponse::default()
        .with_results(results.collect())
        .into()
}

type Described = Result<Vec<DescribeConfigsResourceResult>, Refused>;

fn describe_resource(
    broker: &Broker,
    resource: &DescribeConfigsResource,
    request: &DescribeConfigsRequest,
) -> Described {
    let name = &*resource.resource_name;
    let own = |kind| broker.configs().own(kind, name);
    match resource.resource_type {
        TOPIC => describe_topic(broker, resource, request),
        BROKER => node::describe(broker, resource, request),
        LOGGER => loggers::describe(broker, resource),
        CLIENT_METRICS => {
            client_metrics::check_name(name)?;
            let own = own(Kind::ClientMetrics);
            Ok(describe_all(client_metrics::all(&own), resource, request))
        }
        GROUP => {
            groups::check_name(name)?;
            let (own, of_broker) = (own(Kind::Group), &broker.config().groups);
            let all = groups::all(&own, of_broker);
            Ok(describe_all(all, resource, request))
        }
        kind => Err(no_settings(kind)),
    }
}

fn no_settings(kind: i8) -> Refused {
    Refused::request(format!("there are no settings of resources of type {kind}"))
}

fn describe_all(
    all: impl Iterator<Item = (&'static Setting, Vec<Found>)>,
    resource: &DescribeConfigsResource,
    request: &DescribeConfigsRequest,
) -> Vec<DescribeConfigsResourceResult> {
    let all = all.filter(|(setting, _)| is_asked_for(resource, setting.name));
    let described = all.map(|(setting, found)| setting.describe(&found, &options(request)));
    described.collect()
}

fn describe_topic(
    broker: &Broker,
    resource: &DescribeConfigsResource,
    request: &DescribeConfigsRequest,
) -> Described {
    let stream = broker.shown_stream(&resource.resource_name);
    let stream = stream.map_err(|error| Refused::new(response_error(&error), error.to_string()))?;
    let own = topics::own(&stream.config());
    let of_broker = node::found_for_topics(broker);
    let topics = SETTINGS.iter();
    let topics = topics.filter(|topic| is_asked_for(resource, topic.setting.name));
    let described = topics.map(|topic| {
        let found = found_for_topic(&own, topic, &of_broker);
        topic.setting.describe(&found, &options(request))
    });
    Ok(described.collect())
}

/// The values found for a setting of a topic, most important first.
fn found_for_topic(
    own: &Own,
    topic: &TopicSetting,
    of_broker: impl Fn(&TopicSetting) -> Vec<Found>,
) -> Vec<Found> {
    let own = own.get(topic.setting.name).map(|value| Found {
        source: Source::Topic,
        name: topic.setting.name,
        value: value.clone(),
    });
    own.into_iter().chain(of_broker(topic)).collect()
}

/// The settings of a topic that was just created.
pub fn of_created(broker: &Broker, config: &StreamConfig) -> Vec<CreatableTopicConfigs> {
    let own = topics::own(config);
    let of_broker = node::found_for_topics(broker);
    let settings = SETTINGS.iter().filter_map(|topic| {
        let found = found_for_topic(&own, topic, &of_broker)
            .into_iter()
            .next()?;
        let setting = CreatableTopicConfigs::default()
            .with_name(StrBytes::from_static_str(topic.setting.name))
            .with_value(Some(StrBytes::from_string(found.value)))
            .with_config_source(found.source as i8);
        Some(setting)
    });
    settings.collect()
}

/// Replaces all settings of resources.
fn alter(broker: &Arc<Broker>, request: AlterConfigsRequest) -> Reply {
    let broker = Arc::clone(broker);
    Reply::blocking(move || {
        let mut named = HashSet::new();
        let responses = request.resources.iter().map(|resource| {
            let place = (resource.resource_type, &*resource.resource_name);
            let given = resource.configs.iter().map(|config| {
                let value = config.value.as_deref();
                (&*config.name, value.map_or(Change::Delete, Change::Set))
            });
            let given: Changes<'_> = given.collect();
            let altered = check_named_once(&mut named, place)
                .and_then(|()| replace(&broker, place, given, request.validate_only));
            let response = AlterConfigsResourceResponse::default()
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name.clone());
            match altered {
                Ok(()) => response,
                Err(Refused { error, message }) => response
                    .with_error_code(error.code())
                    .with_error_message(Some(StrBytes::from_string(message))),
            }
        });
        AlterConfigsResponse::default().with_responses(responses.collect())
    })
}

/// Gives a resource these settings, and takes away all others of its own.
fn replace(
    broker: &Broker,
    (kind, name): (i8, &str),
    given: Changes<'_>,
    validate_only: bool,
) -> Result<(), Refused> {
    let own = match kind {
        TOPIC => {
            let stream = stream_of_users(broker.log(), name);
            let refuse = |error| Refused::new(response_error(&error), error.to_string());
            topics::changeable(&stream.map_err(refuse)?.config())
        }
        BROKER => broker.configs().own(Kind::Broker, name),
        CLIENT_METRICS => broker.configs().own(Kind::ClientMetrics, name),
        GROUP => broker.configs().own(Kind::Group, name),
        kind => return Err(no_settings(kind)),
    };
    let is_given = |name: &str| given.iter().any(|(given, _)| *given == name);
    let taken = own.keys().map(String::as_str);
    let taken = taken.filter(|name| !is_given(name));
    let taken: Vec<_> = taken.map(|name| (name, Change::Delete)).collect();
    let changes: Changes<'_> = given.into_iter().chain(taken).collect();
    alter_resource(broker, (kind, name), &changes, validate_only)
}

/// Changes single settings of resources.
fn alter_incrementally(broker: &Arc<Broker>, request: IncrementalAlterConfigsRequest) -> Reply {
    let broker = Arc::clone(broker);
    Reply::blocking(move || {
        let mut named = HashSet::new();
        let responses = request.resources.iter().map(|resource| {
            let place = (resource.resource_type, &*resource.resource_name);
            let altered = check_named_once(&mut named, place)
                .and_then(|()| changes_of(&resource.configs))
                .and_then(|changes| {
                    alter_resource(&broker, place, &changes, request.validate_only)
                });
            let response = incremental::AlterConfigsResourceResponse::default()
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name.clone());
            match altered {
                Ok(()) => response,
                Err(Refused { error, message }) => response
                    .with_error_code(error.code())
                    .with_error_message(Some(StrBytes::from_string(message))),
            }
        });
        incremental::IncrementalAlterConfigsResponse::default().with_responses(responses.collect())
    })
}

fn check_named_once<'a>(
    named: &mut HashSet<(i8, &'a str)>,
    place: (i8, &'a str),
) -> Result<(), Refused> {
    match named.insert(place) {
        true => Ok(()),
        false => Err(Refused::request("the resource is named more than once")),
    }
}

fn alter_resource(
    broker: &Broker,
    (kind, name): (i8, &str),
    changes: &Changes<'_>,
    validate_only: bool,
) -> Result<(), Refused> {
    match kind {
        TOPIC => alter_topic(broker, name, changes, validate_only),
        BROKER => node::alter(broker, name, changes, validate_only),
        LOGGER => loggers::alter(broker, name, changes, validate_only),
        CLIENT_METRICS => {
            client_metrics::alter(broker.configs(), name, changes, validate_only)?;
            broker.telemetry().renew(broker.configs());
            Ok(())
        }
        GROUP => {
            let of_broker = &broker.config().groups;
            let use_changed = |config, shared| {
                broker.groups().set_group_config(name, config);
                broker.shares().set_settings(name.into(), shared);
            };
            let store = broker.configs();
            groups::alter(store, of_broker, name, changes, validate_only, use_changed)
        }
        kind => Err(no_settings(kind)),
    }
}

fn alter_topic(
    broker: &Broker,
    name: &str,
    changes: &Changes<'_>,
    validate_only: bool,
) -> Result<(), Refused> {
    if name.is_empty() {
        return Err(Refused::request("there are no settings of all topics"));
    }
    let of_log =
        |error: millstream_log::LogError| Refused::new(response_error(&error), error.to_string());
    let stream = stream_of_users(broker.log(), name).map_err(of_log)?;
    changed_topic(&topics::own(&stream.config()), changes)?;
    if validate_only {
        return Ok(());
    }
    // The check above used the settings as read then; another change may have come in between, so check again.
    let mut checked = Ok(());
    let apply = |config: &mut StreamConfig| {
        let before = topics::own(config);
        match changed_topic(&before, changes) {
            Ok(after) => topics::put(config, &before, &after),
            Err(refused) => checked = Err(refused),
        }
    };
    broker.log().alter_stream(name, apply).map_err(of_log)?;
    checked
}

/// Lists the resources that have settings, of the requested types.
fn list(broker: &Broker, version: i16, request: ListConfigResourcesRequest) -> Reply {
    let types = match version < LIST_CHOICE_FROM {
        true => vec![CLIENT_METRICS],
        false => request.resource_types,
    };
    let all = [TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP];
    if types.iter().any(|kind| !all.contains(kind)) {
        let code = ResponseError::UnsupportedVersion.code();
        return ListConfigResourcesResponse::default()
            .with_error_code(code)
            .into();
    }
    let is_asked_for = |kind: &i8| types.is_empty() || types.contains(kind);
    let mut resources = Vec::new();
    for kind in all.into_iter().filter(is_asked_for) {
        let names = match kind {
            TOPIC => broker.log().stream_names(),
            BROKER | LOGGER => vec![broker.config().node_id.to_string()],
            CLIENT_METRICS => broker.configs().names(Kind::ClientMetrics),
            _ => broker.configs().names(Kind::Group),
        };
        resources.extend(names.into_iter().map(|name| {
            ConfigResource::default()
                .with_resource_name(StrBytes::from_string(name))
                .with_resource_type(kind)
        }));
    }
    ListConfigResourcesResponse::default()
        .with_config_resources(resources)
        .into()
}
