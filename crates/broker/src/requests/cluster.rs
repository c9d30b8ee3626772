//! The cluster as clients see it: one broker, which is the coordinator of everything.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use millstream_wire::messages::describe_cluster_response::{
    DescribeClusterBroker, DescribeClusterResponse,
};
use millstream_wire::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsTopic,
};
use millstream_wire::messages::find_coordinator_response::{Coordinator, FindCoordinatorResponse};
use millstream_wire::messages::{
    BrokerId, DescribeClusterRequest, DescribeLogDirsRequest, FindCoordinatorRequest,
    UnregisterBrokerRequest,
};
use millstream_wire::{DescribeLogDirsResponse, LogDir, ResponseError, StrBytes};

use super::bounds::{Bound, BoundContext};
use super::handle::{Edit, Handle, Refusal, each, errors, messages, refuse_with_message};
use super::rights::{
    Check, Checked, need_cluster, need_group, need_transaction, permitted_on_cluster, take,
};
use super::topics::topic_name;
use crate::access::{Access, denied};
use crate::broker::Broker;
use crate::client::Client;
use crate::reply::Reply;
use crate::security::{Operation, Resource, ResourceType};
use crate::user_streams::stream_of_users;

/// The type of the coordinators of groups.
const GROUPS: i8 = 0;
/// The types of coordinators: groups, transactions.
const COORDINATED: [i8; 2] = [GROUPS, 1];
/// The type for the states of share-partitions, which only brokers ask for.
const SHARES: i8 = 2;
/// From this version on clients may ask for [`SHARES`].
const SHARES_FROM: i16 = 6;

/// From this version on a request names several keys.
const SEVERAL_KEYS_FROM: i16 = 4;

/// The first version of DescribeLogDirs with an error for the whole request.
const LOG_DIRS_ERROR_FROM: i16 = 3;

/// Describes the cluster: this broker alone.
impl Handle for DescribeClusterRequest {
    const CHECKS: &'static [Check] = &[Check::Operations];

    fn operations(&self, access: &Access) -> Option<Edit<Self>> {
        let access = self
            .include_cluster_authorized_operations
            .then(|| access.clone())?;
        Some(Box::new(move |answer| {
            if answer.error_code == 0 {
                answer.cluster_authorized_operations = permitted_on_cluster(&access);
            }
        }))
    }

    refuse_with_message!();
    errors!(error_code);
    messages!(error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.plain()
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        describe(broker, client, self)
    }
}

/// Returns this broker as the coordinator of groups and transactions.
impl Handle for FindCoordinatorRequest {
    const CHECKS: &'static [Check] = &[Check::Whole, Check::Items];

    fn check(&self, client: &Client, version: i16) -> Checked {
        match self.key_type {
            SHARES => need_cluster(client, Operation::ClusterAction),
            // Newer versions name several keys, each of which is checked by itself.
            _ if version >= SEVERAL_KEYS_FROM => Ok(()),
            GROUPS => need_group(client, Operation::Describe, &self.key),
            _ => need_transaction(client, Operation::Describe, &self.key),
        }
    }

    fn withhold(&mut self, client: &mut Client, version: i16) -> Vec<FindCoordinatorResponse> {
        let kind = match self.key_type {
            // Checked as a whole: all keys or none.
            SHARES => return Vec::new(),
            GROUPS => ResourceType::Group,
            _ => ResourceType::TransactionalId,
        };
        let may = |name: &StrBytes| {
            let resource = Resource { kind, name };
            client.access().may(Operation::Describe, resource)
        };
        let taken = take(&mut self.coordinator_keys, may).map(|coordinator_keys| {
            let mut asked = self.clone();
            asked.coordinator_keys = coordinator_keys;
            asked.refused(version, denied(kind))
        });
        taken.into_iter().collect()
    }

    fn merge(answer: &mut FindCoordinatorResponse, refused: FindCoordinatorResponse) {
        answer.coordinators.extend(refused.coordinators);
    }

    fn refuse(&self, refusal: &Refusal) -> FindCoordinatorResponse {
        let no_node = BrokerId(-1);
        if refusal.version < SEVERAL_KEYS_FROM {
            return FindCoordinatorResponse::default()
                .with_error_code(refusal.code)
                .with_error_message(refusal.message.clone())
                .with_node_id(no_node)
                .with_port(-1);
        }
        FindCoordinatorResponse::default().with_coordinators(each(&self.coordinator_keys, |key| {
            Coordinator::default()
                .with_key(key.clone())
                .with_node_id(no_node)
                .with_port(-1)
                .with_error_code(refusal.code)
                .with_error_message(refusal.message.clone())
        }))
    }

    errors!(error_code, coordinators.error_code);
    messages!(error_message, coordinators.error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(self.coordinator_keys.len())
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        find_coordinator(broker, client, version, self)
    }
}

/// Unregisters no broker, since this one is the only one, and it runs.
impl Handle for UnregisterBrokerRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_cluster(client, Operation::Alter)
    }

    refuse_with_message!();
    errors!(error_code);
    messages!(error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.plain()
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        let id = broker.node_id();
        let (error, why) = match self.broker_id == id {
            true => (
                ResponseError::InvalidRequest,
                format!(
                    "broker {} is the only one, and it runs: stop the server instead",
                    id.0
                ),
            ),
            false => (
                ResponseError::BrokerIdNotRegistered,
                format!(
                    "there is no broker {}: the only one is {}",
                    self.broker_id.0, id.0
                ),
            ),
        };
        self.refused_since(version, error, &why).into()
    }
}

