//! Settings: from a file, `MILLSTREAM_…` in the environment, and flags, in rising precedence.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millstream_base::{ByteSize, nearest};
use millstream_broker::security::{Exposed, TlsFiles, TokenRules};
use millstream_broker::{KeySource, ListenerConfig, Protocol, TokenConfig};
use millstream_client::Mechanism;
use millstream_log::LogConfig;

use crate::events::{LogFormat, LogLevel};
use crate::profiles::{PROFILE_SETTINGS, Profiles};
use crate::values::{self, Advertised, HostNames, Listeners, Principals};

/// The port that Kafka clients use by default.
pub const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9092);

/// The default data directory.
const DATA_DEFAULT: &str = "millstream-data";

const VARIABLE_PREFIX: &str = "MILLSTREAM_";

/// The short name of `MILLSTREAM_LOG_LEVEL`.
const LEVEL_VARIABLE: &str = "MILLSTREAM_LOG";

/// The name of a profile.
const PROFILE_VARIABLE: &str = "MILLSTREAM_PROFILE";

/// Variables that are not settings: the path of the settings' file, the name of a profile, and inputs of tests.
const OTHER_VARIABLES: [&str; 4] = [
    "MILLSTREAM_CONFIG",
    PROFILE_VARIABLE,
    "MILLSTREAM_BIN",
    "MILLSTREAM_TEST_DATA",
];

/// The settings of a login.
const LOGIN_SETTINGS: [&str; 4] = ["user", "password_file", "token_file", "mechanism"];

