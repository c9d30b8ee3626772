//! Settings: from a file, `MILLSTREAM_…` in the environment, and flags, in rising precedence.

mod entry;
#[cfg(test)]
mod pages;
pub mod profiles;
mod table;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use millstream_base::nearest;
use millstream_broker::security::{Exposed, TlsFiles, TokenRules};
use millstream_broker::{BrokerConfig, KeySource, ListenerConfig, Protocol, TokenConfig};
use millstream_log::LogConfig;
use millstream_node::NoAddress;
use millstream_serve::WATCHES_DEFAULT;

pub use self::entry::Use;
use self::entry::{Config, Setting, VARIABLE_PREFIX};
use self::profiles::{ProfileFile, Profiles};
use self::table::{DATA_DEFAULT, USER_CLAIM_DEFAULT};
pub use self::table::{HTTP_DEFAULT, LISTEN_DEFAULT, MECHANISM_DEFAULT, SETTINGS, Settings};
use crate::values::Advertised;

/// The path of the settings' file.
const CONFIG_VARIABLE: &str = "MILLSTREAM_CONFIG";

/// The name of a profile.
const PROFILE_VARIABLE: &str = "MILLSTREAM_PROFILE";

/// Variables that are inputs of tests, and not settings.
const OTHER_VARIABLES: [&str; 2] = ["MILLSTREAM_BIN", "MILLSTREAM_TEST_DATA"];

