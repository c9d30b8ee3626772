//! The log parser, as a flow.

use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::{Context as _, Result};
use millstream_base::SystemDisk;
use millstream_flow::sources::{LineFiles, LineLimits};
use millstream_flow::{FlowSettings, Order};
use millstream_logparser::{LogParser, Staging};

use crate::measure::{Took, ended, time};
use crate::text::{Counted, PREFIX, Text};

/// Worker threads of a flow, and threads of a loop by hand, where the case does not vary them.
pub const WORKERS: usize = 2;

/// Returns the settings of the log parser where a case has no others: a count depends on no order.
pub fn settings(workers: usize) -> FlowSettings {
    FlowSettings {
        workers: NonZeroUsize::new(workers).expect("there are workers"),
        order: Order::Free,
        ..FlowSettings::default()
    }
}

/// Starts to count words in some files.
pub fn start<'p>(
    paths: impl Iterator<Item = &'p Path>,
    staging: Staging,
    settings: FlowSettings,
) -> Result<LogParser> {
    let paths = paths.map(Path::to_owned);
    let files = LineFiles::open(&SystemDisk, paths, LineLimits::default())?;
    Ok(LogParser::start(files, PREFIX, staging, settings)?)
}

/// Returns the counts of a parser that has come to its end.
pub fn counted(parser: &LogParser) -> Counted {
    Counted {
        count: parser.count(),
        words: parser.words(),
    }
}

/// Counts the words of the text, rightly.
pub fn run(text: &Text, staging: Staging, settings: FlowSettings) -> Result<Took> {
    time(|| {
        let parser = start(text.paths(1), staging, settings)?;
        ended(parser.running())?;
        text.check(counted(&parser), 1)
    })
}

/// Returns how many passes over the text the separate stages do in `seconds`; at least one.
pub fn passes_in(text: &Text, seconds: f64) -> Result<usize> {
    let took = run(text, Staging::Separate, settings(WORKERS)).context("the first run")?;
    Ok((seconds / took.seconds).ceil() as usize)
}
