//! The table of settings: one entry for each.
//!
//! An entry gives the setting its field in [`Settings`], its flag, its variable of the environment, its name in the
//! settings' file, its help, its row on the pages and its line in the sample of the settings' file.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use clap::{ArgMatches, Args, FromArgMatches, ValueEnum};
use millstream_base::ByteSize;
use millstream_broker::{BrokerConfig, KeySource, Objective};
use millstream_client::{Hash, Mechanism};
use millstream_log::{
    COMPACTION_RATE_MIN, DECOMPRESSION_BYTES_MIN, JOURNAL_FILE_BYTES_MIN, POOL_BYTES_MIN,
};
use millstream_node::{
    Listeners, OBJECTIVE_MAX, OBJECTIVE_MIN, Principals, listeners, objective, principals,
};
use millstream_serve::WATCHES_DEFAULT;

use super::entry::{
    Bounds, Setting, Use, numbers, paths, sizes, switches, texts, times, times_within, value,
};
use crate::events::{LogFormat, LogLevel};
use crate::values::{self, Advertised, HostNames, WORKERS_MAX};

/// The port that Kafka clients use by default.
pub const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9092);

/// The default address of commands that always serve HTTP.
pub const HTTP_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// The bound of watches over HTTP: each has a connection, which takes some 50 KiB.
const HTTP_WATCHES_MAX: usize = 100_000;

/// The default data directory.
pub const DATA_DEFAULT: &str = "millstream-data";

/// The default claim of a token that names the user.
pub const USER_CLAIM_DEFAULT: &str = "sub";

/// The default mechanism for a password.
pub const MECHANISM_DEFAULT: Mechanism = Mechanism::Scram(Hash::Sha512);

/// The bounds of times of groups.
const MILLISECOND: Duration = Duration::from_millis(1);
const REBALANCE_DELAY_MAX: Duration = Duration::from_secs(10 * 60);

/// The places that settings come from.
#[derive(Debug, Clone, Default, Args)]
pub struct Sources {
    /// Use the server and the login of this profile (`millstream profile add`) [default: that of `profile use`]
    #[arg(long, global = true, value_name = "NAME", value_parser = values::text, conflicts_with_all = ["server", "data"])]
    pub profile: Option<String>,
    /// A TOML file with settings
    #[arg(long, global = true, value_name = "PATH")]
    pub config: Option<PathBuf>,
}

/// Declares the struct of settings and their table.
macro_rules! settings {
    ($($name:ident: $type:ty = $entry:expr;)*) => {
        /// The settings that flags, the environment, the file or a profile give.
        #[derive(Debug, Clone, Default)]
        pub struct Settings {
            $(pub $name: Option<$type>,)*
            pub sources: Sources,
            /// Whether commands work on the data directory rather than ask a server.
            pub(super) is_local: Option<bool>,
        }

        /// All settings, in the order of the help and the pages.
        pub static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(|| vec![
            $($entry.named(stringify!($name), |it| &it.$name, |it| &mut it.$name),)*
        ]);
    };
}