/// All settings. The flags, `data = …` in the file and `MILLSTREAM_DATA` in the environment have the same names.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Settings")]
pub struct Settings {
    /// The data directory [default for start: millstream-data; for quickstart a temporary one]. Other commands
    /// open the directory themselves if the flag is given; no server may run on it then
    #[arg(long, global = true, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Serve HTTP at this address: page, API and metrics [default: 127.0.0.1:8080 for the ads of quickstart, none for
    /// start and other flows]
    #[arg(long, global = true, value_name = "ADDRESS", value_parser = values::address)]
    pub http: Option<SocketAddr>,
    /// Host names that HTTP requests may carry, beside addresses and localhost, separated by `;`
    #[arg(long, global = true, value_name = "NAMES", value_parser = values::host_names)]
    pub http_hosts: Option<HostNames>,
    /// Serve Kafka clients at this address, as HOST:PORT; or at several addresses separated by `;`, each with the
    /// prefix PLAINTEXT://, SSL://, SASL_PLAINTEXT:// or SASL_SSL:// [default: 127.0.0.1:9092]
    #[arg(long, global = true, value_name = "ADDRESSES", value_parser = values::listeners)]
    pub listen: Option<Listeners>,
    /// Tell clients to connect to this HOST:PORT, as behind a proxy or a port mapping: one for each address of
    /// --listen, separated by `;` [default: the host name in --listen, or the address that the client connected to]
    #[arg(long, global = true, value_name = "ADDRESSES", value_parser = values::advertised)]
    pub advertise: Option<Advertised>,
    /// The id under which clients see this node, 0 or more [default: 1]
    #[arg(long, global = true, value_name = "N", value_parser = values::node_id)]
    pub node_id: Option<i32>,
    /// Create a missing topic when a client asks for it [default: true]
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub auto_create_topics: Option<bool>,
    /// The shortest session timeout that a member of a classic group may ask for [default: 6s]
    #[arg(long, global = true, value_name = "TIME", value_parser = values::session_timeout)]
    pub group_min_session_timeout: Option<Duration>,
    /// How long the first members of a group wait for others to join [default: 3s]
    #[arg(long, global = true, value_name = "TIME", value_parser = values::rebalance_delay)]
    pub group_initial_rebalance_delay: Option<Duration>,
    /// Partitions of topics that clients create without a partition count, 1 to 10000 [default: 1]
    #[arg(long, global = true, value_name = "N", value_parser = values::partitions)]
    pub partitions: Option<u32>,
    /// Require Kafka clients to log in: by SASL (PLAIN, SCRAM or OAUTHBEARER), or with a certificate
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub authentication: Option<bool>,
    /// Users with all rights, whatever the access rules say: names separated by `;`
    #[arg(long, global = true, value_name = "USERS", value_parser = values::principals)]
    pub super_users: Option<Principals>,
    /// Let clients log in by OAUTHBEARER, with tokens (JWT) signed by one of the public keys (JWKS) in this file or
    /// at this https:// URL; the server reads a file again every minute, a URL every 5 minutes, and both when a token
    /// names an unknown key
    #[arg(long, global = true, value_name = "PATH or URL", value_parser = values::key_source)]
    pub token_keys: Option<KeySource>,
    /// The authorities (PEM file) that must have signed the certificate of the keys' URL [default: the system's]
    #[arg(long, global = true, value_name = "PATH")]
    pub token_authorities: Option<PathBuf>,
    /// The required issuer of the tokens: their claim `iss`
    #[arg(long, global = true, value_name = "NAME", value_parser = values::text)]
    pub token_issuer: Option<String>,
    /// The required audience of the tokens: their claim `aud`
    #[arg(long, global = true, value_name = "NAME", value_parser = values::text)]
    pub token_audience: Option<String>,
    /// The claim of the tokens that names the user [default: sub]
    #[arg(long, global = true, value_name = "NAME", value_parser = values::text)]
    pub token_user_claim: Option<String>,
    /// Encrypt Kafka connections by TLS, with the certificate (and the intermediate ones) in this PEM file
    #[arg(long, global = true, value_name = "PATH")]
    pub tls_certificate: Option<PathBuf>,
    /// The key of the certificate, in PEM
    #[arg(long, global = true, value_name = "PATH")]
    pub tls_key: Option<PathBuf>,
    /// Let clients log in with certificates signed by the authorities in this PEM file; commands connect by TLS, and
    /// trust servers whose certificates these authorities have signed
    #[arg(long, global = true, value_name = "PATH")]
    pub tls_authorities: Option<PathBuf>,
    /// The server that commands connect to, as HOST:PORT [default: 127.0.0.1:9092]
    #[arg(long, global = true, value_name = "HOST:PORT", value_parser = values::server)]
    pub server: Option<String>,
    /// Log in at the server as this user
    #[arg(long, global = true, value_name = "NAME")]
    pub user: Option<String>,
    /// The file whose first line is the user's password
    #[arg(long, global = true, value_name = "PATH")]
    pub password_file: Option<PathBuf>,
    /// Log in at the server with the token in this file, by OAUTHBEARER; it is read for each connection
    #[arg(long, global = true, value_name = "PATH", conflicts_with_all = ["user", "password_file", "mechanism"])]
    pub token_file: Option<PathBuf>,
    /// The SASL mechanism for the password [default: SCRAM-SHA-512]
    #[arg(long, global = true, value_name = "NAME", value_parser = values::mechanism)]
    pub mechanism: Option<Mechanism>,
    /// Worker threads of flows, 1 to 1024 [default: one for each core]
    #[arg(long, global = true, value_name = "N", value_parser = values::workers)]
    pub workers: Option<NonZeroUsize>,
    /// Memory for segments [default: a sixteenth of the machine's, at most 1 GiB]
    #[arg(long, global = true, value_name = "SIZE", value_parser = values::pool)]
    pub pool: Option<ByteSize>,
    /// Maximum size of the chunks in the journal that are not in group files yet [default: 512 MiB]
    #[arg(long, global = true, value_name = "SIZE", value_parser = values::size)]
    pub journal: Option<ByteSize>,
    /// Capacity of one file of the journal [default: 64 MiB]
    #[arg(long, global = true, value_name = "SIZE", value_parser = values::size)]
    pub journal_file: Option<ByteSize>,
    /// Maximum number of partitions of all streams and objects together; each takes about 1.2 KB of memory once it is
    /// used [default: 100000]
    #[arg(long, global = true, value_name = "N", value_parser = values::partitions_max)]
    pub partitions_max: Option<u64>,
    /// Memory in which the node decompresses records: for filters of subscriptions, searches by time, and checks, 64 MiB
    /// or more [default: 256 MiB]
    #[arg(long, global = true, value_name = "SIZE", value_parser = values::size)]
    pub decompression: Option<ByteSize>,
    /// Decompress the chunks that producers send, and refuse those with a record that contradicts the chunk's header
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub check_compressed: Option<bool>,
    /// Bytes that compaction reads and writes in a second at most [default: 64 MiB]
    #[arg(long, global = true, value_name = "SIZE", value_parser = values::size)]
    pub compaction_rate: Option<ByteSize>,
    /// Release the buffer of a partition after this time without appends [default: 10s]
    #[arg(long, global = true, value_name = "TIME", value_parser = values::time)]
    pub idle_after: Option<Duration>,
    /// The least severe level of log lines: off, error, warn, info, debug or trace [default: warn; audit lines come
    /// at every level but off]
    #[arg(long, global = true, value_name = "LEVEL", value_parser = values::log_level)]
    pub log_level: Option<LogLevel>,
    /// The form of log lines on stderr: text or json [default: text]
    #[arg(long, global = true, value_name = "FORMAT", value_parser = values::log_format)]
    pub log_format: Option<LogFormat>,
    /// Use the server and the login of this profile (`millstream profile add`) [default: that of `profile use`]
    #[arg(long, global = true, value_name = "NAME", value_parser = values::text, conflicts_with_all = ["server", "data"])]
    pub profile: Option<String>,
    /// A TOML file with settings
    #[arg(long, global = true, value_name = "PATH")]
    pub config: Option<PathBuf>,
    /// Whether commands work on the data directory rather than ask a server.
    #[arg(skip)]
    is_local: Option<bool>,
}

