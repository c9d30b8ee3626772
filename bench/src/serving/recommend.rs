//! The recommender under clients, with analytics that take every processor that they get.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::clients::{self, Answered, Asks, Clients, Phase};
use super::host::{Analytics, Beside, Host, PATH};
use crate::child::Working;
use crate::folder::Folder;
use crate::machine;
use crate::measure::{Bench, median};
use crate::pi::ANALYTICS;
use crate::plot::{Panel, panels};
use crate::report::{Better, Case};
use crate::thread_cpu::ThreadCpu;

pub const RECOMMEND: &str = "recommend";

/// How often each way is run with all loads.
const ROUNDS: usize = 3;

/// The share of a processor of the clients.
const PERIOD: Duration = Duration::from_millis(1);
const PART: Duration = Duration::from_micros(250);

/// The clients with which the throughput at saturation is measured.
const CLIENTS_MAX: usize = 300;

/// The clients of a load, and its part of the throughput at saturation, in percent.
const LOADS: [(usize, u32); 6] = [
    (20, 75),
    (100, 75),
    (300, 25),
    (300, 50),
    (300, 75),
    (300, 100),
];

/// The least part of the throughput of serving alone, the most times its 99th percentile, and the least part of the processor
/// time that it leaves, in percent.
const THROUGHPUT_MIN: f64 = 0.9;
const P99_MAX: f64 = 1.2;
const ANALYTICS_MIN: f64 = 80.0;

/// The most that the 99th percentile may be at any load, in milliseconds.
const P99_MS_MAX: f64 = 1_000.0;

/// The interval of the looks at the processor time of threads.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A way to run serving and analytics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Alone,
    OperatingSystem,
    SameClass,
    Policy,
}

use Way::{Alone, OperatingSystem, Policy, SameClass};

const WAYS: [Way; 4] = [Alone, OperatingSystem, SameClass, Policy];

/// The figures of a load.
#[derive(Debug, Clone, Copy)]
struct Ran {
    answered: Answered,
    /// The processor time of the analytics, and that of all other work, in seconds.
    analytics_s: f64,
    others_s: f64,
    /// The time of all processors together, in seconds.
    processors_s: f64,
}

type Pick = fn(&Ran) -> f64;

impl Way {
    fn name(self) -> &'static str {
        match self {
            Alone => "serving alone",
            OperatingSystem => "two processes",
            SameClass => "one class",
            Policy => "ours",
        }
    }

    fn beside(self) -> Beside {
        match self {
            Alone | OperatingSystem => Beside::None,
            SameClass => Beside::SameClass,
            Policy => Beside::BestEffort,
        }
    }
}

/// The processes of a way.
struct Started {
    host: Working,
    address: SocketAddr,
    /// The process of the analytics, if they have one of their own.
    analytics: Option<Working>,
    users: u64,
}

impl Started {
    fn new(bench: &Bench, folder: &Folder, way: Way) -> Result<Started> {
        let users = bench.size(2_000, 50);
        let mut host = Working::start(&Host {
            dir: folder.path().join("data"),
            users,
            beside: way.beside(),
        })?;
        let address = host.hear()?;
        let analytics = (way == OperatingSystem).then(|| {
            let mut analytics = Working::start(&Analytics {})?;
            analytics.hear::<()>()?;
            Ok::<_, anyhow::Error>(analytics)
        });
        Ok(Started {
            host,
            address,
            analytics: analytics.transpose()?,
            users,
        })
    }

    fn clients(&self, connections: usize) -> Result<Working> {
        Working::start(&Clients {
            address: self.address,
            connections,
            asks: Asks::Path {
                before: PATH.to_owned(),
                numbers: self.users,
            },
            period: PERIOD,
            part: PART,
        })
    }

