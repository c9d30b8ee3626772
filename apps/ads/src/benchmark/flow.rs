//! The applications as flows, on any number of ranks.

use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_flow::windows::{Count, WindowResult, Windows, fold};
use millstream_flow::{
    BoxError, Flow, FlowError, FlowSettings, PartialState, Running, Sink, SinkStart, Watermarks,
    gathered,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::app::App;
use super::feeds::{Feeds, Lent, Run};
use super::outcome::{Order, Outcome, Released};
use crate::workload::{Event, Head, Kind, Made, campaign_of_ads};

/// This rank's share of a running application.
pub struct BenchmarkFlow {
    running: Arc<Running>,
    run: Arc<Run>,
    settings: FlowSettings,
    gather_at: u32,
}

impl BenchmarkFlow {
    /// Starts this rank's share: one instance for each worker. The rank `gather_at` collects the results
    /// of all windows. All ranks have the same order and the same number of workers.
    ///
    /// # Errors
    /// When the ranks' orders or workers differ, or the flow's threads cannot be started.
    pub fn start(
        app: App,
        order: Order,
        settings: FlowSettings,
        gather_at: u32,
    ) -> Result<BenchmarkFlow, FlowError> {
        let workers = settings.workers.get() as u32;
        let first = settings.ranks.rank() * workers;
        let instances = first..first + workers;
        let run = Arc::new(Run::new(order, gather_at, instances, &settings.clock));
        let flow = Flow::with_settings(app.name(), settings.clone());
        let end = End {
            run: Arc::clone(&run),
            gather_at,
        };
        match app {
            App::Swa => swa(&flow, &end),
            App::Ysb => ysb(&flow, &end),
            App::YsbStar => ysb_star(&flow, &end),
        }
        Ok(BenchmarkFlow {
            running: Arc::new(flow.run()?),
            run,
            settings,
            gather_at,
        })
    }

    /// Returns this rank's flow, for its metrics and its end.
    pub fn running(&self) -> &Arc<Running> {
        &self.running
    }

    /// Returns the generated counts and the released results of all ranks; on ranks other than the
    /// collecting one, an empty outcome. All ranks call it, at the end of their flows.
    ///
    /// # Errors
    /// When a rank fails.
    pub fn gather(&self) -> Result<Outcome, FlowError> {
        let reports = self
            .run
            .reports
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let first = (self.settings.ranks.rank() as usize) * reports.made.len();
        let made = reports.made.iter().enumerate();
        let made = made.map(|(place, made)| MadeOf {
            instance: first + place,
            made: made.clone(),
            seconds: reports.seconds,
        });
        let AllMade(mut made) = gathered(
            "gathered feeds",
            self.settings.clone(),
            made.collect(),
            self.gather_at,
            |all: &mut AllMade, made: &MadeOf| all.0.push(made.clone()),
        )?;
        made.sort_by_key(|made| made.instance);
        Ok(Outcome {
            seconds: made.iter().map(|made| made.seconds).fold(0.0, f64::max),
            made: made.into_iter().map(|made| made.made).collect(),
            released: reports.released.clone(),
        })
    }
}

/// The counts that one instance has generated.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct MadeOf {
    instance: usize,
    made: Vec<Made>,
    seconds: f64,
}

/// The counts of all instances, in no particular order.
#[derive(Debug, Default)]
struct AllMade(Vec<MadeOf>);

impl PartialState for AllMade {
    fn merge(&mut self, part: &Self) {
        self.0.extend_from_slice(&part.0);
    }

    fn get(_: &[&Self], _: &str) -> Option<Value> {
        None
    }

    fn keys(_: &[&Self], _: usize) -> Vec<String> {
        Vec::new()
    }
}

/// The destinations of the results.
struct End {
    run: Arc<Run>,
    gather_at: u32,
}

impl End {
    fn release(&self) -> Release {
        Release(Arc::clone(&self.run))
    }
}

fn swa(flow: &Flow, end: &End) {
    let counts = flow.windowed::<u32, _>("counts", windows(&end.run), Count);
    flow.sources("events", Feeds::of(&end.run))
        .watermarks(Lent::time, Watermarks::bounded(Duration::ZERO))
        .flatten()
        .key_by(|head| Event::new(head).ad())
        .aggregate("count", &counts, time_of)
        .gather("release", end.gather_at)
        .sink("release", end.release());
}

