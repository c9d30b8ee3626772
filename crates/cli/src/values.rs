//! Values of flags and settings: their syntax and their bounds.
//!
//! The same functions parse the command line, the environment and the settings' file.

mod owner;
mod position;

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use humantime::DurationError;
use millstream_base::machine::memory_bytes;
use millstream_base::{ByteSize, Offset};
use millstream_broker::KeySource;
use millstream_client::{Mechanism, Start};
use millstream_log::{POOL_BYTES_MIN, STREAM_PARTITIONS_MAX};
use millstream_node::host_and_port;

pub use self::owner::{ALL, Assignment, EntityPart, Owner};
pub use self::position::Position;
use crate::events::{LogFormat, LogLevel};

/// A worker is a thread with a stack; more of them than cores gain nothing.
pub const WORKERS_MAX: NonZeroUsize = NonZeroUsize::new(1024).expect("not zero");

/// The largest chunk, unless a stream sets its own bound.
const RECORD_BYTES_MAX: u64 = 8 << 20;

/// How often the program checks and shows a running application.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The log's own bounds, checked here, too, so that a value beyond them is refused before anything is opened.
const VIRTUAL_LOGS_MAX: u32 = 1024;
const NAME_CHARS_MAX: usize = 249;

/// Reads numbers from `least` on, up to `most` where there is a bound.
pub fn number<T>(least: T, most: Option<T>) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display + Clone,
{
    move |text| {
        let is_in_range =
            |number: &T| *number >= least && most.as_ref().is_none_or(|most| number <= most);
        let number = text.parse().ok().filter(is_in_range);
        number.ok_or_else(|| match &most {
            Some(most) => format!("must be a number from {least} to {most}"),
            None => format!("must be a number from {least}"),
        })
    }
}

pub fn workers(text: &str) -> Result<NonZeroUsize, String> {
    number(NonZeroUsize::MIN, Some(WORKERS_MAX))(text)
}

/// Parses a number of partitions.
pub fn partitions(text: &str) -> Result<u32, String> {
    number(1, Some(STREAM_PARTITIONS_MAX as u32))(text)
}

pub fn virtual_logs(text: &str) -> Result<u32, String> {
    number(1, Some(VIRTUAL_LOGS_MAX))(text)
}

pub fn size(text: &str) -> Result<ByteSize, String> {
    text.parse()
        .map_err(|_| "must be a size, for instance 64KiB, 256MiB or 4GiB".to_owned())
}

/// Reads sizes from `least` on.
pub fn size_from(least: ByteSize) -> impl Fn(&str) -> Result<ByteSize, String> + Clone {
    move |text| match size(text)? {
        size if size >= least => Ok(size),
        _ => Err(format!("must be a size of at least {least}")),
    }
}

/// Parses a number of connections per second.
pub fn connections(text: &str) -> Result<u32, String> {
    number(1, Some(i32::MAX as u32))(text)
}

/// Parses the size of the records of a benchmark.
pub fn record_size(text: &str) -> Result<ByteSize, String> {
    match size(text)? {
        size if (1..=RECORD_BYTES_MAX).contains(&size.0) => Ok(size),
        _ => Err("must be a size from 1 to 8MiB".to_owned()),
    }
}

/// Parses the size of the pool, which must fit into memory.
pub fn pool(text: &str) -> Result<ByteSize, String> {
    let size = size_from(ByteSize(POOL_BYTES_MIN))(text)?;
    let memory = ByteSize(memory_bytes());
    match size <= memory {
        true => Ok(size),
        false => Err(format!(
            "must fit into this machine's memory, which is {memory}"
        )),
    }
}

pub fn time(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| match error {
        DurationError::NumberOverflow => "must be a time that can be counted in seconds".to_owned(),
        _ => "must be a time with its unit, for instance 20s, 5min or 1h 30min".to_owned(),
    })
}

/// Reads times from `least` to `most`.
pub fn time_within(
    least: Duration,
    most: Duration,
) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| match time(text)? {
        time if (least..=most).contains(&time) => Ok(time),
        _ => Err(format!(
            "must be a time from {} to {}",
            humantime::format_duration(least),
            humantime::format_duration(most)
        )),
    }
}

/// Parses the length of a run or of a window.
pub fn span(text: &str) -> Result<Duration, String> {
    let span = time(text)?;
    match (Duration::from_millis(1)..=Duration::from_secs(24 * 60 * 60)).contains(&span) {
        true => Ok(span),
        false => Err("must be a time from 1ms to 24h".to_owned()),
    }
}

pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "must be an IP address and a port, for instance 127.0.0.1:8080 or [::1]:8080".to_owned()
    })
}

/// An address as programs print it: `http://127.0.0.1:8080/` is one, too.
pub fn http_address(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix("http://").unwrap_or(text);
    address(bare.strip_suffix('/').unwrap_or(bare))
}

/// The advertised hosts and ports, one for each listener; `None` for the listener's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertised(pub Vec<Option<(String, u16)>>);