    /// Runs a load, after a fifth of it to warm up.
    fn run(&self, connections: usize, phase: Phase) -> Result<Ran> {
        let mut clients = self.clients(connections)?;
        let lasts = phase.lasts / 5;
        clients::run(&mut clients, Phase { lasts, ..phase })?;
        let mut cpu = vec![ThreadCpu::of(self.host.id())?];
        if let Some(analytics) = &self.analytics {
            cpu.push(ThreadCpu::of(analytics.id())?);
        }
        let began_at = Instant::now();
        clients.send(&phase)?;
        while began_at.elapsed() < phase.lasts {
            thread::sleep(LOOK_EVERY.min(phase.lasts.saturating_sub(began_at.elapsed())));
            cpu.iter_mut().try_for_each(ThreadCpu::look)?;
        }
        let seconds = began_at.elapsed().as_secs_f64();
        let answered: Answered = clients.hear()?;
        let analytics_s = cpu.iter().map(|cpu| cpu.named_s(ANALYTICS)).sum();
        let all_s: f64 = cpu.iter().map(ThreadCpu::all_s).sum();
        Ok(Ran {
            answered,
            analytics_s,
            others_s: all_s - analytics_s + answered.cpu_s,
            processors_s: seconds * machine::cores().get() as f64,
        })
    }

    /// Ends the processes in good order.
    fn end(mut self) -> Result<()> {
        self.host.send(&())?;
        if let Some(analytics) = self.analytics {
            analytics.kill()?;
        }
        self.host.wait()
    }
}

pub fn recommend(bench: &Bench) -> Result<Vec<Case>> {
    let folder = bench.folder(RECOMMEND, 4 << 30)?;
    let lasts = Duration::from_millis(bench.size(8_000, 300));
    let loads = bench.size(&LOADS[..], &[(20, 50)]);
    let connections = bench.size(CLIENTS_MAX, 20);
    let alone = Started::new(bench, &folder, Alone)?;
    let fastest = Phase {
        per_second: None,
        lasts,
    };
    let saturation = alone.run(connections, fastest)?.answered.per_second;
    alone.end()?;
    let mut rounds = Vec::new();
    for _ in 0..bench.size(ROUNDS, 1) {
        // By way, and then by load.
        let mut round = Vec::new();
        for way in WAYS {
            let started = Started::new(bench, &folder, way)?;
            let ran = loads.iter().map(|(clients, percent)| {
                let phase = Phase {
                    per_second: Some(saturation * f64::from(*percent) / 100.0),
                    lasts,
                };
                started.run(*clients, phase)
            });
            round.push(ran.collect::<Result<Vec<Ran>>>()?);
            started.end()?;
        }
        rounds.push(round);
    }
    let figures = Figures {
        loads,
        rounds,
        saturation,
    };
    figures.draw(bench)?;
    Ok(figures.cases())
}

struct Figures<'a> {
    loads: &'a [(usize, u32)],
    /// By round, by way, by load.
    rounds: Vec<Vec<Vec<Ran>>>,
    saturation: f64,
}

