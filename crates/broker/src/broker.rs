//! The broker: the state that all connections share.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use millstream_base::{Clock, Random};
use millstream_log::{Log, LogError, Stream};
use millstream_wire::Uuid;
use millstream_wire::messages::BrokerId;

use crate::answer_memory::AnswerMemory;
use crate::config::BrokerConfig;
use crate::configs::{ConfigStore, LogLevels};
use crate::counters::Counters;
use crate::fetch::{OldData, Sessions};
use crate::groups::service::{GroupService, LEDGER, OFFSETS};
use crate::key_reads::{KeyReads, Threads};
use crate::key_transactions::KeyTransactions;
use crate::memory::Memory;
use crate::objectives::Objectives;
use crate::pins::Pins;
use crate::security::SecurityConfig;
use crate::security::service::{SecurityError, SecurityService};
use crate::shares::service::ShareService;
use crate::telemetry::Subscriptions;
use crate::transactions::service::TransactionService;
use crate::user_streams::{not_internal, stream_of_users};
use crate::{configs, groups, native};

/// The threads that look up keys.
const KEY_READS_MAX: usize = 32;

/// The threads that look up older versions of keys at the same time.
const KEY_OLDER_READS_MAX: usize = 4;

/// The threads that read partitions for their first look-ups.
const KEY_REBUILDS_MAX: usize = 4;

/// The threads that change keys under conditions. Changes wait for memory on them, so look-ups have other ones.
const KEY_CHANGES_MAX: usize = 32;

/// The state that all connections share.
pub struct Broker {
    config: BrokerConfig,
    log: Log,
    random: Arc<dyn Random>,
    memory: Memory,
    answers: Arc<AnswerMemory>,
    pub(crate) sessions: Sessions,
    pub(crate) old_data: OldData,
    pub(crate) native: native::Shared,
    key_reads: Arc<KeyReads>,
    key_changes: Threads,
    key_transactions: Arc<KeyTransactions>,
    groups: Arc<GroupService>,
    shares: Arc<ShareService>,
    transactions: Arc<TransactionService>,
    security: Arc<SecurityService>,
    pins: Arc<Pins>,
    cluster_id: String,
    configs: ConfigStore,
    telemetry: Subscriptions,
    log_levels: OnceLock<Arc<dyn LogLevels>>,
    pub(crate) counters: Counters,
    pub(crate) objectives: Objectives,
}

impl Broker {
    /// Returns a broker of this log.
    ///
    /// # Errors
    /// When the log cannot store the broker's own streams.
    pub(crate) fn new(
        config: BrokerConfig,
        objectives: Objectives,
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
        let groups = GroupService::open(
            &log,
            of_groups,
            Arc::clone(&clock),
            Arc::clone(&security),
            |config, settings| {
                let set = configs::set_of_created(config, settings);
                set.map_err(|refused| refused.message)
            },
        )?;
        let groups = Arc::new(groups);
        let key_reads = Arc::new(KeyReads::new(
            KEY_READS_MAX,
            KEY_OLDER_READS_MAX,
            KEY_REBUILDS_MAX,
        ));
        let shares = ShareService::open(
            &log,
            Arc::clone(&groups),
            configs::all_share_settings(&configs),
            Arc::clone(&clock),
        )?;
        let shares = Arc::new(shares);
        let transactions =
            TransactionService::open(&log, Arc::clone(&groups), Arc::clone(&shares), clock)?;
        let transactions = Arc::new(transactions);
        let broker = Arc::new(Broker {
            memory: Memory::new(config.requests_bytes_max),
            answers: Arc::new(AnswerMemory::new(config.answers_bytes_max)),
            sessions: Sessions::default(),
            old_data: OldData::default(),
            native: native::Shared::default(),
            key_transactions: Arc::new(KeyTransactions::new(
                Arc::clone(&transactions),
                Arc::clone(&key_reads),
            )),
            key_reads,
            key_changes: Threads::new(KEY_CHANGES_MAX),
            // Taken from a stream that is created once: random enough, and it stays the same over
            // restarts.
            cluster_id: log.internal_stream(LEDGER)?.uuid().simple().to_string(),
            shares,
            transactions,
            pins: Arc::new(Pins::new(log.pool())),
            counters: Counters::default(),
            objectives,
            log_levels: OnceLock::new(),
            telemetry: Subscriptions::new(&configs),
            configs,
            security,
            groups,
            config,
            log,
            random,
        });
        configs::use_defaults(&broker.log, &broker.configs, &broker.config);
        Ok(broker)
    }

    /// Lets administrators read and change the levels of the program's log. Called once.
    pub fn set_log_levels(&self, levels: Arc<dyn LogLevels>) {
        // A second call would come from a second owner of the program's log, and there is only one.
        let _ = self.log_levels.set(levels);
    }

    pub(crate) fn log_levels(&self) -> Option<&dyn LogLevels> {
        self.log_levels.get().map(|levels| &**levels)
    }

    pub(crate) fn key_reads(&self) -> &Arc<KeyReads> {
        &self.key_reads
    }

    pub(crate) fn key_changes(&self) -> &Threads {
        &self.key_changes
    }

    /// Returns the changes of keys that are made together.
    pub fn key_transactions(&self) -> &Arc<KeyTransactions> {
        &self.key_transactions
    }

    pub(crate) fn configs(&self) -> &ConfigStore {
        &self.configs
    }

    /// Returns the subscriptions to metrics of clients.
    pub(crate) fn telemetry(&self) -> &Subscriptions {
        &self.telemetry
    }

    /// Returns the broker's settings.
    pub fn config(&self) -> &BrokerConfig {
        &self.config
    }

    /// Returns the broker's id, as clients see it.
    pub(crate) fn node_id(&self) -> BrokerId {
        BrokerId(self.config.node_id)
    }

    /// Returns the broker's log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Returns the stream that clients see under this name: a user's stream, or the empty one that
    /// stands for Kafka's topic of committed offsets, which exists once there are groups. Clients
    /// can read that one, but cannot change it.
    pub(crate) fn shown_stream(&self, name: &str) -> Result<Stream, LogError> {
        match name == OFFSETS && self.shows_offsets() {
            true => self.log.stream(name),
            false => stream_of_users(&self.log, name),
        }
    }

    /// Returns the stream that clients see under this id. See [`shown_stream`](Self::shown_stream).
    pub(crate) fn shown_stream_by_uuid(&self, uuid: Uuid) -> Result<Stream, LogError> {
        let stream = self.log.stream_by_uuid(uuid)?;
        match stream.name() == OFFSETS && self.shows_offsets() {
            true => Ok(stream),
            false => not_internal(stream),
        }
    }

    /// Returns whether clients see the topic [`OFFSETS`].
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

    /// Logs a warning about a connection, unless there were many of these lines a moment ago.
    pub(crate) fn warn_of(&self, peer: SocketAddr, what: fmt::Arguments<'_>) {
        self.security
            .peer_lines()
            .warn(peer, what, self.log.clock().monotonic());
    }

    /// Returns the account of the pool memory that consumers hold through shared memory.
    pub(crate) fn pins(&self) -> &Arc<Pins> {
        &self.pins
    }

    pub(crate) fn random(&self) -> &dyn Random {
        &*self.random
    }

    pub(crate) fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// Returns the memory for requests in progress.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the memory for answers.
    pub(crate) fn answers(&self) -> &Arc<AnswerMemory> {
        &self.answers
    }
}
