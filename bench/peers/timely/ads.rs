//! SWA, YSB and YSB* as timely dataflows of two workers. Each worker makes its events, counts them by window and key,
//! and only these counts are exchanged and summed up: time is the start of the window, and a window is over when no
//! worker can make events of it any more.

mod orders;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Barrier, OnceLock};
use std::time::Instant;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::generic::{Operator, OutputBuilder, source};
use timely::dataflow::{Scope, Stream};
use timely::worker::Worker;
use workload::workload::{ADS, Block, CAMPAIGNS, Fed, Feed, Kind, Schedule, campaign_of_ads};

use orders::{Order, Released, Run};

const WORKERS: u32 = 2;

/// How many blocks are made in one turn of a source, so that few turns make many events.
const BLOCKS_PER_TURN: usize = 16;

/// The counted part of an event: its key and its time.
type Keyed = Vec<(u32, i64)>;

/// A key, how many events, and the largest time of them.
type Counted = Vec<(u32, u64, i64)>;

/// Blocks that were read, to be filled again.
type Pool = Rc<RefCell<Vec<Block>>>;

fn main() {
    orders::answer(run);
}

/// The common start of all workers, and their results.
struct Start {
    order: Order,
    barrier: Barrier,
    at: OnceLock<Instant>,
}

impl Start {
    fn at(&self) -> Instant {
        *self.at.get_or_init(Instant::now)
    }

    /// Now, by the clock that gives events their times.
    fn now_ms(&self) -> f64 {
        self.order.schedule.start_ms as f64 + self.at().elapsed().as_secs_f64() * 1e3
    }
}

fn run(order: Order) -> Result<Run, String> {
    let start = Arc::new(Start {
        order,
        barrier: Barrier::new(WORKERS as usize),
        at: OnceLock::new(),
    });
    let workers = timely::execute(timely::Config::process(WORKERS as usize), move |worker| {
        work(worker, &start)
    })?;
    let mut all = Run::default();
    for run in workers.join() {
        all.add(run?);
    }
    Ok(all)
}

fn work(worker: &mut Worker, start: &Arc<Start>) -> Run {
    let run = Rc::new(RefCell::new(Run::default()));
    let index = worker.index() as u32;
    let schedule = Schedule {
        rate: start.order.schedule.rate / u64::from(WORKERS),
        ..start.order.schedule
    };
    worker.dataflow::<u64, _, _>(|scope| {
        let pool = Pool::default();
        let events = generate(scope, Feed::new(schedule, index), start, &pool, &run);
        match start.order.app.as_str() {
            "swa" => {
                let counts = sum(count(project(events, &pool), ADS), ADS);
                release(counts, start, &run);
            }
            "ysb" => {
                let views = filter(events, &pool, Kind::View);
                let counts = sum(count(join(views), CAMPAIGNS), CAMPAIGNS);
                release(counts, start, &run);
            }
            _ => {
                let [views, clicks] = split(events, &pool);
                let views = sum(count(join(views), CAMPAIGNS), CAMPAIGNS);
                let clicks = sum(count(join(clicks), CAMPAIGNS), CAMPAIGNS);
                release_ratios(views, clicks, start, &run);
            }
        }
    });
    start.barrier.wait();
    start.at();
    while worker.has_dataflows() {
        worker.step_or_park(None);
    }
    run.take()
}

/// Blocks of events as they fall due.
fn generate<'scope>(
    scope: Scope<'scope, u64>,
    mut feed: Feed,
    start: &Arc<Start>,
    pool: &Pool,
    run: &Rc<RefCell<Run>>,
) -> Stream<'scope, u64, Vec<Block>> {
    let (start, pool, run) = (start.clone(), pool.clone(), run.clone());
    source::<_, CapacityContainerBuilder<Vec<Block>>, _, _>(
        scope,
        "generate",
        |capability, info| {
            let activator = scope.activator_for(info.address);
            let mut capability = Some(capability);
            move |output| {
                let Some(time) = &mut capability else { return };
                for _ in 0..BLOCKS_PER_TURN {
                    let mut block = pool.borrow_mut().pop().unwrap_or_default();
                    match feed.next(start.at().elapsed(), &mut block) {
                        Fed::Events => {
                            // All events of a block have the same time.
                            if let Some(made) = feed.made().last()
                                && *time.time() != made.window_ms as u64
                            {
                                time.downgrade(&(made.window_ms as u64));
                            }
                            output.session(time).give(block);
                        }
                        Fed::Wait(wait) => {
                            pool.borrow_mut().push(block);
                            activator.activate_after(wait);
                            return;
                        }
                        Fed::End => {
                            let mut run = run.borrow_mut();
                            run.seconds = start.at().elapsed().as_secs_f64();
                            run.made = vec![feed.made().to_vec()];
                            capability = None;
                            return;
                        }
                    }
                }
                activator.activate();
            }
        },
    )
}