/// The names that the file and the environment may use.
const NAMES: [&str; 36] = [
    "data",
    "http",
    "http_hosts",
    "listen",
    "advertise",
    "node_id",
    "auto_create_topics",
    "group_min_session_timeout",
    "group_initial_rebalance_delay",
    "partitions",
    "authentication",
    "super_users",
    "token_keys",
    "token_authorities",
    "token_issuer",
    "token_audience",
    "token_user_claim",
    "tls_certificate",
    "tls_key",
    "tls_authorities",
    "server",
    "user",
    "password_file",
    "token_file",
    "mechanism",
    "workers",
    "pool",
    "journal",
    "journal_file",
    "partitions_max",
    "decompression",
    "check_compressed",
    "compaction_rate",
    "idle_after",
    "log_level",
    "log_format",
];

/// An error in a setting.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read the settings in {}: {error}", path.display())]
    Read {
        path: PathBuf,
        error: std::io::Error,
    },
    #[error("{} is not valid TOML: {error}", path.display())]
    Toml {
        path: PathBuf,
        error: Box<toml::de::Error>,
    },
    #[error(transparent)]
    Exposed(#[from] Exposed),
    #[error(
        "other machines can reach {address}, and HTTP without logins would be open to all of them: choose an address of \
         this machine alone with --http, for instance 127.0.0.1:{}; `millstream start` serves HTTP with logins",
        address.port()
    )]
    HttpExposed { address: SocketAddr },
    #[error("cannot listen on {host}: {error}")]
    NoAddress { host: String, error: std::io::Error },
    #[error(
        "{given} addresses are advertised for {listeners} listeners: give one for each, with `;` between; an empty one is the \
         listener's own"
    )]
    OtherCount { given: usize, listeners: usize },
    #[error("setting {given} needs {missing} beside it")]
    Incomplete {
        given: &'static str,
        missing: &'static str,
    },
    #[error("unknown profile {name}; {hint}")]
    UnknownProfile { name: String, hint: String },
    #[error("the path {} is not UTF-8, which the file of profiles requires", path.display())]
    ProfilePath { path: PathBuf },
    #[error("unknown setting {name} in {place}; {hint}")]
    Unknown {
        name: String,
        place: String,
        hint: String,
    },
    #[error("setting {name} in {place} is {text:?}: {reason}")]
    Value {
        name: String,
        place: String,
        text: String,
        reason: String,
    },
}

