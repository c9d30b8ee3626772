//! The broker: what all connections share, and who works on which request.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use millstream_base::{Clock, Random};
use millstream_log::{Log, LogError, Stream};
use millstream_wire::messages::BrokerId;
use millstream_wire::{Request, RequestHeader, refuse};

use crate::client::{Client, stream_of_users};
use crate::config::{BrokerConfig, SecurityConfig};
use crate::configs::{ConfigStore, LogLevels};
use crate::counters::Counters;
use crate::fetch::Sessions;
use crate::group_service::{GroupService, LEDGER};
use crate::memory::Memory;
use crate::push::Pins;
use crate::reply::Reply;
use crate::security_service::{self, SecurityError, SecurityService};
use crate::share_service::{self, ShareService};
use crate::transaction_service::{self, TransactionService};
use crate::{
    access, cluster, commits, configs, features, fetch, group_service, groups, native, offsets,
    produce, producers, replicas, topics,
};

/// The topic that Kafka keeps committed offsets in, and that tools look for. Here it is always empty: offsets are in the
/// stream of the groups.
pub const OFFSETS: &str = "__consumer_offsets";

/// What all connections share.
pub struct Broker {
    config: BrokerConfig,
    log: Log,
    random: Arc<dyn Random>,
    memory: Memory,
    pub(crate) sessions: Sessions,
    pub(crate) native: native::Shared,
    groups: Arc<GroupService>,
    shares: Arc<ShareService>,
    transactions: Arc<TransactionService>,
    security: Arc<SecurityService>,
    pins: Arc<Pins>,
    cluster_id: String,
    configs: ConfigStore,
    log_levels: OnceLock<Arc<dyn LogLevels>>,
    pub(crate) counters: Counters,
}