/// All events, by ad.
fn project<'scope>(
    events: Stream<'scope, u64, Vec<Block>>,
    pool: &Pool,
) -> Stream<'scope, u64, Keyed> {
    let pool = pool.clone();
    events.unary::<CapacityContainerBuilder<Keyed>, _, _, _>(Pipeline, "project", |_, _| {
        move |input, output| {
            input.for_each(|time, blocks| {
                let mut session = output.session(&time);
                for block in blocks.drain(..) {
                    session
                        .give_iterator(block.events().map(|event| (event.ad(), event.time_ms())));
                    pool.borrow_mut().push(block);
                }
            });
        }
    })
}

/// The events of one kind, by ad.
fn filter<'scope>(
    events: Stream<'scope, u64, Vec<Block>>,
    pool: &Pool,
    kind: Kind,
) -> Stream<'scope, u64, Keyed> {
    let pool = pool.clone();
    events.unary::<CapacityContainerBuilder<Keyed>, _, _, _>(Pipeline, "filter", |_, _| {
        move |input, output| {
            input.for_each(|time, blocks| {
                let mut session = output.session(&time);
                for block in blocks.drain(..) {
                    let events = block.events().filter(|event| event.kind() == kind);
                    session.give_iterator(events.map(|event| (event.ad(), event.time_ms())));
                    pool.borrow_mut().push(block);
                }
            });
        }
    })
}

/// Views and clicks, by ad.
fn split<'scope>(
    events: Stream<'scope, u64, Vec<Block>>,
    pool: &Pool,
) -> [Stream<'scope, u64, Keyed>; 2] {
    let pool = pool.clone();
    let mut builder = OperatorBuilder::new("split".to_owned(), events.scope());
    let mut input = builder.new_input(events, Pipeline);
    let (views, views_stream) = builder.new_output();
    let (clicks, clicks_stream) = builder.new_output();
    let mut views = OutputBuilder::<_, CapacityContainerBuilder<Keyed>>::from(views);
    let mut clicks = OutputBuilder::<_, CapacityContainerBuilder<Keyed>>::from(clicks);
    builder.build(move |_| {
        move |_| {
            let mut views = views.activate();
            let mut clicks = clicks.activate();
            input.for_each(|time, blocks| {
                let mut views = views.session(&time);
                let mut clicks = clicks.session(&time);
                for block in blocks.drain(..) {
                    for event in block.events() {
                        match event.kind() {
                            Kind::View => views.give((event.ad(), event.time_ms())),
                            Kind::Click => clicks.give((event.ad(), event.time_ms())),
                            Kind::Purchase => {}
                        }
                    }
                    pool.borrow_mut().push(block);
                }
            });
        }
    });
    [views_stream, clicks_stream]
}

/// The campaign in the place of the ad.
fn join<'scope>(ads: Stream<'scope, u64, Keyed>) -> Stream<'scope, u64, Keyed> {
    let campaigns = campaign_of_ads();
    ads.unary::<CapacityContainerBuilder<Keyed>, _, _, _>(Pipeline, "join", |_, _| {
        move |input, output| {
            input.for_each(|time, ads| {
                for (key, _) in ads.iter_mut() {
                    *key = campaigns[*key as usize];
                }
                output.session(&time).give_container(ads);
            });
        }
    })
}

/// Counts by key and window, of this worker.
fn count<'scope>(keyed: Stream<'scope, u64, Keyed>, keys: u32) -> Stream<'scope, u64, Counted> {
    let mut windows = Windows::new(keys);
    keyed.unary_notify::<CapacityContainerBuilder<Counted>, _, _>(
        Pipeline,
        "count",
        None,
        move |input, output, notificator| {
            input.for_each(|time, keyed| {
                let slots = windows.slots(*time.time(), || {
                    notificator.notify_at(time.retain(output.output_index()));
                });
                for (key, time_ms) in keyed.drain(..) {
                    add(slots, key, 1, time_ms);
                }
            });
            notificator.for_each(|time, _, _| {
                output
                    .session(&time)
                    .give_iterator(windows.close(*time.time()));
            });
        },
    )
}