impl Settings {
    /// Completes the flags with settings of the environment, then of the file. A profile, if the command uses the file
    /// `profiles`, gives the server and the login unless the place that names the profile, or a place of higher
    /// precedence, names a server or a data directory: a login never goes to another server than that of its profile.
    pub fn resolve(
        mut self,
        variables: impl IntoIterator<Item = (String, String)>,
        profiles: Option<&Path>,
    ) -> Result<Settings, SettingsError> {
        const ENVIRONMENT: &str = "the environment";
        self.choose_door();
        if let (Some(path), Some(name)) = (profiles, self.profile.clone()) {
            self.fill_from_profile(path, &name)?;
        }
        let mut profile = None;
        for (variable, text) in variables {
            let Some(name) = variable.strip_prefix(VARIABLE_PREFIX) else {
                continue;
            };
            if variable == "MILLSTREAM_CONFIG" {
                self.config.get_or_insert(PathBuf::from(&text));
            }
            if variable == PROFILE_VARIABLE {
                profile = Some(text.clone());
            }
            if OTHER_VARIABLES.contains(&variable.as_str()) {
                continue;
            }
            let known = match variable == LEVEL_VARIABLE {
                true => "log_level".to_owned(),
                false => name.to_ascii_lowercase(),
            };
            if !NAMES.contains(&known.as_str()) {
                let full = |name: &str| format!("{VARIABLE_PREFIX}{}", name.to_ascii_uppercase());
                return Err(SettingsError::Unknown {
                    hint: hint(&known, full),
                    name: variable,
                    place: ENVIRONMENT.to_owned(),
                });
            }
            self.fill(&known, &text, ENVIRONMENT)?;
        }
        self.choose_door();
        if let (Some(path), Some(name), None) = (profiles, profile, self.is_local) {
            self.fill_from_profile(path, &name)?;
        }
        if let Some(path) = self.config.clone() {
            self.fill_from_file(&path)?;
            self.choose_door();
        }
        if let (Some(path), None) = (profiles, self.is_local)
            && let Some(name) = Profiles::read(path)?.current()
        {
            self.fill_from_profile(path, name)?;
        }
        Ok(self)
    }

    /// Takes the settings of a profile. A login from a higher place counts as a whole.
    fn fill_from_profile(&mut self, path: &Path, name: &str) -> Result<(), SettingsError> {
        let place = format!("profile {name} in {}", path.display());
        let has_login = self.user.is_some() || self.token_file.is_some();
        for (setting, text) in Profiles::read(path)?.get(name)? {
            if !PROFILE_SETTINGS.contains(&setting.as_str()) {
                return Err(SettingsError::Unknown {
                    name: setting.clone(),
                    place,
                    hint: format!("there are {}", PROFILE_SETTINGS.join(", ")),
                });
            }
            if !(has_login && LOGIN_SETTINGS.contains(&setting.as_str())) {
                self.fill(setting, text, &place)?;
            }
        }
        self.choose_door();
        Ok(())
    }

    /// Returns the settings that a profile may hold, as text. Paths become absolute, since the next command may run in
    /// another folder.
    pub fn for_profile(&self) -> Result<BTreeMap<String, String>, SettingsError> {
        let absolute = |path: &Option<PathBuf>| {
            let Some(path) = path else {
                return Ok(None);
            };
            let full = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            let text = full.into_os_string().into_string();
            text.map(Some)
                .map_err(|path| SettingsError::ProfilePath { path: path.into() })
        };
        let settings = [
            ("server", self.server.clone()),
            ("user", self.user.clone()),
            ("password_file", absolute(&self.password_file)?),
            ("token_file", absolute(&self.token_file)?),
            (
                "mechanism",
                self.mechanism.map(|mechanism| mechanism.to_string()),
            ),
            ("tls_certificate", absolute(&self.tls_certificate)?),
            ("tls_key", absolute(&self.tls_key)?),
            ("tls_authorities", absolute(&self.tls_authorities)?),
        ];
        let settings = settings.into_iter();
        Ok(settings
            .filter_map(|(name, text)| Some((name.to_owned(), text?)))
            .collect())
    }

    /// Chooses the server if the settings name one, and the data directory if they name only that. The place with the
    /// higher precedence wins.
    fn choose_door(&mut self) {
        self.is_local = self.is_local.or(match (&self.server, &self.data) {
            (Some(_), _) => Some(false),
            (None, Some(_)) => Some(true),
            (None, None) => None,
        });
    }

    /// Whether commands work on the data directory rather than ask a server.
    pub fn is_local(&self) -> bool {
        self.is_local.unwrap_or(false)
    }

    /// The settings of the log in the data directory.
    pub fn log_config(&self, data: &Path) -> LogConfig {
        let mut config = match self.pool {
            Some(pool) => LogConfig::with_pool(data, pool),
            None => LogConfig::new(data),
        };
        config.journal = self.journal.unwrap_or(config.journal);
        config.journal_file = self.journal_file.unwrap_or(config.journal_file);
        config.partitions_max = self.partitions_max.unwrap_or(config.partitions_max);
        config.decompression = self.decompression.unwrap_or(config.decompression);
        config.check_compressed = self.check_compressed.unwrap_or(config.check_compressed);
        config.compaction_rate = self.compaction_rate.unwrap_or(config.compaction_rate);
        config.idle_after = self.idle_after.unwrap_or(config.idle_after);
        config
    }