impl Broker {
    /// A broker of this log.
    ///
    /// # Errors
    /// When the log cannot keep what the broker keeps in it.
    pub fn new(
        config: BrokerConfig,
        log: Log,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Arc<Broker>, SecurityError> {
        let security = SecurityConfig {
            authentication: config.has_logins(),
            ..config.security.clone()
        };
        let random_of_security = Arc::clone(&random);
        let security =
            SecurityService::open(&log, &security, Arc::clone(&clock), random_of_security)?;
        let security = Arc::new(security);
        log.internal_stream(OFFSETS)?;
        let configs = ConfigStore::open(&log, Arc::clone(&clock))?;
        let of_groups = groups::Config {
            partitions_max: config.partitions_max,
            of_groups: configs::group_configs(&configs),
            ..config.groups.clone()
        };
        let groups =
            GroupService::open(&log, of_groups, Arc::clone(&clock), Arc::clone(&security))?;
        let groups = Arc::new(groups);
        let broker = Arc::new(Broker {
            memory: Memory::new(config.requests_bytes_max),
            sessions: Sessions::default(),
            native: native::Shared::default(),
            // Of a stream that is made once: as random as it has to be, and it lasts.
            cluster_id: log.internal_stream(LEDGER)?.uuid().simple().to_string(),
            shares: Arc::new(ShareService::open(
                &log,
                Arc::clone(&groups),
                configs::all_share_settings(&configs),
                Arc::clone(&clock),
            )?),
            transactions: Arc::new(TransactionService::open(&log, Arc::clone(&groups), clock)?),
            pins: Arc::new(Pins::new(log.pool())),
            counters: Counters::default(),
            log_levels: OnceLock::new(),
            configs,
            security,
            groups,
            config,
            log,
            random,
        });
        configs::use_defaults(&broker);
        Ok(broker)
    }

    /// Lets administrators see and change what the program writes to its log. Called once.
    pub fn set_log_levels(&self, levels: Arc<dyn LogLevels>) {
        // A second call would come from a second owner of the program's log, and there is one.
        let _ = self.log_levels.set(levels);
    }

    pub(crate) fn log_levels(&self) -> Option<&dyn LogLevels> {
        self.log_levels.get().map(|levels| &**levels)
    }

    pub(crate) fn configs(&self) -> &ConfigStore {
        &self.configs
    }

    /// Its settings.
    pub fn config(&self) -> &BrokerConfig {
        &self.config
    }

    /// Its id, as clients see it.
    pub(crate) fn node_id(&self) -> BrokerId {
        BrokerId(self.config.node_id)
    }

    /// Its log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The stream that clients see under this name: a user's, or the empty one that stands for Kafka's topic of committed
    /// offsets, which is there once there are groups. Clients can read that one, and not change it.
    pub(crate) fn shown_stream(&self, name: &str) -> Result<Stream, LogError> {
        match name == OFFSETS && self.shows_offsets() {
            true => self.log.stream(name),
            false => stream_of_users(&self.log, name),
        }
    }

    /// Whether clients see the topic [`OFFSETS`].
    pub(crate) fn shows_offsets(&self) -> bool {
        self.groups.has_had_groups()
    }

    pub(crate) fn transactions(&self) -> &Arc<TransactionService> {
        &self.transactions
    }

    pub(crate) fn security(&self) -> &Arc<SecurityService> {
        &self.security
    }

    pub(crate) fn groups(&self) -> &Arc<GroupService> {
        &self.groups
    }

    pub(crate) fn shares(&self) -> &Arc<ShareService> {
        &self.shares
    }

    /// Warns of a connection, unless there were many such lines a moment ago.
    pub(crate) fn warn_of(&self, peer: SocketAddr, what: fmt::Arguments<'_>) {
        self.security
            .peer_lines()
            .warn(peer, what, self.log.clock().monotonic());
    }

    /// Memory that consumers hold who share it.
    pub(crate) fn pins(&self) -> &Arc<Pins> {
        &self.pins
    }

    pub(crate) fn random(&self) -> &dyn Random {
        &*self.random
    }

    pub(crate) fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// Memory for requests that are being worked on.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Works on a request. What it changes is changed, or under way in its order, when this returns.
    pub(crate) fn handle(
        self: &Arc<Self>,
        client: &mut Client,
        header: &RequestHeader,
        request: Request,
    ) -> Reply {
        let version = header.version;
        client.set_id(header.client_id.as_deref());
        if let Err(error) = client.admit(request.api()) {
            let why = Some("log in first: SaslHandshake, then SaslAuthenticate");
            return refuse(&request, version, error, why).into();
        }
        access::guard(client, version, request, |client, request| {
            commits::of_known_partitions(client, version, request, |client, request| {
                self.carry_out(client, version, request)
            })
        })
    }

    fn carry_out(self: &Arc<Self>, client: &mut Client, version: i16, request: Request) -> Reply {
        match request {
            Request::Produce(request) => produce::produce(self, client, version, request),
            Request::Fetch(request) => fetch::fetch(self, client, version, request),
            Request::ListOffsets(request) => offsets::list(client, version, request),
            Request::OffsetForLeaderEpoch(request) => offsets::for_leader_epoch(client, request),
            Request::DescribeProducers(request) => producers::describe(client, request),
            Request::DeleteRecords(request) => offsets::delete_records(self, client, request),
            Request::Metadata(request) => topics::metadata(self, client, version, request),
            Request::CreateTopics(request) => topics::create(self, request),
            Request::DeleteTopics(request) => topics::delete(self, version, request),
            Request::CreatePartitions(request) => topics::create_partitions(self, request),
            Request::DescribeTopicPartitions(request) => topics::describe(self, client, request),
            Request::DescribeConfigs(request) => configs::describe(self, request),
            Request::AlterConfigs(request) => configs::alter(self, request),
            Request::IncrementalAlterConfigs(request) => {
                configs::alter_incrementally(self, request)
            }
            Request::ListConfigResources(request) => configs::list(self, version, request),
            Request::ElectLeaders(request) => replicas::elect_leaders(self, version, request),
            Request::AlterPartitionReassignments(request) => {
                replicas::alter_reassignments(self, request)
            }
            Request::ListPartitionReassignments(_) => replicas::list_reassignments(),
            Request::AlterReplicaLogDirs(request) => replicas::alter_log_dirs(self, request),
            Request::DescribeQuorum(request) => {
                features::describe_quorum(self, client, version, request)
            }
            Request::UpdateFeatures(request) => features::update(version, request),
            Request::ApiVersions(_) => millstream_wire::api_versions().into(),
            Request::DescribeCluster(request) => cluster::describe(self, client, request),
            Request::DescribeLogDirs(request) => cluster::describe_log_dirs(self, request),
            Request::FindCoordinator(request) => {
                cluster::find_coordinator(self, client, version, request)
            }
            request @ (Request::JoinGroup(_)
            | Request::SyncGroup(_)
            | Request::Heartbeat(_)
            | Request::LeaveGroup(_)
            | Request::DescribeGroups(_)
            | Request::ListGroups(_)
            | Request::DeleteGroups(_)
            | Request::OffsetCommit(_)
            | Request::OffsetFetch(_)
            | Request::OffsetDelete(_)
            | Request::ConsumerGroupHeartbeat(_)
            | Request::ConsumerGroupDescribe(_)
            | Request::ShareGroupHeartbeat(_)
            | Request::ShareGroupDescribe(_)
            | Request::StreamsGroupHeartbeat(_)
            | Request::StreamsGroupDescribe(_)) => {
                group_service::handle(self, client, version, request)
            }
            Request::ShareFetch(request) => share_service::fetch(self, client, request),
            Request::ShareAcknowledge(request) => share_service::acknowledge(self, client, request),
            Request::DescribeShareGroupOffsets(request) => {
                share_service::describe_offsets(self, client, request)
            }
            Request::AlterShareGroupOffsets(request) => {
                share_service::alter_offsets(self, client, request)
            }
            Request::DeleteShareGroupOffsets(request) => {
                share_service::delete_offsets(self, client, request)
            }
            request @ (Request::InitProducerId(_)
            | Request::AddPartitionsToTxn(_)
            | Request::AddOffsetsToTxn(_)
            | Request::EndTxn(_)
            | Request::TxnOffsetCommit(_)
            | Request::WriteTxnMarkers(_)
            | Request::DescribeTransactions(_)
            | Request::ListTransactions(_)) => transaction_service::handle(self, version, request),
            request @ (Request::SaslHandshake(_)
            | Request::SaslAuthenticate(_)
            | Request::DescribeAcls(_)
            | Request::CreateAcls(_)
            | Request::DeleteAcls(_)
            | Request::DescribeUserScramCredentials(_)
            | Request::AlterUserScramCredentials(_)
            | Request::DescribeClientQuotas(_)
            | Request::AlterClientQuotas(_)) => {
                security_service::handle(self, client, version, request)
            }
            request => native::handle(self, client, version, request),
        }
    }
}