fn ysb(flow: &Flow, end: &End) {
    let campaigns = campaign_of_ads();
    let counts = flow.windowed::<u32, _>("counts", windows(&end.run), Count);
    flow.sources("events", Feeds::of(&end.run))
        .watermarks(Lent::time, Watermarks::bounded(Duration::ZERO))
        .flatten()
        .filter(|head| Event::new(head).kind() == Kind::View)
        .key_by(move |head| campaigns[Event::new(head).ad() as usize])
        .aggregate("count", &counts, time_of)
        .gather("release", end.gather_at)
        .sink("release", end.release());
}

/// Views and clicks of a campaign in a window.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Both {
    views: u64,
    clicks: u64,
    time_max_ms: i64,
}

/// The number of views, or clicks, of a campaign in a window.
#[derive(Debug, Clone, Copy)]
struct OfKind {
    campaign: u32,
    start: Timestamp,
    counts: Both,
}

fn ysb_star(flow: &Flow, end: &End) {
    const KINDS: [&str; 2] = ["views", "clicks"];
    let campaigns = campaign_of_ads();
    let counts = KINDS.map(|kind| flow.windowed::<u32, _>(kind, windows(&end.run), Count));
    let both = flow.channel::<OfKind>("both");
    flow.sources("events", Feeds::of(&end.run))
        .watermarks(Lent::time, Watermarks::bounded(Duration::ZERO))
        .flatten()
        .filter(|head| Event::new(head).kind() != Kind::Purchase)
        .fork(
            &KINDS,
            |head| usize::from(Event::new(head).kind() == Kind::Click),
            |kind, events| {
                events
                    .key_by(move |head| campaigns[Event::new(head).ad() as usize])
                    .aggregate(&format!("count {}", KINDS[kind]), &counts[kind], time_of)
                    .map(move |result: &WindowResult<u32, u64>| {
                        let mut counts = Both {
                            time_max_ms: result.time_max.0,
                            ..Both::default()
                        };
                        *[&mut counts.views, &mut counts.clicks][kind] = result.value;
                        OfKind {
                            campaign: result.key,
                            start: result.start,
                            counts,
                        }
                    })
                    .to(&both)
            },
        );
    let join = fold(
        Both::default,
        |both: &mut Both, of: &OfKind| add(both, &of.counts),
        |both: &mut Both, other: &Both| add(both, other),
    );
    let ratios = flow.windowed::<u32, _>("ratios", windows(&end.run), join);
    flow.stage("both", &both)
        .key_by(|of: &OfKind| of.campaign)
        .aggregate("join", &ratios, |of| of.start)
        .gather("release", end.gather_at)
        .sink("release", end.release());
}

fn add(both: &mut Both, other: &Both) {
    both.views += other.views;
    both.clicks += other.clicks;
    both.time_max_ms = both.time_max_ms.max(other.time_max_ms);
}

fn windows(run: &Run) -> Windows {
    Windows::tumbling(run.order.window_ms)
}

fn time_of(head: &Head) -> Timestamp {
    Timestamp(Event::new(head).time_ms())
}

/// Records the results of windows, and the times of their release.
struct Release(Arc<Run>);

impl<R: WindowOutcome> Sink<R> for Release {
    fn push(&mut self, items: &[R], _: &Waker) -> Result<usize, BoxError> {
        let now_ms = self.0.now_ms();
        let released = items.iter().filter_map(|result| result.released(now_ms));
        self.0.release(released);
        Ok(items.len())
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }

    fn prepare(&mut self, _checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        self.0.save_released()
    }

    fn recover(&mut self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        let prepared = start.prepared;
        prepared.map_or(Ok(()), |prepared| self.0.restore_released(prepared))
    }
}

/// The engine's result for a window and a key.
trait WindowOutcome {
    /// Returns the result that the benchmark collects, if there is one.
    fn released(&self, released_ms: f64) -> Option<Released>;
}

impl WindowOutcome for WindowResult<u32, u64> {
    fn released(&self, released_ms: f64) -> Option<Released> {
        Some(Released {
            window_ms: self.start.0,
            key: self.key,
            count: self.value,
            clicks: 0,
            ratio: 0.0,
            time_ms: self.time_max.0,
            released_ms,
        })
    }
}

impl WindowOutcome for WindowResult<u32, Both> {
    /// A join has no result if one side has none.
    fn released(&self, released_ms: f64) -> Option<Released> {
        let Both { views, clicks, .. } = self.value;
        let is_joined = views > 0 && clicks > 0;
        is_joined.then(|| Released {
            window_ms: self.start.0,
            key: self.key,
            count: views,
            clicks,
            ratio: clicks as f64 / views as f64,
            time_ms: self.value.time_max_ms,
            released_ms,
        })
    }
}