    /// Names that HTTP answers to, beside addresses and `localhost`.
    pub fn http_hosts(&self) -> Vec<String> {
        let names = self.http_hosts.as_ref();
        names.map(|names| names.0.clone()).unwrap_or_default()
    }

    /// The data directory, unless the command has a default of its own.
    pub fn data_or_default(&self) -> PathBuf {
        self.data.clone().unwrap_or_else(|| DATA_DEFAULT.into())
    }

    /// The listeners of the network door.
    ///
    /// # Errors
    /// If a host name has no address, or if the number of advertised addresses is not the number of listeners.
    pub fn listeners(&self) -> Result<Vec<ListenerConfig>, SettingsError> {
        let Some(Listeners(given)) = &self.listen else {
            return self.advertise(vec![ListenerConfig::new(LISTEN_DEFAULT)]);
        };
        let listeners = given.iter().map(|listener| {
            let no_address = |error| SettingsError::NoAddress {
                host: listener.host.clone(),
                error,
            };
            listener.config().map_err(no_address)
        });
        self.advertise(listeners.collect::<Result<_, _>>()?)
    }

    fn advertise(
        &self,
        mut listeners: Vec<ListenerConfig>,
    ) -> Result<Vec<ListenerConfig>, SettingsError> {
        let Some(Advertised(advertised)) = &self.advertise else {
            return Ok(listeners);
        };
        if advertised.len() != listeners.len() {
            return Err(SettingsError::OtherCount {
                given: advertised.len(),
                listeners: listeners.len(),
            });
        }
        for (listener, advertised) in listeners.iter_mut().zip(advertised) {
            if advertised.is_some() {
                listener.advertised.clone_from(advertised);
            }
        }
        Ok(listeners)
    }

    /// Whether clients of any listener have to log in.
    fn has_logins(&self) -> bool {
        self.authentication == Some(true) || self.any_protocol(|it| it.authentication)
    }

    /// Whether any listener has a protocol of its own that meets the condition.
    fn any_protocol(&self, condition: impl Fn(Protocol) -> bool) -> bool {
        let mut listeners = self.listen.iter().flat_map(|listen| &listen.0);
        listeners.any(|listener| listener.protocol.is_some_and(&condition))
    }

    /// The certificate and the key of the TLS listeners, if both are set.
    ///
    /// # Errors
    /// If only one of the two is set, or if a listener has TLS and neither is set.
    pub fn tls(&self) -> Result<Option<TlsFiles>, SettingsError> {
        let incomplete = |given, missing| Err(SettingsError::Incomplete { given, missing });
        match (&self.tls_certificate, &self.tls_key) {
            (Some(certificates), Some(key)) => Ok(Some(TlsFiles {
                certificates: certificates.clone(),
                key: key.clone(),
                authorities: self.tls_authorities.clone(),
            })),
            (Some(_), None) => incomplete("tls_certificate", "tls_key"),
            (None, Some(_)) => incomplete("tls_key", "tls_certificate"),
            (None, None) if self.tls_authorities.is_some() => {
                incomplete("tls_authorities", "tls_certificate")
            }
            (None, None) if self.any_protocol(|it| it.tls) => {
                incomplete("listen with SSL or SASL_SSL", "tls_certificate")
            }
            (None, None) => Ok(None),
        }
    }

    /// The tokens with which clients may log in; `None` if they may not.
    ///
    /// # Errors
    /// If settings that depend on each other are not all set.
    pub fn tokens(&self) -> Result<Option<TokenConfig>, SettingsError> {
        let incomplete = |given, missing| Err(SettingsError::Incomplete { given, missing });
        let Some(keys) = &self.token_keys else {
            let others = [
                ("token_authorities", self.token_authorities.is_some()),
                ("token_issuer", self.token_issuer.is_some()),
                ("token_audience", self.token_audience.is_some()),
                ("token_user_claim", self.token_user_claim.is_some()),
            ];
            return match others.iter().find(|(_, is_given)| *is_given) {
                Some((given, _)) => incomplete(given, "token_keys"),
                None => Ok(None),
            };
        };
        if !self.has_logins() {
            return incomplete("token_keys", "authentication");
        }
        let Some(issuer) = self.token_issuer.clone() else {
            return incomplete("token_keys", "token_issuer");
        };
        let Some(audience) = self.token_audience.clone() else {
            return incomplete("token_keys", "token_audience");
        };
        let is_fetched = matches!(keys, KeySource::Url(url) if url.is_encrypted());
        if self.token_authorities.is_some() && !is_fetched {
            return incomplete("token_authorities", "token_keys with an https:// URL");
        }
        let user_claim = self.token_user_claim.clone();
        Ok(Some(TokenConfig {
            keys: keys.clone(),
            authorities: self.token_authorities.clone(),
            rules: TokenRules {
                issuer,
                audience,
                user_claim: user_claim.unwrap_or_else(|| "sub".to_owned()),
            },
        }))
    }