settings! {
    data: PathBuf = paths("DIR")
        .used_by(&[Use::Log])
        .doc("The data directory. Commands that can also ask a server open it themselves if it is set and `server` is \
              not; no server may run on it then")
        .otherwise(format!("{DATA_DEFAULT}; a temporary one for quickstart"))
        .example("/var/lib/millstream")
        .kafka(&["log.dirs"]);

    http: SocketAddr = value("ADDRESS", values::address)
        .used_by(&[Use::Http])
        .doc("Serve HTTP at this address: page, API and metrics")
        .more("The ads of `quickstart` take a free port if the default port is busy")
        .otherwise(format!("{HTTP_DEFAULT} for the ads of quickstart, none for start and other flows"))
        .example("127.0.0.1:8080");

    http_hosts: HostNames = value("NAMES", values::host_names)
        .used_by(&[Use::Http])
        .doc("Host names that HTTP requests may carry, beside addresses and localhost, separated by `;`")
        .example("broker.example.com");

    http_watches: usize = numbers(1, Some(HTTP_WATCHES_MAX))
        .used_by(&[Use::Http])
        .doc("The most watches of keys and of state over HTTP at once. There are 1,024 connections beside theirs")
        .default(WATCHES_DEFAULT);

    listen: Listeners = value("ADDRESSES", listeners)
        .used_by(&[Use::Broker, Use::Quickstart])
        .doc("Serve Kafka clients at this address, as HOST:PORT; or at several addresses separated by `;`, each with \
              the prefix PLAINTEXT://, SSL://, SASL_PLAINTEXT:// or SASL_SSL://")
        .more("Port 0 takes a free port. See [Listeners](#listeners)")
        .default(LISTEN_DEFAULT)
        .kafka(&["listeners", "listener.security.protocol.map"]);

    advertise: Advertised = value("ADDRESSES", values::advertised)
        .used_by(&[Use::Broker])
        .doc("Tell clients to connect to this HOST:PORT, as behind a proxy or a port mapping: one for each address of \
              `listen`, separated by `;`")
        .otherwise("the host name in `listen`, or the address that the client connected to")
        .example("broker.example.com:9092")
        .kafka(&["advertised.listeners"]);

    node_id: i32 = numbers(0, Some(i32::MAX))
        .used_by(&[Use::Broker])
        .documented_as(&["node.id"])
        .in_broker(|config| &mut config.node_id);

    auto_create_topics: bool = switches()
        .used_by(&[Use::Broker])
        .documented_as(&["auto.create.topics.enable"])
        .in_broker(|config| &mut config.auto_create_topics);

    group_min_session_timeout: Duration = times_within(MILLISECOND, broker().groups.session_timeout_max)
        .used_by(&[Use::Broker])
        .documented_as(&["group.min.session.timeout.ms"])
        .in_broker(|config| &mut config.groups.session_timeout_min);

    group_initial_rebalance_delay: Duration = times_within(Duration::ZERO, REBALANCE_DELAY_MAX)
        .used_by(&[Use::Broker])
        .documented_as(&["group.initial.rebalance.delay.ms"])
        .in_broker(|config| &mut config.groups.initial_rebalance_delay);

    partitions: u32 = numbers(1, Some(broker().partitions_max))
        .used_by(&[Use::Broker, Use::Quickstart])
        .documented_as(&["num.partitions"])
        .in_broker(|config| &mut config.partitions_default);

    produce_objective: Objective = value("TIME", objective)
        .within(objective_bounds())
        .used_by(&[Use::Broker])
        .doc("Answer 99 % of produce requests within this time from their arrival: the server holds clients whose requests it \
              would answer later, as it holds those over a quota")
        .more("See [Objectives](#objectives)")
        .example("20ms");

    fetch_objective: Objective = value("TIME", objective)
        .within(objective_bounds())
        .used_by(&[Use::Broker])
        .doc("Answer 99 % of fetch requests within this time from the moment at which there are records for them; \
              otherwise as `produce_objective`")
        .example("20ms");

    authentication: bool = switches()
        .used_by(&[Use::Broker])
        .doc("Require Kafka clients to log in: by SASL (PLAIN, SCRAM or OAUTHBEARER), or with a certificate")
        .more("The [protocol](#listeners) of a listener overrides this")
        .example("true")
        .in_broker(|config| &mut config.security.authentication);

    super_users: Principals = value("USERS", principals)
        .used_by(&[Use::Broker])
        .documented_as(&["super.users"])
        .example("admin")
        .in_broker(|config| &mut config.security.super_users);

    token_keys: KeySource = value("PATH or URL", values::key_source)
        .used_by(&[Use::Broker])
        .doc("Let clients log in by OAUTHBEARER, with tokens (JWT) signed by one of the public keys (JWKS) in this \
              file or at this https:// URL; the server reads a file again every minute, a URL every 5 minutes, and \
              both when a token names an unknown key")
        .example("https://login.example.com/keys");

    token_authorities: PathBuf = paths("PATH")
        .used_by(&[Use::Broker])
        .doc("The authorities (PEM file) that must have signed the certificate of the keys' URL")
        .otherwise("the system's")
        .example("/etc/millstream/login.pem");

    token_issuer: String = texts()
        .used_by(&[Use::Broker])
        .doc("The required issuer of the tokens: their claim `iss`")
        .example("https://login.example.com");

    token_audience: String = texts()
        .used_by(&[Use::Broker])
        .doc("The required audience of the tokens: their claim `aud`")
        .example("millstream");

    token_user_claim: String = texts()
        .used_by(&[Use::Broker])
        .doc("The claim of the tokens that names the user")
        .default(USER_CLAIM_DEFAULT);

    tls_certificate: PathBuf = paths("PATH")
        .used_by(&[Use::Broker, Use::Client])
        .doc("Encrypt Kafka connections by TLS, with the certificate (and the intermediate ones) in this PEM file")
        .example("/etc/millstream/server.pem")
        .kafka(&["ssl.keystore.location"]);

    tls_key: PathBuf = paths("PATH")
        .used_by(&[Use::Broker, Use::Client])
        .doc("The key of the certificate, in PEM")
        .example("/etc/millstream/server.key")
        .kafka(&["ssl.keystore.location"]);

    tls_authorities: PathBuf = paths("PATH")
        .used_by(&[Use::Broker, Use::Client])
        .doc("Let clients log in with certificates signed by the authorities in this PEM file; commands connect by \
              TLS, and trust servers whose certificates these authorities have signed")
        .more("A command presents `tls_certificate`, unless a `user` logs in")
        .example("/etc/millstream/authorities.pem")
        .kafka(&["ssl.truststore.location"]);

    server: String = value("HOST:PORT", values::server)
        .used_by(&[Use::Client])
        .doc("The server that commands connect to, as HOST:PORT")
        .more("If one place (flags, environment or file) sets both `server` and `data`, `server` wins")
        .default(LISTEN_DEFAULT);

    user: String = texts()
        .used_by(&[Use::Client])
        .doc("Log in at the server as this user")
        .example("alice");

    password_file: PathBuf = paths("PATH")
        .used_by(&[Use::Client])
        .doc("The file whose first line is the user's password")
        .example("alice.password");

    token_file: PathBuf = paths("PATH")
        .used_by(&[Use::Client])
        .doc("Log in at the server with the token in the first line of this file, by OAUTHBEARER; it is read for each \
              connection")
        .example("alice.token")
        .excludes(&["user", "password_file", "mechanism"]);

    mechanism: Mechanism = value("NAME", values::mechanism)
        .used_by(&[Use::Client])
        .doc("The SASL mechanism for the password")
        .more("`PLAIN` sends the password itself")
        .default(MECHANISM_DEFAULT);

    workers: NonZeroUsize = numbers(NonZeroUsize::MIN, Some(WORKERS_MAX))
        .used_by(&[Use::Flows])
        .doc("Worker threads of flows")
        .otherwise("one for each core")
        .example("4");

    pool: ByteSize = value("SIZE", values::pool)
        .within(Bounds {
            least: ByteSize(POOL_BYTES_MIN).to_string().replace(' ', ""),
            most: Some("the size of the machine's memory".to_owned()),
        })
        .used_by(&[Use::Log])
        .doc("Maximum memory for segments")
        .more("The broker uses it for records that are not in their files yet, for those that consumers near the head \
               read next, for keyed and `memory` streams, and for a quarter of it, at most 64 MiB, of other new \
               records. Memory that stays free for some seconds goes back to the system. The broker takes a further \
               sixteenth of this size for reads from disk, and another one for the records of hot keys. It reads \
               records from disk that the pool no longer holds, so a larger pool helps if many consumers lag behind")
        .otherwise("a sixteenth of the machine's, at most 1 GiB")
        .example("1GiB");

    journal: ByteSize = sizes(0)
        .used_by(&[Use::Log])
        .doc("Maximum size of the chunks in the journal that are not in group files yet")
        .more("At least two journal files. A larger journal gives larger writes on nodes with many partitions, and a \
               longer restart after a crash")
        .in_log(|config| &mut config.journal);

    journal_file: ByteSize = sizes(JOURNAL_FILE_BYTES_MIN)
        .used_by(&[Use::Log])
        .doc("Capacity of one file of the journal")
        .in_log(|config| &mut config.journal_file);

    partitions_max: u64 = numbers(1, None)
        .used_by(&[Use::Log])
        .doc("Maximum number of partitions of all streams and objects together; each takes about 1.2 KB of memory \
              once it is used")
        .more("Beyond it the broker refuses to create or grow streams (`POLICY_VIOLATION`). It serves all partitions \
               that the data directory already has, even if they are more. A partition takes some 100 bytes of memory \
               before its first record or reader. The default bounds this memory to 120 MB")
        .in_log(|config| &mut config.partitions_max);

    decompression: ByteSize = sizes(DECOMPRESSION_BYTES_MIN)
        .used_by(&[Use::Log])
        .doc("Memory in which the node decompresses records: for filters of subscriptions, searches by time, and \
              checks")
        .more("Half of it is reserved for chunks that decompress to at most 1 MiB. A subscription waits for this \
               memory without a limit, other requests for up to 30 s. Filters fail on a chunk that decompresses to \
               more than 32 MiB (less, if `decompression` is below 167 MiB)")
        .in_log(|config| &mut config.decompression);

    check_compressed: bool = switches()
        .used_by(&[Use::Broker, Use::Quickstart])
        .doc("Decompress the chunks that producers send, and refuse those with a record that contradicts the chunk's \
              header")
        .more("The error is `INVALID_RECORD`, or `MESSAGE_TOO_LARGE` for a chunk that decompresses to more than \
               32 MiB (less, if `decompression` is below 167 MiB). Without this check, a contradictory chunk stops \
               the consumers that read it. The check costs 0.5 ms (LZ4) or 1 ms (zstd) of a core for each MiB before \
               compression, nearly all of it for the decompression (records of 100 bytes, benchmark \
               `append-compressed`)")
        .in_log(|config| &mut config.check_compressed);

    compaction_rate: ByteSize = sizes(COMPACTION_RATE_MIN)
        .used_by(&[Use::Log])
        .documented_as(&["log.cleaner.io.max.bytes.per.second"])
        .more("See [compaction](#compaction)")
        .in_log(|config| &mut config.compaction_rate);

    idle_after: Duration = times()
        .used_by(&[Use::Log])
        .doc("Release the buffer of a partition after this time without appends")
        .in_log(|config| &mut config.idle_after);

    log_level: LogLevel = value("LEVEL", values::log_level)
        .used_by(&[Use::Always])
        .doc("The least severe level of log lines: off, error, warn, info, debug or trace; audit lines come at every \
              level but off")
        .more("`MILLSTREAM_LOG` is short for `MILLSTREAM_LOG_LEVEL`")
        .default(name_of(LogLevel::default()))
        .short_variable("MILLSTREAM_LOG");

    log_format: LogFormat = value("FORMAT", values::log_format)
        .used_by(&[Use::Always])
        .doc("The form of log lines on stderr: text or json")
        .more("With `json`, everything on stderr is JSON, one object a line")
        .default(name_of(LogFormat::default()));
}

/// Returns the bounds of the times of objectives.
fn objective_bounds() -> Bounds {
    let text = |time| humantime::format_duration(time).to_string();
    Bounds {
        least: text(OBJECTIVE_MIN),
        most: Some(text(OBJECTIVE_MAX)),
    }
}

/// Returns the broker's config without any setting.
fn broker() -> BrokerConfig {
    BrokerConfig::new(LISTEN_DEFAULT)
}

/// Returns the name of a choice.
fn name_of(choice: impl ValueEnum) -> String {
    let value = choice.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The flags of the settings.
impl Args for Settings {
    fn augment_args(command: clap::Command) -> clap::Command {
        let command = command.next_help_heading("Settings");
        Sources::augment_args(command.args(SETTINGS.iter().map(Setting::flag)))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Settings::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Settings, clap::Error> {
        let mut settings = Settings::default();
        settings.update_from_arg_matches(matches)?;
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in SETTINGS.iter() {
            setting.take(self, matches);
        }
        self.sources = Sources::from_arg_matches(matches)?;
        Ok(())
    }
}