/// Describes the data directory, and the sizes of the partitions in it.
impl Handle for DescribeLogDirsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_cluster(client, Operation::Describe)
    }

    fn refuse(&self, refusal: &Refusal) -> DescribeLogDirsResponse {
        let mut response = DescribeLogDirsResponse::default();
        match refusal.version >= LOG_DIRS_ERROR_FROM {
            true => response.error_code = refusal.code,
            false => response.results.push(LogDir {
                error_code: refusal.code,
                ..LogDir::default()
            }),
        }
        response
    }

    errors!(error_code, results.error_code);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::State
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        describe_log_dirs(broker, self)
    }
}

/// Describes the cluster.
fn describe(broker: &Arc<Broker>, client: &Client, request: DescribeClusterRequest) -> Reply {
    let response = DescribeClusterResponse::default().with_endpoint_type(request.endpoint_type);
    // 1 for brokers, 2 for controllers that are not.
    if request.endpoint_type != 1 {
        return response
            .with_error_code(ResponseError::MismatchedEndpointType.code())
            .with_error_message(Some(StrBytes::from_static_str("this is a broker")))
            .into();
    }
    let (host, port) = client.advertised();
    response
        .with_cluster_id(StrBytes::from_string(broker.cluster_id().to_owned()))
        .with_controller_id(broker.node_id())
        .with_brokers(vec![
            DescribeClusterBroker::default()
                .with_broker_id(broker.node_id())
                .with_host(StrBytes::from_string(host))
                .with_port(port.into()),
        ])
        .into()
}

/// Names the coordinator of groups, transactions and the states of share-partitions: this broker.
fn find_coordinator(
    broker: &Broker,
    client: &Client,
    version: i16,
    request: FindCoordinatorRequest,
) -> Reply {
    let (host, port) = client.advertised();
    let host = StrBytes::from_string(host);
    let of_shares = request.key_type == SHARES && version >= SHARES_FROM;
    if !COORDINATED.contains(&request.key_type) && !of_shares {
        let why =
            "groups, transactions and share-partitions have coordinators, and nothing else here";
        return request
            .refused_since(version, ResponseError::InvalidRequest, why)
            .into();
    }
    let response = FindCoordinatorResponse::default();
    if version < SEVERAL_KEYS_FROM {
        return response
            .with_node_id(broker.node_id())
            .with_host(host)
            .with_port(port.into())
            .into();
    }
    let coordinators = request.coordinator_keys.into_iter().map(|key| {
        if of_shares && !is_share_partition(&key) {
            return Coordinator::default()
                .with_key(key)
                .with_node_id(BrokerId(-1))
                .with_port(-1)
                .with_error_code(ResponseError::InvalidRequest.code())
                .with_error_message(Some(StrBytes::from_static_str(
                    "the key is not a group, the id of a topic and a partition, with colons between them",
                )));
        }
        Coordinator::default()
            .with_key(key)
            .with_node_id(broker.node_id())
            .with_host(host.clone())
            .with_port(port.into())
    });
    response.with_coordinators(coordinators.collect()).into()
}

/// Returns whether a key names a group, a topic by its id, and a partition.
fn is_share_partition(key: &str) -> bool {
    let mut parts = key.rsplitn(3, ':');
    let (partition, topic, group) = (parts.next(), parts.next(), parts.next());
    let is_id = |topic: &str| {
        let is_of_base64 = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        topic.len() == 22 && topic.chars().all(is_of_base64)
    };
    partition.is_some_and(|partition| partition.parse::<u32>().is_ok())
        && topic.is_some_and(is_id)
        && group.is_some_and(|group| !group.is_empty())
}

/// Describes the size of the partitions, and the disk.
fn describe_log_dirs(broker: &Arc<Broker>, request: DescribeLogDirsRequest) -> Reply {
    let broker = Arc::clone(broker);
    Reply::blocking(move || {
        let log = broker.log();
        let mut wanted: BTreeMap<String, Option<HashSet<i32>>> = BTreeMap::new();
        match request.topics {
            Some(topics) => {
                for topic in topics {
                    let partitions = wanted.entry(topic.topic.to_string()).or_default();
                    let partitions = partitions.get_or_insert_default();
                    partitions.extend(topic.partitions);
                }
            }
            None => wanted.extend(log.stream_names().into_iter().map(|name| (name, None))),
        }
        let topics = wanted.into_iter().filter_map(|(name, partitions)| {
            let info = stream_of_users(log, &name).ok()?.info();
            let lanes = info.partitions.iter().filter(|lane| {
                let partition = lane.partition as i32;
                partitions
                    .as_ref()
                    .is_none_or(|wanted| wanted.contains(&partition))
            });
            let described = lanes.map(|lane| {
                DescribeLogDirsPartition::default()
                    .with_partition_index(lane.partition as i32)
                    .with_partition_size(lane.bytes as i64)
            });
            let topic = DescribeLogDirsTopic::default().with_name(topic_name(&name));
            Some(topic.with_partitions(described.collect()))
        });
        let (total_bytes, usable_bytes) = disk_bytes(log.dir());
        let dir = LogDir {
            log_dir: StrBytes::from_string(log.dir().display().to_string()),
            topics: topics.collect(),
            total_bytes,
            usable_bytes,
            ..LogDir::default()
        };
        DescribeLogDirsResponse {
            results: vec![dir],
            ..DescribeLogDirsResponse::default()
        }
    })
}

/// Returns the size of the disk of a folder and the bytes that this process can still write there; -1, Kafka's word
/// for an unknown size, if the operating system does not report them.
fn disk_bytes(folder: &Path) -> (i64, i64) {
    let Ok(disk) = rustix::fs::statvfs(folder) else {
        return (-1, -1);
    };
    let bytes = |blocks: u64| i64::try_from(blocks.saturating_mul(disk.f_frsize));
    let bytes = |blocks| bytes(blocks).unwrap_or(i64::MAX);
    (bytes(disk.f_blocks), bytes(disk.f_bavail))
}