    fn fill_from_file(&mut self, path: &Path) -> Result<(), SettingsError> {
        let text = std::fs::read_to_string(path).map_err(|error| SettingsError::Read {
            path: path.to_owned(),
            error,
        })?;
        let table: toml::Table = text.parse().map_err(|error| SettingsError::Toml {
            path: path.to_owned(),
            error: Box::new(error),
        })?;
        let place = path.display().to_string();
        for (name, value) in table {
            if !NAMES.contains(&name.as_str()) {
                return Err(SettingsError::Unknown {
                    hint: hint(&name, str::to_owned),
                    name,
                    place,
                });
            }
            match value {
                toml::Value::String(text) => self.fill(&name, &text, &place)?,
                value => self.fill(&name, &value.to_string(), &place)?,
            }
        }
        Ok(())
    }

    /// Checks the value of a known setting, and takes it unless a value is set already.
    fn fill(&mut self, name: &str, text: &str, place: &str) -> Result<(), SettingsError> {
        let result = match name {
            "data" => fill(&mut self.data, text, values::path),
            "http" => fill(&mut self.http, text, values::address),
            "http_hosts" => fill(&mut self.http_hosts, text, values::host_names),
            "listen" => fill(&mut self.listen, text, values::listeners),
            "advertise" => fill(&mut self.advertise, text, values::advertised),
            "node_id" => fill(&mut self.node_id, text, values::node_id),
            "auto_create_topics" => fill(&mut self.auto_create_topics, text, values::boolean),
            "group_min_session_timeout" => fill(
                &mut self.group_min_session_timeout,
                text,
                values::session_timeout,
            ),
            "group_initial_rebalance_delay" => fill(
                &mut self.group_initial_rebalance_delay,
                text,
                values::rebalance_delay,
            ),
            "partitions" => fill(&mut self.partitions, text, values::partitions),
            "authentication" => fill(&mut self.authentication, text, values::boolean),
            "super_users" => fill(&mut self.super_users, text, values::principals),
            "tls_certificate" => fill(&mut self.tls_certificate, text, values::path),
            "tls_key" => fill(&mut self.tls_key, text, values::path),
            "tls_authorities" => fill(&mut self.tls_authorities, text, values::path),
            "server" => fill(&mut self.server, text, values::server),
            "user" => fill(&mut self.user, text, values::text),
            "password_file" => fill(&mut self.password_file, text, values::path),
            "mechanism" => fill(&mut self.mechanism, text, values::mechanism),
            "workers" => fill(&mut self.workers, text, values::workers),
            "pool" => fill(&mut self.pool, text, values::pool),
            "journal" => fill(&mut self.journal, text, values::size),
            "journal_file" => fill(&mut self.journal_file, text, values::size),
            "partitions_max" => fill(&mut self.partitions_max, text, values::partitions_max),
            "decompression" => fill(&mut self.decompression, text, values::size),
            "check_compressed" => fill(&mut self.check_compressed, text, values::boolean),
            "compaction_rate" => fill(&mut self.compaction_rate, text, values::size),
            "token_keys" => fill(&mut self.token_keys, text, values::key_source),
            "token_authorities" => fill(&mut self.token_authorities, text, values::path),
            "token_issuer" => fill(&mut self.token_issuer, text, values::text),
            "token_audience" => fill(&mut self.token_audience, text, values::text),
            "token_user_claim" => fill(&mut self.token_user_claim, text, values::text),
            "token_file" => fill(&mut self.token_file, text, values::path),
            "idle_after" => fill(&mut self.idle_after, text, values::time),
            "log_level" => fill(&mut self.log_level, text, values::log_level),
            "log_format" => fill(&mut self.log_format, text, values::log_format),
            _ => unreachable!("callers look {name} up in NAMES"),
        };
        result.map_err(|reason| SettingsError::Value {
            name: name.to_owned(),
            place: place.to_owned(),
            text: text.to_owned(),
            reason,
        })
    }
}

