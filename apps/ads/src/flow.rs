//! The flow: filter, join, count in windows.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_connect::{
    DeadLetterStream, EncodedRecord, LogCheckpoints, StreamSink, StreamSource,
};
use millstream_flow::windows::{Aggregate, Combine, WindowResult, Windows};
use millstream_flow::{
    BoxError, Checkpointing, Emit, Flow, FlowError, FlowSettings, Resume, Running, StateReader,
    Watermarks, Windowed,
};
use millstream_log::{Log, LogError, Stream, StreamConfig};
use serde::{Deserialize, Serialize};
use serde_json::Value;

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

/// The disorder of events that the windows tolerate. A later event becomes a dead letter if its window is over.
const DISORDER_MAX: Duration = Duration::from_secs(1);

/// How often a finishing flow checks whether it has read everything.
const LAG_INTERVAL: Duration = Duration::from_millis(2);

/// The name of the flow.
const FLOW: &str = "ads";

/// The counts of a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdCounts {
    /// Times that an ad of the campaign was seen.
    pub views: u64,
    /// Times that one was clicked.
    pub clicks: u64,
}

/// The sums over all events that the flow has read since its first start. At the end of the flow
/// `counted + late == views + clicks`.
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
    /// Views and clicks that came after their window was closed.
    pub late: u64,
}

/// Counts the views and clicks of a campaign.
#[derive(Debug, Clone, Copy)]
struct CountAds;

impl Combine for CountAds {
    type State = AdCounts;
    type Out = AdCounts;

    fn empty(&self) -> AdCounts {
        AdCounts::default()
    }

    fn merge(&self, counts: &mut AdCounts, other: &AdCounts) {
        counts.views += other.views;
        counts.clicks += other.clicks;
    }

    fn result(&self, counts: &AdCounts, _: u64) -> AdCounts {
        *counts
    }
}

impl Aggregate<(Campaign, Kind, Timestamp)> for CountAds {
    fn add(&self, counts: &mut AdCounts, (_, kind, _): &(Campaign, Kind, Timestamp)) {
        match kind {
            Kind::View => counts.views += 1,
            Kind::Click => counts.clicks += 1,
            Kind::Purchase => {}
        }
    }
}

/// The reason for which the application cannot run.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AdsError {
    /// The log refuses.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The flow fails.
    #[error(transparent)]
    Flow(#[from] FlowError),
}

/// The running flow.
pub struct AdsFlow {
    events: Stream,
    running: Arc<Running>,
    counts: Windowed<Campaign, CountAds>,
    read: Arc<EventCounts>,
}

/// Added to by the source's stage. As a state element it has the keys `events`, `views` and `clicks`.
#[derive(Default)]
struct EventCounts {
    events: AtomicU64,
    views: AtomicU64,
    clicks: AtomicU64,
}

/// The same counts as a state element of the flow.
struct EventCountsState(Arc<EventCounts>);

impl AdsFlow {
    /// Starts the flow on the streams of a log, and creates missing streams.
    ///
    /// The flow resumes from its last checkpoint, which is in the log: its counts cover everything
    /// since its first start, also events that retention has removed meanwhile, however the last
    /// run ended. Without a checkpoint it begins at the earliest event, and recreates the streams
    /// of counts and of dead letters. Records that are no events, and late views and clicks, go to the
    /// stream `ads.dead_letters`. Each count and each dead letter is there once, however runs end.
    ///
    /// # Errors
    /// When the log refuses, the flow's threads cannot be started, or the checkpoint does not fit:
    /// then [`forget`](AdsFlow::forget) makes it begin anew.
    pub fn start(log: &Log, settings: FlowSettings) -> Result<AdsFlow, AdsError> {
        let dead_letters = DeadLetterStream::new(log, FLOW);
        let place = LogCheckpoints::new(log, FLOW);
        if !place.has_checkpoint().map_err(checkpoint_error)? {
            delete_results(log)?;
        }
        let settings = FlowSettings {
            dead_letters: Some(Arc::new(dead_letters)),
            checkpoints: Some(Checkpointing {
                store: Arc::new(place),
                interval: None,
                resume: Resume::IfAny,
            }),
            ..settings
        };
        let events = log.stream_or_create(EVENTS_STREAM, StreamConfig::default())?;
        let results = log.stream_or_create(COUNTS_STREAM, StreamConfig::default())?;

        let read = Arc::new(EventCounts::default());
        let tally = Arc::clone(&read);
        let campaigns = campaign_of_ads();
        // A single reader preserves the order of the events, on which the watermarks depend.
        let source = StreamSource::new(&events);
        let flow = Flow::with_settings(FLOW, settings);
        flow.state("totals", EventCountsState(Arc::clone(&read)));
        let counts = flow.windowed(COUNTS_STATE, Windows::tumbling(WINDOW_MS), CountAds);
        flow.source("events", source)
            .each(move |record, emit: &mut Emit<Event>| {
                emit(&Event::decode(record.value.unwrap_or_default())?);
                Ok(())
            })
            .watermarks(|event| event.time, Watermarks::bounded(DISORDER_MAX))
            // Behind the watermarks, which refuse events of the far future.
            .filter(move |event| {
                tally.add(event);
                event.kind != Kind::Purchase
            })
            .map(move |event| (campaigns[event.ad.0 as usize], event.kind, event.time))
            .key_by(|(campaign, _, _)| *campaign)
            .aggregate("count", &counts, |(_, _, time)| *time)
            .sink("campaign_counts", StreamSink::new(&results, encode)?);
        Ok(AdsFlow {
            events,
            running: Arc::new(flow.run()?),
            counts,
            read,
        })
    }

