//! Log lines on stderr: their level, their time and their form.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use clap::ValueEnum;
use millstream_broker::security::AUDIT_TARGET;
use millstream_broker::{LogLevel as TargetLevel, LogLevels, ROOT};
use parking_lot::Mutex;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

/// The `tracing` target of the messages that commands print at every log level.
const MESSAGE_TARGET: &str = "message";

/// Whether stderr gets only JSON. Set once, before the first line.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// The least important events that become log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Off,
    Error,
    #[default]
    Warn,
    Info,
    Debug,
    Trace,
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Time, level and message
    #[default]
    Text,
    /// One JSON object per line, with timestamp, level, message and target; everything on stderr then has this form
    Json,
}

impl LogLevel {
    fn filter(self) -> LevelFilter {
        match self {
            LogLevel::Off => LevelFilter::OFF,
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        }
    }

    /// Only `off` turns off audit lines, since operators have to keep them.
    fn audit_filter(self) -> LevelFilter {
        match self {
            LogLevel::Off => LevelFilter::OFF,
            level => level.filter().max(LevelFilter::INFO),
        }
    }
}

/// Writes events and audit lines of this level to stderr from now on. Called once.
pub fn write_events(level: LogLevel, format: LogFormat) {
    let is_json = format == LogFormat::Json;
    IS_JSON.store(is_json, Ordering::Relaxed);
    let wanted = Wanted {
        root: level.filter(),
        audit: level.audit_filter(),
        own: BTreeMap::new(),
    };
    let (filter, handle) = reload::Layer::new(wanted.filter());
    let wanted = Mutex::new(wanted);
    let _ = LINES.set(Lines { wanted, handle });
    // The time is in UTC, in the form of RFC 3339.
    let lines = tracing_subscriber::fmt::layer()
        // A failed write to stderr would panic otherwise.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    let lines = match is_json {
        true => lines.json().flatten_event(true).boxed(),
        false => lines.with_target(false).boxed(),
    };
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(CountLines.with_filter(LevelFilter::WARN))
        .init();
}

/// The targets that can have levels of their own: the crates. The root's level applies to the lines of the program
/// itself. Audit lines are absent, so that no administrator can switch them off unnoticed.
const TARGETS: [&str; 10] = [
    "millstream_base",
    "millstream_broker",
    "millstream_client",
    "millstream_connect",
    "millstream_exchange",
    "millstream_flow",
    "millstream_log",
    "millstream_serve",
    "millstream_share",
    "millstream_wire",
];

/// The filter that decides which events become log lines.
struct Wanted {
    root: LevelFilter,
    audit: LevelFilter,
    /// Levels of the targets that have one of their own.
    own: BTreeMap<&'static str, LevelFilter>,
}

impl Wanted {
    fn filter(&self) -> Targets {
        Targets::new()
            .with_default(self.root)
            .with_target(AUDIT_TARGET, self.audit)
            .with_targets(self.own.iter().map(|(target, level)| (*target, *level)))
            .with_target(MESSAGE_TARGET, LevelFilter::TRACE)
    }

    fn level(&self, target: &str) -> LevelFilter {
        self.own.get(target).copied().unwrap_or(self.root)
    }
}

/// The log lines of the process, whose levels administrators change while it runs.
struct Lines {
    wanted: Mutex<Wanted>,
    handle: reload::Handle<Targets, Registry>,
}

/// Set with the first line.
static LINES: OnceLock<Lines> = OnceLock::new();

/// The levels of the log lines, which the broker shows and changes.
pub struct Levels;

impl LogLevels for Levels {
    fn levels(&self) -> Vec<(&'static str, Option<TargetLevel>)> {
        let Some(lines) = LINES.get() else {
            return Vec::new();
        };
        let wanted = lines.wanted.lock();
        let targets = TARGETS.iter().map(|target| (*target, wanted.level(target)));
        let all = targets.chain([(ROOT, wanted.root)]);
        all.map(|(target, level)| (target, level_of(level)))
            .collect()
    }