/// Reads `HOST:PORT` for each listener, with `;` between. An empty one is the listener's own address, and port 0 the
/// listener's own port.
pub fn advertised(text: &str) -> Result<Advertised, String> {
    let addresses = text.split(';').map(|address| match address.trim() {
        "" => Ok(None),
        address => {
            let (host, port) = host_and_port(address)
                .ok_or("must be a host and a port, for instance broker.example.com:9092")?;
            let ip: Option<IpAddr> = host.parse().ok();
            match ip.is_some_and(|ip| ip.is_unspecified()) {
                true => Err(format!("clients cannot connect to {host}")),
                false => Ok(Some((host, port))),
            }
        }
    });
    addresses.collect::<Result<_, String>>().map(Advertised)
}

pub fn log_level(text: &str) -> Result<LogLevel, String> {
    LogLevel::from_str(text, true)
        .map_err(|_| "must be off, error, warn, info, debug or trace".to_owned())
}

pub fn log_format(text: &str) -> Result<LogFormat, String> {
    LogFormat::from_str(text, true).map_err(|_| "must be text or json".to_owned())
}

pub fn boolean(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "must be true or false".to_owned())
}

/// Names of hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostNames(pub Vec<String>);

/// Names separated by `;`, without ports.
pub fn host_names(text: &str) -> Result<HostNames, String> {
    let is_part = |char: char| char.is_ascii_alphanumeric() || "-._".contains(char);
    let names = text
        .split(';')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let names = names.map(|name| match name.chars().all(is_part) {
        true => Ok(name.to_owned()),
        false => Err("must be names of hosts without ports, separated by `;`".to_owned()),
    });
    names.collect::<Result<_, _>>().map(HostNames)
}

/// The address of a server; its host may be a name.
pub fn server(text: &str) -> Result<String, String> {
    match host_and_port(text) {
        Some((_, port)) if port > 0 => Ok(text.to_owned()),
        _ => Err("must be a host and a port, for instance localhost:9092 or [::1]:9092".to_owned()),
    }
}

pub fn mechanism(text: &str) -> Result<Mechanism, String> {
    let mechanism = text
        .parse()
        .map_err(|error: millstream_client::UnknownMechanism| error.to_string())?;
    match mechanism {
        Mechanism::OAuthBearer => Err("a token is shown by --token-file alone".to_owned()),
        mechanism => Ok(mechanism),
    }
}

pub fn text(text: &str) -> Result<String, String> {
    match text {
        "" => Err("must not be empty".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

pub fn key_source(text: &str) -> Result<KeySource, String> {
    text.parse()
}

pub fn path(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("must not be empty".to_owned()),
        _ => Ok(text.into()),
    }
}

/// Parses the name of a new stream or object.
pub fn new_name(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-/:".contains(c);
    if text.is_empty() || text.len() > NAME_CHARS_MAX {
        Err(format!("must have 1 to {NAME_CHARS_MAX} characters"))
    } else if !text.chars().all(allowed) {
        Err("must consist of ASCII letters, digits and . _ - / :".to_owned())
    } else if text == "." || text == ".." {
        Err("must not be . or .., which mean folders".to_owned())
    } else if millstream_log::is_reserved(text) {
        Err("is the name of one of the node's own streams".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

/// Parses the principal of an access rule.
pub fn principal(text: &str) -> Result<String, String> {
    match text.split_once(':') {
        Some(("User", name)) if !name.is_empty() => Ok(text.to_owned()),
        _ => Err("must be User: and a name, for instance User:alice, or User:* for all".to_owned()),
    }
}

/// Parses the client address of an access rule.
pub fn rule_host(text: &str) -> Result<String, String> {
    match text == "*" || text.parse::<IpAddr>().is_ok() {
        true => Ok(text.to_owned()),
        false => Err("must be an IP address, for instance 192.0.2.7, or * for all".to_owned()),
    }
}

/// As [`time`], but more than zero.
pub fn some_time(text: &str) -> Result<Duration, String> {
    match time(text)? {
        Duration::ZERO => Err("must be more than no time".to_owned()),
        time if time.as_millis() == 0 => Err("must be at least 1ms".to_owned()),
        time => Ok(time),
    }
}

/// As [`size`], but more than zero.
pub fn some_bytes(text: &str) -> Result<ByteSize, String> {
    match size(text)? {
        ByteSize(0) => Err("must be more than nothing".to_owned()),
        size => Ok(size),
    }
}

/// A bound, or `none` for no bound.
#[derive(Debug, Clone, Copy)]
pub struct Limit<T>(pub Option<T>);

/// Reads bounds as `read` does, and `none`.
pub fn limit<T>(
    read: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<Limit<T>, String> + Clone {
    move |text| match text {
        "none" => Ok(Limit(None)),
        _ => read(text)
            .map(|value| Limit(Some(value)))
            .map_err(|error| format!("{error}, or none")),
    }
}

/// The rate of generated events.
#[derive(Debug, Clone, Copy)]
pub enum Rate {
    PerSecond(NonZeroU64),
    Max,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "max" => Ok(Rate::Max),
            _ => number(NonZeroU64::MIN, None)(text)
                .map(Rate::PerSecond)
                .map_err(|error| format!("{error}, or max")),
        }
    }
}

/// The share of workers to kill, and the interval between kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kills {
    pub percent: u8,
    pub every: Duration,
}

impl FromStr for Kills {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (share, every) = text.split_once('/').unwrap_or((text, ""));
        let percent = share.strip_suffix('%').unwrap_or_default();
        let kills = || {
            let percent = number(1, Some(100))(percent).ok()?;
            let every = time(every).ok().filter(|every| *every >= LOOK_INTERVAL)?;
            Some(Kills { percent, every })
        };
        kills().ok_or_else(|| {
            "must be a share from 1% to 100% and a time of at least 100ms, for instance 60%/4s"
                .to_owned()
        })
    }
}

/// The offset at which a consumer starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Earliest,
    Latest,
    At(Offset),
}

impl From<Place> for Start {
    fn from(place: Place) -> Start {
        match place {
            Place::Earliest => Start::Earliest,
            Place::Latest => Start::Latest,
            Place::At(offset) => Start::At(offset),
        }
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Earliest => f.write_str("earliest"),
            Place::Latest => f.write_str("latest"),
            Place::At(offset) => write!(f, "offset {offset}"),
        }
    }
}

