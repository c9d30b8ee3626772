//! Log lines on stderr: their level, their time and their form.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use clap::ValueEnum;
use millstream_broker::security::AUDIT_TARGET;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// The `tracing` target of messages that commands print in any case.
const MESSAGE_TARGET: &str = "message";

/// Whether stderr takes JSON alone. Set once, before the first line.
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
    /// A JSON object a line, with timestamp, level, message and target; it is the form of all that goes to stderr then
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

    /// Audit lines are a record that operators have to keep, so that only `off` turns them off.
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
    let wanted = Targets::new()
        .with_default(level.filter())
        .with_target(AUDIT_TARGET, level.audit_filter())
        .with_target(MESSAGE_TARGET, LevelFilter::TRACE);
    // With a time in UTC, as RFC 3339 writes it.
    let lines = tracing_subscriber::fmt::layer()
        // It would panic where stderr cannot be written to.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    let lines = match is_json {
        true => lines.json().flatten_event(true).boxed(),
        false => lines.with_target(false).boxed(),
    };
    tracing_subscriber::registry()
        .with(lines.with_filter(wanted))
        .with(CountLines.with_filter(LevelFilter::WARN))
        .init();
}

/// Warnings and errors since the start, whatever the level of log lines is.
#[derive(Debug, Clone, Copy)]
pub struct LogLines {
    pub warnings: u64,
    pub errors: u64,
}

static WARNINGS: AtomicU64 = AtomicU64::new(0);
static ERRORS: AtomicU64 = AtomicU64::new(0);

/// How many there were.
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