/// The settings of a login.
const LOGIN_SETTINGS: [&str; 4] = ["user", "password_file", "token_file", "mechanism"];

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
    #[error(transparent)]
    NoAddress(#[from] NoAddress),
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
    #[error("there is no folder for profiles: set XDG_CONFIG_HOME or HOME")]
    NoProfileFolder,
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
    ///
    /// # Errors
    /// If a value or a name is wrong, or a profile is named and no folder can hold the file: without the profile the
    /// command would go to another server.
    pub fn resolve(
        mut self,
        variables: impl IntoIterator<Item = (String, String)>,
        profiles: Option<&ProfileFile>,
    ) -> Result<Settings, SettingsError> {
        self.choose_door();
        if let (Some(file), Some(name)) = (profiles, self.sources.profile.clone()) {
            self.fill_from_profile(file.path()?, &name)?;
        }
        let profile = self.fill_from_environment(variables)?;
        self.choose_door();
        if let (Some(file), Some(name), None) = (profiles, profile, self.is_local) {
            self.fill_from_profile(file.path()?, &name)?;
        }
        if let Some(path) = self.sources.config.clone() {
            self.fill_from_file(&path)?;
            self.choose_door();
        }
        if let (Some(file), None) = (profiles, self.is_local)
            && let Ok(path) = file.path()
            && let Some(name) = Profiles::read(path)?.current()
        {
            self.fill_from_profile(path, name)?;
        }
        Ok(self)
    }

    /// Takes the settings of the environment, and returns the name of the profile there.
    fn fill_from_environment(
        &mut self,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Option<String>, SettingsError> {
        const PLACE: &str = "the environment";
        let mut profile = None;
        for (variable, text) in variables {
            let Some(name) = variable.strip_prefix(VARIABLE_PREFIX) else {
                continue;
            };
            if let Some(setting) = SETTINGS.iter().find(|it| it.has_variable(&variable)) {
                self.fill(setting, &text, PLACE)?;
            } else if variable == CONFIG_VARIABLE {
                self.sources.config.get_or_insert(PathBuf::from(text));
            } else if variable == PROFILE_VARIABLE {
                profile = Some(text);
            } else if !OTHER_VARIABLES.contains(&variable.as_str()) {
                return Err(SettingsError::Unknown {
                    hint: hint(&name.to_ascii_lowercase(), Setting::variable),
                    name: variable,
                    place: PLACE.to_owned(),
                });
            }
        }
        Ok(profile)
    }

    /// Takes the settings of a profile. A login from a higher place counts as a whole.
    fn fill_from_profile(&mut self, path: &Path, profile: &str) -> Result<(), SettingsError> {
        let place = format!("profile {profile} in {}", path.display());
        let has_login = self.user.is_some() || self.token_file.is_some();
        for (name, text) in Profiles::read(path)?.get(profile)? {
            let of_profiles = || {
                SETTINGS
                    .iter()
                    .filter(|it| it.about.uses.contains(&Use::Client))
            };
            let Some(setting) = of_profiles().find(|it| it.name == *name) else {
                let names: Vec<&str> = of_profiles().map(|it| it.name).collect();
                return Err(SettingsError::Unknown {
                    name: name.clone(),
                    place,
                    hint: format!("there are {}", names.join(", ")),
                });
            };
            if !(has_login && LOGIN_SETTINGS.contains(&setting.name)) {
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
        for setting in SETTINGS.iter() {
            setting.put(self, Config::Log(&mut config));
        }
        config
    }

    /// Puts the settings of the broker into its config.
    pub fn put_in_broker(&self, config: &mut BrokerConfig) {
        for setting in SETTINGS.iter() {
            setting.put(self, Config::Broker(config));
        }
    }

    /// Names that HTTP answers to, beside addresses and `localhost`.
    pub fn http_hosts(&self) -> Vec<String> {
        let names = self.http_hosts.as_ref();
        names.map(|names| names.0.clone()).unwrap_or_default()
    }

    /// The most watches over HTTP.
    pub fn http_watches(&self) -> usize {
        self.http_watches.unwrap_or(WATCHES_DEFAULT)
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
        match &self.listen {
            Some(listen) => self.advertise(listen.configs()?),
            None => self.advertise(vec![ListenerConfig::new(LISTEN_DEFAULT)]),
        }
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
    pub fn has_logins(&self) -> bool {
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
                user_claim: user_claim.unwrap_or_else(|| USER_CLAIM_DEFAULT.to_owned()),
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
            let Some(setting) = SETTINGS.iter().find(|it| it.name == name) else {
                return Err(SettingsError::Unknown {
                    hint: hint(&name, |it| it.name.to_owned()),
                    name,
                    place,
                });
            };
            match value {
                toml::Value::String(text) => self.fill(setting, &text, &place)?,
                value => self.fill(setting, &value.to_string(), &place)?,
            }
        }
        Ok(())
    }

    /// Checks the value of a setting, and takes it unless a value is set already.
    fn fill(&mut self, setting: &Setting, text: &str, place: &str) -> Result<(), SettingsError> {
        let filled = setting.fill(self, text);
        filled.map_err(|reason| SettingsError::Value {
            name: setting.name.to_owned(),
            place: place.to_owned(),
            text: text.to_owned(),
            reason,
        })
    }
}

/// Returns the setting with the name nearest to an unknown one; `full` returns its written form.
fn hint(name: &str, full: impl Fn(&Setting) -> String) -> String {
    let nearest = nearest(name, SETTINGS.iter().map(|it| it.name));
    match SETTINGS.iter().find(|it| Some(it.name) == nearest) {
        Some(nearest) => format!("did you mean {}?", full(nearest)),
        None => {
            let all: Vec<String> = SETTINGS.iter().map(full).collect();
            format!("there are {}", all.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::time::Duration;

    use clap::{CommandFactory, FromArgMatches};
    use millstream_base::ByteSize;

    use super::entry::Bounds;
    use super::table::Sources;
    use super::*;

    fn from_file(path: PathBuf) -> Sources {
        Sources {
            config: Some(path),
            profile: None,
        }
    }

    fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(name, text): &(&str, &str)| (name.to_string(), text.to_string());
        pairs.iter().map(owned).collect()
    }

    /// Settings from each place that an operator may give them in.
    fn from_each_place(setting: &Setting, text: &str) -> [Result<Settings, String>; 3] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("millstream.toml");
        let line = format!("{} = {}\n", setting.name, toml::Value::from(text));
        std::fs::write(&path, line).unwrap();
        let file = Settings {
            sources: from_file(path),
            ..Settings::default()
        };
        let flag = format!("--{}={text}", setting.name.replace('_', "-"));
        let command = crate::args::LowArgs::command();
        let flags = command
            .try_get_matches_from(["millstream", &flag, "flow", "list"])
            .and_then(|matches| Settings::from_arg_matches(&matches))
            .map_err(|error| error.to_string());
        let resolve = |settings: Settings, variables| {
            let resolved = settings.resolve(variables, None);
            let resolved = resolved.map_err(|error| error.to_string())?;
            let sources = Sources::default();
            Ok(Settings {
                sources,
                ..resolved
            })
        };
        [
            resolve(file, vec![]),
            resolve(
                Settings::default(),
                vec![(setting.variable(), text.to_owned())],
            ),
            flags.and_then(|flags| resolve(flags, vec![])),
        ]
    }

    #[test]
    fn every_setting_is_read_from_the_file_the_environment_and_its_flag() {
        let none = format!("{:?}", Settings::default());
        for setting in SETTINGS.iter() {
            let given = from_each_place(setting, setting.sample());
            let [file, environment, flag] = given.map(|it| format!("{:?}", it.unwrap()));
            assert_ne!(file, none, "{}", setting.name);
            assert_eq!(environment, file);
            assert_eq!(flag, file);
        }
    }

    /// Returns the nearest value below a least one, or above a largest one. Zero has none below.
    fn beyond(bound: &str, is_least: bool) -> Option<String> {
        let moved = |value: u64| match is_least {
            true => value.checked_sub(1),
            false => Some(value + 1),
        };
        if let Ok(number) = bound.parse::<u64>() {
            // Zero is the least number, and -1 is below it.
            return Some(moved(number).map_or("-1".to_owned(), |it| it.to_string()));
        }
        if let Ok(time) = humantime::parse_duration(bound) {
            return moved(time.as_nanos() as u64).map(|it| format!("{it}ns"));
        }
        let size: ByteSize = bound.parse().ok()?;
        moved(size.0).map(|it| it.to_string())
    }

    #[test]
    fn every_bound_is_kept_and_refused_by_name() {
        let mut count = 0;
        for setting in SETTINGS.iter() {
            let Some(Bounds { least, most }) = &setting.about.bounds else {
                continue;
            };
            let bounds = [Some((least, true)), most.as_ref().map(|most| (most, false))];
            for (bound, is_least) in bounds.into_iter().flatten() {
                let Some(beyond) = beyond(bound, is_least) else {
                    continue;
                };
                for given in from_each_place(setting, bound) {
                    given.unwrap();
                }
                let flag = setting.name.replace('_', "-");
                for refused in from_each_place(setting, &beyond) {
                    let error = refused.unwrap_err();
                    let is_named = error.contains(setting.name) || error.contains(&flag);
                    assert!(is_named && error.contains(&beyond), "{error}");
                    // Sizes have a blank before their unit in messages.
                    assert!(error.replace(' ', "").contains(bound), "{error}");
                }
                count += 1;
            }
        }
        assert!(count >= 10, "{count}");
    }

    #[test]
    fn values_go_to_their_fields_of_the_configs() {
        let values = [
            ("node_id", "7"),
            ("auto_create_topics", "false"),
            ("group_min_session_timeout", "100ms"),
            ("group_initial_rebalance_delay", "0s"),
            ("partitions", "4"),
            ("authentication", "true"),
            ("super_users", "admin"),
            ("pool", "2MiB"),
            ("journal", "1GiB"),
            ("journal_file", "8MiB"),
            ("partitions_max", "5000"),
            ("decompression", "64MiB"),
            ("check_compressed", "false"),
            ("compaction_rate", "32MiB"),
            ("idle_after", "3s"),
        ];
        let variables = values.map(|(name, text)| {
            (
                format!("{VARIABLE_PREFIX}{}", name.to_uppercase()),
                text.to_owned(),
            )
        });
        let settings = Settings::default().resolve(variables, None).unwrap();
        let mut broker = BrokerConfig::new(LISTEN_DEFAULT);
        settings.put_in_broker(&mut broker);
        assert_eq!(broker.node_id, 7);
        assert!(!broker.auto_create_topics);
        assert_eq!(
            broker.groups.session_timeout_min,
            Duration::from_millis(100)
        );
        assert_eq!(broker.groups.initial_rebalance_delay, Duration::ZERO);
        assert_eq!(broker.partitions_default, 4);
        assert!(broker.security.authentication);
        assert_eq!(Some(broker.security.super_users), settings.super_users);
        let log = settings.log_config(Path::new("x"));
        assert_eq!(log.pool, ByteSize(2 << 20));
        assert_eq!(log.journal, ByteSize(1 << 30));
        assert_eq!(log.journal_file, ByteSize(8 << 20));
        assert_eq!(log.partitions_max, 5000);
        assert_eq!(log.decompression, ByteSize(64 << 20));
        assert!(!log.check_compressed);
        assert_eq!(log.compaction_rate, ByteSize(32 << 20));
        assert_eq!(log.idle_after, Duration::from_secs(3));
    }

    #[test]
    fn flags_go_before_the_environment_and_that_before_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("millstream.toml");
        std::fs::write(&path, "pool = \"1MiB\"\njournal = 1024\nworkers = 3\n").unwrap();
        let flags = Settings {
            pool: Some(ByteSize(3 << 20)),
            sources: from_file(path),
            ..Settings::default()
        };
        let settings = flags
            .resolve(
                variables(&[
                    ("MILLSTREAM_POOL", "2MiB"),
                    ("MILLSTREAM_JOURNAL", "2"),
                    ("MILLSTREAM_BIN", "x"),
                    ("HOME", "x"),
                ]),
                None,
            )
            .unwrap();
        assert_eq!(settings.pool, Some(ByteSize(3 << 20)));
        assert_eq!(settings.journal, Some(ByteSize(2)));
        assert_eq!(settings.workers, NonZeroUsize::new(3));
    }

    #[test]
    fn a_higher_place_decides_between_server_and_data_directory() {
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
        let profiles = ProfileFile::at(Some(path));
        let resolve = |flags: Settings, environment: &[(&str, &str)]| {
            let settings = flags.resolve(variables(environment), Some(&profiles));
            let settings = settings.unwrap();
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
            sources: Sources {
                profile: Some(profile.to_owned()),
                config: None,
            },
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
            .resolve(variables(&[]), Some(&profiles))
            .unwrap_err();
        assert_eq!(unknown.to_string(), "unknown profile aa; did you mean a?");
    }

    /// Without the profile, the command would go to the default server.
    #[test]
    fn a_named_profile_is_refused_where_no_folder_holds_profiles() {
        let nowhere = ProfileFile::at(None);
        let resolve = |flags: Settings, environment: &[(&str, &str)]| {
            let resolved = flags.resolve(variables(environment), Some(&nowhere));
            let resolved = resolved.map(|settings| settings.server);
            resolved.map_err(|error| error.to_string())
        };
        let flag = Settings {
            sources: Sources {
                profile: Some("a".to_owned()),
                config: None,
            },
            ..Settings::default()
        };
        let refused = Err(SettingsError::NoProfileFolder.to_string());
        assert_eq!(resolve(flag, &[]), refused);
        let named = ("MILLSTREAM_PROFILE", "a");
        assert_eq!(resolve(Settings::default(), &[named]), refused);
        // A server beside the name goes before the profile.
        let both = [named, ("MILLSTREAM_SERVER", "c:1")];
        let server = Ok(Some("c:1".to_owned()));
        assert_eq!(resolve(Settings::default(), &both), server);
        assert_eq!(resolve(Settings::default(), &[]), Ok(None));
    }

    #[track_caller]
    fn check_error(file: &str, environment: &[(&str, &str)], expected: &[&str]) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("millstream.toml");
        std::fs::write(&path, file).unwrap();
        let flags = Settings {
            sources: from_file(path),
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