/// Returns the known name nearest to an unknown one; `full` completes a name to its written form.
fn hint(name: &str, full: impl Fn(&str) -> String) -> String {
    match nearest(name, NAMES) {
        Some(nearest) => format!("did you mean {}?", full(nearest)),
        None => format!("there are {}", NAMES.map(full).join(", ")),
    }
}

/// Takes a valid value unless a value is set already.
fn fill<T>(
    slot: &mut Option<T>,
    text: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<(), String> {
    let value = read(text)?;
    slot.get_or_insert(value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(name, text): &(&str, &str)| (name.to_string(), text.to_string());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn the_packages_settings_file_names_every_setting_of_a_server() {
        use clap::CommandFactory;
        let sample = include_str!("../../../packaging/millstream.toml");
        let is_setting = |line: &&str| line.strip_prefix('#').unwrap_or(line).contains(" = ");
        let lines = sample.lines().filter(is_setting);
        let all: Vec<_> = lines.map(|it| it.strip_prefix('#').unwrap_or(it)).collect();
        for text in [sample.to_owned(), all.join("\n")] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            let mut settings = Settings::default();
            settings.fill_from_file(file.path()).unwrap();
        }
        let command = crate::help::with_used_settings(crate::args::LowArgs::command());
        let start = command.find_subcommand("start").unwrap();
        let mut expected: Vec<_> = start
            .get_arguments()
            .filter(|arg| NAMES.contains(&arg.get_id().as_str()) && !arg.is_hide_set())
            .map(|arg| arg.get_id().to_string())
            .chain(["data", "log_level", "log_format"].map(str::to_owned))
            .collect();
        expected.sort();
        expected.dedup();
        let mut given: Vec<_> = all
            .iter()
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect();
        given.sort();
        assert_eq!(given, expected);
    }

    #[test]
    fn every_name_is_a_setting_and_a_flag() {
        use clap::CommandFactory;
        let values = [
            "x",
            "127.0.0.1:0",
            "a.example;b.example",
            "127.0.0.1:0;SSL://localhost:0",
            ";broker.example:9093",
            "7",
            "false",
            "100ms",
            "0s",
            "4",
            "true",
            "admin;User:CN=a,O=b",
            "x",
            "x",
            "x",
            "x",
            "x",
            "x",
            "x",
            "x",
            "localhost:9092",
            "alice",
            "x",
            "x",
            "PLAIN",
            "3",
            "64MiB",
            "1GiB",
            "8MiB",
            "5000",
            "64MiB",
            "true",
            "32MiB",
            "3s",
            "debug",
            "json",
        ];
        assert_eq!(NAMES.len(), values.len());
        let command = crate::args::LowArgs::command();
        for (name, text) in NAMES.into_iter().zip(values) {
            let flag = name.replace('_', "-");
            assert!(
                command
                    .get_arguments()
                    .any(|arg| arg.get_long() == Some(&flag))
            );
            let mut settings = Settings::default();
            settings.fill(name, text, "a test").unwrap();
            assert_ne!(
                format!("{settings:?}"),
                format!("{:?}", Settings::default())
            );
        }
    }

    #[test]
    fn flags_go_before_the_environment_and_that_before_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("millstream.toml");
        std::fs::write(&path, "pool = \"1MiB\"\njournal = 1024\nworkers = 3\n").unwrap();
        let flags = Settings {
            pool: Some(ByteSize(3)),
            config: Some(path),
            ..Settings::default()
        };
        let settings = flags
            .resolve(
                variables(&[
                    ("MILLSTREAM_POOL", "2"),
                    ("MILLSTREAM_JOURNAL", "2"),
                    ("MILLSTREAM_BIN", "x"),
                    ("HOME", "x"),
                ]),
                None,
            )
            .unwrap();
        assert_eq!(settings.pool, Some(ByteSize(3)));
        assert_eq!(settings.journal, Some(ByteSize(2)));
        assert_eq!(settings.workers, NonZeroUsize::new(3));
    }

    #[test]
    fn what_is_named_in_a_higher_place_is_worked_on() {
        let resolve = |flags: Settings, environment: &[(&str, &str)]| {
            flags
                .resolve(variables(environment), None)
                .unwrap()
                .is_local()
        };
        let data = Settings {
            data: Some("x".into()),
            ..Settings::default()
        };
        let server = Settings {
            server: Some("localhost:1".to_owned()),
            ..Settings::default()
        };
        assert!(!resolve(Settings::default(), &[]));
        assert!(resolve(Settings::default(), &[("MILLSTREAM_DATA", "x")]));
        assert!(resolve(data, &[("MILLSTREAM_SERVER", "localhost:1")]));
        assert!(!resolve(server, &[("MILLSTREAM_DATA", "x")]));
    }

    /// A login must not reach a server that another place names.
    #[test]
    fn profiles_apply_unless_the_same_or_a_higher_place_names_a_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("profiles.toml");
        let file = "current = \"a\"\n[profiles.a]\nserver = \"a:1\"\nuser = \"alice\"\npassword_file = \"p\"\n\
                    [profiles.b]\nserver = \"b:1\"\n";
        std::fs::write(&path, file).unwrap();
        let resolve = |flags: Settings, environment: &[(&str, &str)]| {
            let settings = flags.resolve(variables(environment), Some(&path)).unwrap();
            (settings.server, settings.user, settings.password_file)
        };
        let none = Settings::default;
        let a = (
            Some("a:1".to_owned()),
            Some("alice".to_owned()),
            Some("p".into()),
        );
        let only = |server: &str| (Some(server.to_owned()), None, None);
        assert_eq!(resolve(none(), &[]), a);
        assert_eq!(resolve(none(), &[("MILLSTREAM_PROFILE", "b")]), only("b:1"));
        assert_eq!(
            resolve(none(), &[("MILLSTREAM_SERVER", "c:1")]),
            only("c:1")
        );
        let both = [("MILLSTREAM_PROFILE", "a"), ("MILLSTREAM_SERVER", "c:1")];
        assert_eq!(resolve(none(), &both), only("c:1"));
        let flags = |profile: &str| Settings {
            profile: Some(profile.to_owned()),
            ..none()
        };
        assert_eq!(
            resolve(flags("b"), &[("MILLSTREAM_PROFILE", "a")]),
            only("b:1")
        );
        assert_eq!(resolve(flags("a"), &[("MILLSTREAM_SERVER", "c:1")]), a);
        // The password file belongs to the profile's user.
        let bob = Settings {
            user: Some("bob".to_owned()),
            ..none()
        };
        let expected = (Some("a:1".to_owned()), Some("bob".to_owned()), None);
        assert_eq!(resolve(bob, &[]), expected);
        let data = Settings {
            data: Some("x".into()),
            ..none()
        };
        assert_eq!(resolve(data, &[]), (None, None, None));
        let unknown = flags("aa")
            .resolve(variables(&[]), Some(&path))
            .unwrap_err();
        assert_eq!(unknown.to_string(), "unknown profile aa; did you mean a?");
    }

    #[track_caller]
    fn check_error(file: &str, environment: &[(&str, &str)], expected: &[&str]) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("millstream.toml");
        std::fs::write(&path, file).unwrap();
        let flags = Settings {
            config: Some(path),
            ..Settings::default()
        };
        let error = flags
            .resolve(variables(environment), None)
            .unwrap_err()
            .to_string();
        for part in expected {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        check_error(
            "pol = 1",
            &[],
            &["pol ", "millstream.toml", "did you mean pool"],
        );
        check_error(
            "pool = \"big\"",
            &[],
            &["pool", "millstream.toml", "\"big\""],
        );
        check_error("colour = 1", &[], &["colour", "there are data, http, "]);
        check_error("pool = ", &[], &["millstream.toml", "TOML"]);
        check_error(
            "",
            &[("MILLSTREAM_JURNAL", "1")],
            &["MILLSTREAM_JURNAL", "did you mean MILLSTREAM_JOURNAL?"],
        );
        check_error(
            "",
            &[("MILLSTREAM_WORKERS", "0")],
            &["workers", "environment", "from 1 to 1024"],
        );
        check_error("workers = 100000", &[], &["workers", "from 1 to 1024"]);
        check_error("", &[("MILLSTREAM_DATA", "")], &["data", "empty"]);
    }
}