/// Sums by key and window, each key at one worker.
fn sum<'scope>(counted: Stream<'scope, u64, Counted>, keys: u32) -> Stream<'scope, u64, Counted> {
    let mut windows = Windows::new(keys);
    counted.unary_notify::<CapacityContainerBuilder<Counted>, _, _>(
        Exchange::new(|(key, _, _): &(u32, u64, i64)| u64::from(*key)),
        "sum",
        None,
        move |input, output, notificator| {
            input.for_each(|time, counted| {
                let slots = windows.slots(*time.time(), || {
                    notificator.notify_at(time.retain(output.output_index()));
                });
                for (key, count, time_ms) in counted.drain(..) {
                    add(slots, key, count, time_ms);
                }
            });
            notificator.for_each(|time, _, _| {
                output
                    .session(&time)
                    .give_iterator(windows.close(*time.time()));
            });
        },
    )
}

/// How many events of a key, and the largest time of them.
type Slot = (u64, i64);

fn add(slots: &mut [Slot], key: u32, count: u64, time_ms: i64) {
    let slot = &mut slots[key as usize];
    slot.0 += count;
    slot.1 = slot.1.max(time_ms);
}

/// The windows that are open, by their starts.
struct Windows {
    keys: u32,
    open: HashMap<u64, Vec<Slot>>,
}

impl Windows {
    fn new(keys: u32) -> Windows {
        Windows {
            keys,
            open: HashMap::new(),
        }
    }

    /// The counts of a window by key; says when it is opened.
    fn slots(&mut self, window: u64, opened: impl FnOnce()) -> &mut [Slot] {
        self.open.entry(window).or_insert_with(|| {
            opened();
            vec![(0, i64::MIN); self.keys as usize]
        })
    }

    fn close(&mut self, window: u64) -> impl Iterator<Item = (u32, u64, i64)> {
        let slots = self.open.remove(&window).unwrap_or_default();
        let keys = slots
            .into_iter()
            .zip(0..)
            .filter(|((count, _), _)| *count > 0);
        keys.map(|((count, time_ms), key)| (key, count, time_ms))
    }
}

/// Notes the results of windows, with the times of their release.
fn release(counts: Stream<'_, u64, Counted>, start: &Arc<Start>, run: &Rc<RefCell<Run>>) {
    let (start, run) = (start.clone(), run.clone());
    counts.sink(Pipeline, "release", move |(input, _)| {
        input.for_each(|time, counts| {
            let released_ms = start.now_ms();
            for (key, count, time_ms) in counts.drain(..) {
                run.borrow_mut().released.push(Released {
                    window_ms: *time.time() as i64,
                    key,
                    count,
                    clicks: 0,
                    time_ms,
                    released_ms,
                });
            }
        });
    });
}

/// Joins views and clicks by window and campaign, whose counts are at the same worker.
fn release_ratios<'scope>(
    views: Stream<'scope, u64, Counted>,
    clicks: Stream<'scope, u64, Counted>,
    start: &Arc<Start>,
    run: &Rc<RefCell<Run>>,
) {
    let (start, run) = (start.clone(), run.clone());
    let mut windows: HashMap<u64, [Vec<(u32, u64, i64)>; 2]> = HashMap::new();
    views.binary_notify::<_, CapacityContainerBuilder<Counted>, _, _, _>(
        clicks,
        Pipeline,
        Pipeline,
        "join",
        None,
        move |views, clicks, output, notificator| {
            views.for_each(|time, counts| {
                windows.entry(*time.time()).or_default()[0].append(counts);
                notificator.notify_at(time.retain(output.output_index()));
            });
            clicks.for_each(|time, counts| {
                windows.entry(*time.time()).or_default()[1].append(counts);
                notificator.notify_at(time.retain(output.output_index()));
            });
            notificator.for_each(|time, _, _| {
                let [views, clicks] = windows.remove(time.time()).unwrap_or_default();
                let views: HashMap<u32, Slot> = views
                    .into_iter()
                    .map(|(key, count, time_ms)| (key, (count, time_ms)))
                    .collect();
                let released_ms = start.now_ms();
                for (key, clicks, clicked_ms) in clicks {
                    let Some((count, viewed_ms)) = views.get(&key) else {
                        continue;
                    };
                    run.borrow_mut().released.push(Released {
                        window_ms: *time.time() as i64,
                        key,
                        count: *count,
                        clicks,
                        time_ms: clicked_ms.max(*viewed_ms),
                        released_ms,
                    });
                }
            });
        },
    );
}