    fn set(&self, target: &str, level: Option<TargetLevel>) {
        let Some(lines) = LINES.get() else { return };
        let mut wanted = lines.wanted.lock();
        let level = level.map(filter_of);
        let known = TARGETS.into_iter().find(|known| *known == target);
        match (known, level) {
            (Some(known), Some(level)) => {
                wanted.own.insert(known, level);
            }
            (Some(known), None) => {
                wanted.own.remove(known);
            }
            (None, Some(level)) => wanted.root = level,
            // The root always has a level.
            (None, None) => {}
        }
        // This fails only if the process no longer writes log lines.
        let _ = lines.handle.reload(wanted.filter());
    }
}

fn level_of(filter: LevelFilter) -> Option<TargetLevel> {
    match filter.into_level()? {
        Level::ERROR => Some(TargetLevel::Error),
        Level::WARN => Some(TargetLevel::Warn),
        Level::INFO => Some(TargetLevel::Info),
        Level::DEBUG => Some(TargetLevel::Debug),
        Level::TRACE => Some(TargetLevel::Trace),
    }
}

fn filter_of(level: TargetLevel) -> LevelFilter {
    match level {
        TargetLevel::Error => LevelFilter::ERROR,
        TargetLevel::Warn => LevelFilter::WARN,
        TargetLevel::Info => LevelFilter::INFO,
        TargetLevel::Debug => LevelFilter::DEBUG,
        TargetLevel::Trace => LevelFilter::TRACE,
    }
}

/// Counts of warnings and errors since the start, independent of the level of log lines.
#[derive(Debug, Clone, Copy)]
pub struct LogLines {
    pub warnings: u64,
    pub errors: u64,
}

static WARNINGS: AtomicU64 = AtomicU64::new(0);
static ERRORS: AtomicU64 = AtomicU64::new(0);

/// Returns the counts so far.
pub fn log_lines() -> LogLines {
    LogLines {
        warnings: WARNINGS.load(Ordering::Relaxed),
        errors: ERRORS.load(Ordering::Relaxed),
    }
}

struct CountLines;

impl<S: Subscriber> Layer<S> for CountLines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let counter = match *event.metadata().level() {
            Level::ERROR => &ERRORS,
            _ => &WARNINGS,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether stderr takes JSON alone.
pub fn is_json_only() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// Writes a message of a command to stderr, if stderr takes JSON alone. Returns whether it does.
pub fn write_message(level: Level, message: fmt::Arguments<'_>) -> bool {
    let is_json = is_json_only();
    if is_json {
        match level {
            Level::ERROR => tracing::error!(target: MESSAGE_TARGET, "{message}"),
            _ => tracing::info!(target: MESSAGE_TARGET, "{message}"),
        }
    }
    is_json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_uses_its_own_level_or_the_root_level() {
        let wanted = Wanted {
            root: LevelFilter::WARN,
            audit: LevelFilter::INFO,
            own: BTreeMap::from([("millstream_log", LevelFilter::DEBUG)]),
        };
        let filter = wanted.filter();
        for (target, level, is_written) in [
            ("millstream_log::lane", Level::DEBUG, true),
            ("millstream_log::lane", Level::TRACE, false),
            ("millstream_broker::server", Level::WARN, true),
            ("millstream_broker::server", Level::INFO, false),
            (AUDIT_TARGET, Level::INFO, true),
            (MESSAGE_TARGET, Level::TRACE, true),
        ] {
            assert_eq!(filter.would_enable(target, &level), is_written, "{target}");
        }
        assert_eq!(
            level_of(wanted.level("millstream_log")),
            Some(TargetLevel::Debug)
        );
        assert_eq!(
            level_of(wanted.level("millstream_broker")),
            Some(TargetLevel::Warn)
        );
    }
}