impl FromStr for Place {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "earliest" => Ok(Place::Earliest),
            "latest" => Ok(Place::Latest),
            _ => text
                .parse()
                .map(|offset| Place::At(Offset(offset)))
                .map_err(|_| "must be earliest, latest or an offset"),
        }
    }
}

/// A range of an object's bytes.
#[derive(Debug, Clone)]
pub struct ByteRange(pub RangeInclusive<u64>);

impl ByteRange {
    /// Limits the range to an object of this size. As in HTTP, a last byte beyond the end means the end.
    pub fn within(&self, bytes: u64) -> Range<u64> {
        let end = self.0.end().saturating_add(1).min(bytes);
        *self.0.start()..end.max(*self.0.start())
    }
}

impl FromStr for ByteRange {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "must be two numbers like 0-99, or 100-";
        let (first, last) = text.split_once('-').ok_or(EXPECTED)?;
        let first = first.parse().map_err(|_| EXPECTED)?;
        let last = match last {
            "" => u64::MAX,
            _ => last.parse().map_err(|_| EXPECTED)?,
        };
        match first <= last {
            true => Ok(ByteRange(first..=last)),
            false => Err(EXPECTED),
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_log::{Log, LogConfig, StreamConfig};

    use super::*;

    #[test]
    fn names_and_numbers_are_refused_as_the_log_refuses_them() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(1 << 20))).unwrap();
        let longest = "x".repeat(NAME_CHARS_MAX);
        let too_long = "x".repeat(NAME_CHARS_MAX + 1);
        for name in [
            "",
            ".",
            "..",
            "...",
            "__x",
            "__groups",
            "__consumer_offsets",
            "_x",
            "a b",
            "ä",
            "a/b",
            "/",
            "A.b_c-d:9",
            &longest,
            &too_long,
        ] {
            let created = log.create_stream(name, StreamConfig::default());
            assert_eq!(new_name(name).is_ok(), created.is_ok(), "{name:?}");
        }
        for (name, count) in [("most", VIRTUAL_LOGS_MAX), ("more", VIRTUAL_LOGS_MAX + 1)] {
            let config = StreamConfig {
                virtual_logs: count,
                ..StreamConfig::default()
            };
            let created = log.create_stream(name, config);
            assert_eq!(virtual_logs(&count.to_string()).is_ok(), created.is_ok());
        }
    }

    #[test]
    fn only_addresses_that_clients_can_connect_to_are_advertised() {
        let told = |host: &str, port| Some((host.to_owned(), port));
        let both = Advertised(vec![None, told("example.com", 9093)]);
        assert_eq!(advertised(";example.com:9093"), Ok(both));
        assert_eq!(advertised("[::1]:0"), Ok(Advertised(vec![told("::1", 0)])));
        for wrong in ["0.0.0.0:9092", "[::]:9092", "example.com", "example.com:x"] {
            assert!(advertised(wrong).is_err(), "{wrong}");
        }
    }

    /// Commands took any text before the port, and failed later.
    #[test]
    fn servers_have_hosts_as_listeners_do_and_ports_to_connect_to() {
        for right in ["localhost:9092", "broker-1.example.com:1", "[::1]:9092"] {
            assert_eq!(server(right), Ok(right.to_owned()));
        }
        for wrong in [
            "",
            "localhost",
            ":9092",
            "localhost:0",
            "a b:1",
            "::1:9092",
            "http://a:1",
        ] {
            assert!(server(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_pool_is_no_larger_than_memory() {
        assert_eq!(pool("64MiB"), Ok(ByteSize(64 << 20)));
        assert!(pool("999TiB").unwrap_err().contains("memory, which is"));
    }
}
