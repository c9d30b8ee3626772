//! The flow: filter, join, count in windows.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millstream_base::{ProducerId, Timestamp};
use millstream_connect::{DeadLetterStream, EncodedRecord, Ending, StreamSink, StreamSource};
use millstream_flow::{
    Emit, Flow, FlowError, FlowSettings, Running, TumblingWindows, WindowResult, Windowed,
};
use millstream_log::{Log, LogError, Stream, StreamConfig};
use serde::Serialize;

use crate::event::{Campaign, Event, Kind};
use crate::generator::campaign_of_ads;

/// The stream of events.
pub const EVENTS_STREAM: &str = "ads";

/// The stream of the counts of closed windows: the key is the campaign, the value JSON like
/// `{"campaign":7,"window_start":1700000000000,"views":17,"clicks":20}`.
pub const COUNTS_STREAM: &str = "campaign_counts";

/// The state element with the newest counts of each campaign.
pub const COUNTS_STATE: &str = "campaign_counts";

/// Length of a window of event time.
pub const WINDOW_MS: i64 = 10_000;

/// How far events may be out of order before a window gives a second, additional result.
const LATENESS_MS: i64 = 1_000;

/// The name of the flow.
const FLOW: &str = "ads";

/// What is counted in a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct AdCounts {
    /// Times that an ad of the campaign was seen.
    pub views: u64,
    /// Times that one was clicked.
    pub clicks: u64,
}

/// The sums over all events that the flow has read. At the end of the flow
/// `counted == views + clicks`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct AdsTotals {
    /// Events of all kinds.
    pub events: u64,
    /// The views among them.
    pub views: u64,
    /// The clicks among them.
    pub clicks: u64,
    /// Windows that were opened, open or closed now; each campaign has its own.
    pub windows: u64,
    /// Events in them.
    pub counted: u64,
}

/// Why the application cannot run.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AdsError {
    /// The log refuses.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The flow fails.
    #[error(transparent)]
    Flow(#[from] FlowError),
}

/// The flow at work.
pub struct AdsFlow {
    events: Stream,
    ending: Ending,
    running: Arc<Running>,
    counts: Windowed<Campaign, AdCounts>,
    read: Arc<EventCounts>,
}

/// Added to by the source's stage.
#[derive(Default)]
struct EventCounts {
    events: AtomicU64,
    views: AtomicU64,
    clicks: AtomicU64,
}

impl AdsFlow {
    /// Starts the flow on the streams of a log, which are created where they are missing.
    ///
    /// The flow keeps nothing but what is in the streams: it reads all stored events again, from the
    /// earliest on, and writes the stream of counts anew. So its counts cover everything stored,
    /// however the last run ended. Records that are no events go to the stream `ads.dead_letters`,
    /// anew as well.
    ///
    /// # Errors
    /// When the log refuses, or there are no threads for the flow.
    pub fn start(log: &Log, settings: FlowSettings) -> Result<AdsFlow, AdsError> {
        let dead_letters = DeadLetterStream::new(log, FLOW);
        for results in [COUNTS_STREAM, dead_letters.stream()] {
            match log.delete_stream(results) {
                Ok(()) | Err(LogError::UnknownStream { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let settings = FlowSettings {
            dead_letters: Some(Arc::new(dead_letters)),
            ..settings
        };
        let events = log.stream_or_create(EVENTS_STREAM, StreamConfig::default())?;
        let results = log.create_stream(COUNTS_STREAM, StreamConfig::default())?;

        let windows = TumblingWindows {
            size_ms: WINDOW_MS,
            lateness_ms: LATENESS_MS,
        };
        let read = Arc::new(EventCounts::default());
        let tally = Arc::clone(&read);
        let campaigns = campaign_of_ads();
        // One reader keeps the order of the events, which the windows go by.
        let source = StreamSource::new(&events);
        let ending = source.ending();
        let mut flow = Flow::with_settings(FLOW, settings);
        let counts = flow.windowed::<Campaign, AdCounts>(COUNTS_STATE, windows);
        flow.source("events", source)
            .each(move |record, emit: &mut Emit<Event>| {
                let event = Event::decode(record.value.unwrap_or_default())?;
                tally.add(&event);
                emit(&event);
                Ok(())
            })
            .filter(|event| event.kind != Kind::Purchase)
            .map(move |event| (campaigns[event.ad.0 as usize], event.kind, event.time))
            .key_by(|(campaign, _, _)| *campaign)
            .fold_in_windows(
                "count",
                &counts,
                |(_, _, time)| *time,
                |counts, (_, kind, _)| match kind {
                    Kind::View => counts.views += 1,
                    Kind::Click => counts.clicks += 1,
                    Kind::Purchase => {}
                },
            )
            .sink(
                "campaign_counts",
                StreamSink::new(&results, ProducerId::NONE, encode)?,
            );
        Ok(AdsFlow {
            events,
            ending,
            running: Arc::new(flow.run()?),
            counts,
            read,
        })
    }

    /// The stream of events.
    pub fn events(&self) -> &Stream {
        &self.events
    }

    /// How many events the flow has read.
    pub fn read_events(&self) -> u64 {
        self.read.events.load(Ordering::Relaxed)
    }

    /// The flow, for its metrics and its state.
    pub fn running(&self) -> &Arc<Running> {
        &self.running
    }

    /// The sums at this moment.
    pub fn totals(&self) -> AdsTotals {
        let windows = self.counts.totals();
        AdsTotals {
            events: self.read.events.load(Ordering::Relaxed),
            views: self.read.views.load(Ordering::Relaxed),
            clicks: self.read.clicks.load(Ordering::Relaxed),
            windows: windows.open_windows + windows.closed_windows,
            counted: windows.open_events + windows.closed_events,
        }
    }

    /// Counts everything that is durable now, and ends.
    ///
    /// # Errors
    /// Why the flow has failed.
    pub fn finish(&self) -> Result<AdsTotals, AdsError> {
        self.ending.end_at_durable_head();
        self.running.join()?;
        Ok(self.totals())
    }
}

impl EventCounts {
    fn add(&self, event: &Event) {
        // One worker at a time is in the source's stage: there is no other writer.
        let count = |counter: &AtomicU64| {
            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        };
        count(&self.events);
        match event.kind {
            Kind::View => count(&self.views),
            Kind::Click => count(&self.clicks),
            Kind::Purchase => {}
        }
    }
}

/// The record of a closed window.
fn encode(result: &WindowResult<Campaign, AdCounts>, record: &mut EncodedRecord) {
    let WindowResult {
        key: campaign,
        window_start: Timestamp(window_start),
        value: AdCounts { views, clicks },
        ..
    } = result;
    record.timestamp = Timestamp(window_start.saturating_add(WINDOW_MS));
    // Writing into a vector does not fail.
    let _ = write!(record.key, "{campaign}");
    let _ = write!(
        record.value,
        r#"{{"campaign":{campaign},"window_start":{window_start},"views":{views},"clicks":{clicks}}}"#
    );
}