impl Figures<'_> {
    /// Returns a figure of each round.
    fn all(&self, way: Way, load: usize, pick: impl Fn(&Ran) -> f64) -> Vec<f64> {
        let rounds = self.rounds.iter();
        rounds
            .map(|round| pick(&round[way as usize][load]))
            .collect()
    }

    /// Returns the analytics' part of the time that serving alone leaves, in percent.
    fn of_rest(&self, way: Way, load: usize) -> Vec<f64> {
        let rounds = self.rounds.iter();
        rounds
            .map(|round| {
                let (alone, ran) = (&round[Alone as usize][load], &round[way as usize][load]);
                let rest = 1.0 - alone.others_s / alone.processors_s;
                100.0 * ran.analytics_s / ran.processors_s / rest
            })
            .collect()
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases: Vec<Case> = (0..self.loads.len())
            .flat_map(|load| self.cases_of(load))
            .collect();
        let worst = self.rounds.iter().map(|round| {
            let loads = round[Policy as usize].iter();
            loads.map(|ran| ran.answered.p99_ms).fold(0.0, f64::max)
        });
        let worst = Case::new(
            format!("{RECOMMEND}/worst-p99"),
            "ms",
            Better::Lower,
            worst.collect(),
        );
        cases.push(worst.bound(P99_MS_MAX));
        cases
    }

    fn cases_of(&self, load: usize) -> Vec<Case> {
        let (clients, percent) = self.loads[load];
        let case = |figure: &str, unit, better, pick: &dyn Fn(&Ran) -> f64| {
            let name = format!("{RECOMMEND}/{clients}-clients/{percent}-percent/{figure}");
            let case = Case::new(name, unit, better, self.all(Policy, load, pick));
            let case = case.by_hand(self.all(Alone, load, pick));
            [OperatingSystem, SameClass].iter().fold(case, |case, way| {
                case.peer(way.name(), median(&self.all(*way, load, pick)))
            })
        };
        let throughput = case("throughput", "answers/s", Better::Higher, &|ran| {
            ran.answered.per_second
        });
        let mut throughput = throughput.target(THROUGHPUT_MIN);
        let details: [(&str, Pick); 3] = [
            ("refused_percent", |ran| ran.answered.refused_percent),
            ("p50_ms", |ran| ran.answered.p50_ms),
            ("sent_late_p99_ms", |ran| ran.answered.late_p99_ms),
        ];
        for way in WAYS {
            for (detail, pick) in details {
                let detail = format!("{}_{detail}", way.name().replace(' ', "_"));
                throughput = throughput.detail(&detail, median(&self.all(way, load, pick)));
            }
        }
        let throughput = throughput.detail("saturation_answers_per_s", self.saturation);
        let p99 = case("p99", "ms", Better::Lower, &|ran| ran.answered.p99_ms);
        let mut cases = vec![throughput, p99.target(1.0 / P99_MAX)];
        // At saturation, serving leaves nothing.
        if percent < 100 {
            let name = format!("{RECOMMEND}/{clients}-clients/{percent}-percent/analytics");
            let analytics = Case::new(
                name,
                "% of the time left",
                Better::Higher,
                self.of_rest(Policy, load),
            );
            let analytics = analytics.bound(ANALYTICS_MIN);
            cases.push(
                [OperatingSystem, SameClass]
                    .iter()
                    .fold(analytics, |case, way| {
                        case.peer(way.name(), median(&self.of_rest(*way, load)))
                    })
                    .detail(
                        "analytics_cpu_s",
                        median(&self.all(Policy, load, |ran| ran.analytics_s)),
                    ),
            );
        }
        cases
    }

    /// Draws each figure over the loads, with a line for each way.
    fn draw(&self, bench: &Bench) -> Result<()> {
        let figures: [(&str, Pick); 4] = [
            ("answers in a second", |ran| ran.answered.per_second),
            ("median of the latency (ms)", |ran| ran.answered.p50_ms),
            ("99th percentile of the latency (ms)", |ran| {
                ran.answered.p99_ms
            }),
            ("analytics (% of all processors)", |ran| {
                100.0 * ran.analytics_s / ran.processors_s
            }),
        ];
        let labels = self.loads.iter();
        let labels: Vec<String> = labels
            .map(|(clients, percent)| format!("{clients}, {percent} %"))
            .collect();
        let charts = figures.map(|(title, pick)| Panel {
            title: title.to_owned(),
            labels: labels.clone(),
            lines: WAYS
                .iter()
                .map(|way| {
                    let loads = 0..self.loads.len();
                    let medians = loads.map(|load| median(&self.all(*way, load, pick)));
                    (way.name().to_owned(), medians.collect())
                })
                .collect(),
        });
        let path = bench.out().join("recommend-loads.png");
        panels(&path, "the recommender by clients and load", &charts)
    }
}