    /// Returns the stream of events.
    pub fn events(&self) -> &Stream {
        &self.events
    }

    /// Deletes the checkpoint, the counts and the dead letters in a log: the next start begins at
    /// the earliest event.
    ///
    /// # Errors
    /// When the log refuses.
    pub fn forget(log: &Log) -> Result<(), AdsError> {
        let place = LogCheckpoints::new(log, FLOW);
        place.forget().map_err(checkpoint_error)?;
        Ok(delete_results(log)?)
    }

    /// Returns the number of durable events that the flow has not read.
    pub fn lag_records(&self) -> u64 {
        self.running.lag_records().unwrap_or(0)
    }

    /// Returns the flow, for its metrics and its state.
    pub fn running(&self) -> &Arc<Running> {
        &self.running
    }

    /// Returns the current sums.
    pub fn totals(&self) -> AdsTotals {
        let windows = self.counts.totals();
        AdsTotals {
            events: self.read.events.load(Ordering::Relaxed),
            views: self.read.views.load(Ordering::Relaxed),
            clicks: self.read.clicks.load(Ordering::Relaxed),
            windows: windows.open_windows + windows.closed_windows,
            counted: windows.open_events + windows.closed_events,
            late: self.counts.late_events(),
        }
    }

    /// Counts all records that are durable now, and stops. Windows stay open for the records that
    /// come before the next start.
    ///
    /// # Errors
    /// When the flow has failed; the error gives the reason.
    pub fn finish(&self) -> Result<AdsTotals, AdsError> {
        while self.lag_records() > 0 && !self.running.is_finished() {
            thread::sleep(LAG_INTERVAL);
        }
        self.running.stop();
        self.running.join()?;
        Ok(self.totals())
    }
}

/// Deletes the results of earlier runs of a flow that begins anew.
fn delete_results(log: &Log) -> Result<(), LogError> {
    let dead_letters = DeadLetterStream::new(log, FLOW);
    for results in [COUNTS_STREAM, dead_letters.stream()] {
        match log.delete_stream(results) {
            Ok(()) | Err(LogError::UnknownStream { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn checkpoint_error(error: BoxError) -> FlowError {
    FlowError::Checkpoint {
        flow: FLOW.to_owned(),
        error: error.into(),
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

impl StateReader for EventCountsState {
    fn get(&self, key: &str) -> Option<Value> {
        let counter = match key {
            "events" => &self.0.events,
            "views" => &self.0.views,
            "clicks" => &self.0.clicks,
            _ => return None,
        };
        Some(counter.load(Ordering::Relaxed).into())
    }

    fn keys(&self, limit: usize) -> Vec<String> {
        let keys = ["clicks", "events", "views"].map(str::to_owned);
        keys.into_iter().take(limit).collect()
    }

    fn save(&self) -> Result<Vec<u8>, BoxError> {
        let EventCounts {
            events,
            views,
            clicks,
        } = &*self.0;
        let counts = [events, views, clicks].map(|counter| counter.load(Ordering::Relaxed));
        Ok(postcard::to_stdvec(&counts)?)
    }

    fn restore(&self, saved: &[u8]) -> Result<(), BoxError> {
        let [events, views, clicks]: [u64; 3] = postcard::from_bytes(saved)?;
        self.0.events.store(events, Ordering::Relaxed);
        self.0.views.store(views, Ordering::Relaxed);
        self.0.clicks.store(clicks, Ordering::Relaxed);
        Ok(())
    }
}

/// The record of a closed window.
fn encode(result: &WindowResult<Campaign, AdCounts>, record: &mut EncodedRecord) {
    let WindowResult {
        key: campaign,
        start: Timestamp(window_start),
        end,
        value: AdCounts { views, clicks },
        ..
    } = result;
    record.timestamp = *end;
    // Writing into a vector does not fail.
    let _ = write!(record.key, "{campaign}");
    let _ = write!(
        record.value,
        r#"{{"campaign":{campaign},"window_start":{window_start},"views":{views},"clicks":{clicks}}}"#
    );
}
