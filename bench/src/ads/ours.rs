//! The applications as flows, in this process.

mod feeds;

use std::num::NonZeroUsize;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Duration;

use anyhow::Result;
use millstream_ads::workload::{Event, Head, Kind, campaign_of_ads};
use millstream_base::Timestamp;
use millstream_flow::windows::{Count, WindowResult, Windows, fold};
use millstream_flow::{BoxError, Channel, Emit, Flow, FlowSettings, Sink, Watermarks};
use serde::{Deserialize, Serialize};

use self::feeds::{Feeds, Lent, Run};
use super::app::App;
use super::outcome::{Contender, INSTANCES, Order, Outcome, Released};
use crate::measure::time;

/// The flow of one application.
pub struct Ours {
    app: App,
}

impl Ours {
    pub fn new(app: App) -> Ours {
        Ours { app }
    }
}

impl Contender for Ours {
    fn run(&mut self, order: &Order) -> Result<Outcome> {
        let settings = FlowSettings {
            workers: NonZeroUsize::new(INSTANCES as usize).expect("there are instances"),
            ..FlowSettings::default()
        };
        let run = Arc::new(Run::new(*order, &settings.clock));
        let mut flow = Flow::with_settings(self.app.name(), settings);
        match self.app {
            App::Swa => swa(&mut flow, &run),
            App::Ysb => ysb(&mut flow, &run),
            App::YsbStar => ysb_star(&mut flow, &run),
        }
        let took = time(|| Ok(flow.run()?.join().map(drop)?))?;
        let told = run.told.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Outcome {
            seconds: told.seconds,
            cpu_seconds: took.cpu_seconds,
            made: told.made.clone(),
            released: told.released.clone(),
        })
    }
}

/// A key, and the time of an event.
type Keyed = (u32, Timestamp);

fn swa(flow: &mut Flow, run: &Arc<Run>) {
    let counts = flow.windowed::<u32, _>("counts", windows(run), Count);
    flow.sources("events", Feeds::of(run))
        .watermarks(Lent::time, Watermarks::bounded(Duration::ZERO))
        .flat_map(events)
        .map(|head| (Event::new(head).ad(), time_of(head)))
        .key_by(|(ad, _): &Keyed| *ad)
        .aggregate("count", &counts, |(_, time)| *time)
        .sink("release", Release(Arc::clone(run)));
}

fn ysb(flow: &mut Flow, run: &Arc<Run>) {
    let campaigns = campaign_of_ads();
    let counts = flow.windowed::<u32, _>("counts", windows(run), Count);
    flow.sources("events", Feeds::of(run))
        .watermarks(Lent::time, Watermarks::bounded(Duration::ZERO))
        .flat_map(events)
        .filter(|head| Event::new(head).kind() == Kind::View)
        .map(move |head| (campaigns[Event::new(head).ad() as usize], time_of(head)))
        .key_by(|(campaign, _): &Keyed| *campaign)
        .aggregate("count", &counts, |(_, time)| *time)
        .sink("release", Release(Arc::clone(run)));
}

/// Views and clicks of a campaign in a window.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Both {
    views: u64,
    clicks: u64,
    time_max_ms: i64,
}

/// How many views, or clicks, a campaign has in a window.
#[derive(Debug, Clone, Copy)]
struct OfKind {
    campaign: u32,
    start: Timestamp,
    counts: Both,
}

fn ysb_star(flow: &mut Flow, run: &Arc<Run>) {
    let views = flow.channel::<Head>("views");
    let clicks = flow.channel::<Head>("clicks");
    let both = flow.channel::<OfKind>("both");
    flow.sources("events", Feeds::of(run))
        .watermarks(Lent::time, Watermarks::bounded(Duration::ZERO))
        .flat_map(events)
        .filter(|head| Event::new(head).kind() != Kind::Purchase)
        .split(&[views.clone(), clicks.clone()], |head| {
            usize::from(Event::new(head).kind() == Kind::Click)
        });
    count_kind(flow, run, "count views", &views, &both, |views| Both {
        views,
        ..Both::default()
    });
    count_kind(flow, run, "count clicks", &clicks, &both, |clicks| Both {
        clicks,
        ..Both::default()
    });
    let join = fold(
        Both::default,
        |both: &mut Both, of: &OfKind| add(both, &of.counts),
        |both: &mut Both, other: &Both| add(both, other),
    );
    let ratios = flow.windowed::<u32, _>("ratios", windows(run), join);
    flow.stage("both", &both)
        .key_by(|of: &OfKind| of.campaign)
        .aggregate("join", &ratios, |of| of.start)
        .sink("release", Release(Arc::clone(run)));
}

fn count_kind(
    flow: &mut Flow,
    run: &Arc<Run>,
    name: &str,
    events: &Channel<Head>,
    counted: &Channel<OfKind>,
    of_kind: impl Fn(u64) -> Both + Send + Sync + 'static,
) {
    let campaigns = campaign_of_ads();
    let counts = flow.windowed::<u32, _>(name, windows(run), Count);
    flow.stage(&format!("{name}: join"), events)
        .map(move |head| (campaigns[Event::new(head).ad() as usize], time_of(head)))
        .key_by(|(campaign, _): &Keyed| *campaign)
        .aggregate(name, &counts, |(_, time)| *time)
        .map(move |result: &WindowResult<u32, u64>| OfKind {
            campaign: result.key,
            start: result.start,
            counts: Both {
                time_max_ms: result.time_max.0,
                ..of_kind(result.value)
            },
        })
        .to(counted);
}

fn add(both: &mut Both, other: &Both) {
    both.views += other.views;
    both.clicks += other.clicks;
    both.time_max_ms = both.time_max_ms.max(other.time_max_ms);
}

fn windows(run: &Run) -> Windows {
    Windows::tumbling(run.order.window_ms)
}

fn events(block: &Lent, emit: &mut Emit<'_, Head>) {
    for event in block.events() {
        emit(event.head());
    }
}

fn time_of(head: &Head) -> Timestamp {
    Timestamp(Event::new(head).time_ms())
}

/// Notes what windows say, and when.
struct Release(Arc<Run>);

impl Sink<WindowResult<u32, u64>> for Release {
    fn push(&mut self, items: &[WindowResult<u32, u64>], _: &Waker) -> Result<usize, BoxError> {
        let released_ms = self.0.now_ms();
        self.0.release(items.iter().map(|result| Released {
            window_ms: result.start.0,
            key: result.key,
            count: result.value,
            clicks: 0,
            ratio: 0.0,
            time_ms: result.time_max.0,
            released_ms,
        }));
        Ok(items.len())
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }
}

impl Sink<WindowResult<u32, Both>> for Release {
    fn push(&mut self, items: &[WindowResult<u32, Both>], _: &Waker) -> Result<usize, BoxError> {
        let released_ms = self.0.now_ms();
        // As a join, which has nothing where one side has nothing.
        let joined = items
            .iter()
            .filter(|result| result.value.views > 0 && result.value.clicks > 0);
        self.0.release(joined.map(|result| Released {
            window_ms: result.start.0,
            key: result.key,
            count: result.value.views,
            clicks: result.value.clicks,
            ratio: result.value.clicks as f64 / result.value.views as f64,
            time_ms: result.value.time_max_ms,
            released_ms,
        }));
        Ok(items.len())
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }
}
