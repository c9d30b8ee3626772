//! Reads orders, a line each, and prints the result of each; see ads.sh.

use std::fmt::Write as _;
use std::io::BufRead as _;
use std::process;

use rustix::time::{ClockId, clock_gettime};
use workload::workload::{Made, Schedule};

/// The run that the workers must do.
#[derive(Clone)]
pub struct Order {
    pub app: String,
    /// Its rate is that of all workers together.
    pub schedule: Schedule,
}

/// The result of a window for a key.
pub struct Released {
    pub window_ms: i64,
    pub key: u32,
    pub count: u64,
    pub clicks: u64,
    /// The largest time of its events.
    pub time_ms: i64,
    /// By the clock that gave events their times.
    pub released_ms: f64,
}

/// The work of one worker, or of all.
#[derive(Default)]
pub struct Run {
    /// From the start until the last event was made.
    pub seconds: f64,
    pub made: Vec<Vec<Made>>,
    pub released: Vec<Released>,
}

impl Run {
    pub fn add(&mut self, part: Run) {
        self.seconds = self.seconds.max(part.seconds);
        self.made.extend(part.made);
        self.released.extend(part.released);
    }

    fn json(&self, cpu_seconds: f64) -> String {
        let list = |items: Vec<String>| format!("[{}]", items.join(","));
        let made = self.made.iter().map(|of| {
            let windows = of.iter();
            list(
                windows
                    .map(|made| format!("[{},{}]", made.window_ms, made.events))
                    .collect(),
            )
        });
        let released = self.released.iter().map(|one| {
            let ratio = one.clicks as f64 / one.count as f64;
            format!(
                "[{},{},{},{},{ratio:.9},{},{:.3}]",
                one.window_ms, one.key, one.count, one.clicks, one.time_ms, one.released_ms
            )
        });
        let mut json = String::new();
        // Writing into a string does not fail.
        let _ = write!(
            json,
            r#"{{"seconds":{:.3},"cpu_seconds":{cpu_seconds:.3},"made":{},"released":{}}}"#,
            self.seconds,
            list(made.collect()),
            list(released.collect())
        );
        json
    }
}

/// Runs the order of each line.
pub fn answer(run: impl Fn(Order) -> Result<Run, String>) {
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap_or_else(|error| fail(&format!("cannot read an order: {error}")));
        let order = order(&line).unwrap_or_else(|| fail(&format!("{line:?} is no order")));
        let cpu_before = cpu_seconds();
        let run = run(order).unwrap_or_else(|error| fail(&error));
        println!("{}", run.json(cpu_seconds() - cpu_before));
    }
}

fn order(line: &str) -> Option<Order> {
    let mut words = line.split_whitespace();
    let app = words
        .next()
        .filter(|app| ["swa", "ysb", "ysb-star"].contains(app))?;
    let rate = words.next()?.parse().ok()?;
    let duration_ms = words.next()?.parse().ok()?;
    let window_ms = words.next()?.parse().ok().filter(|ms| *ms > 0)?;
    let start_ms = words.next()?.parse().ok()?;
    Some(Order {
        app: app.to_owned(),
        schedule: Schedule {
            start_ms,
            window_ms,
            rate,
            duration_ms,
        },
    })
}

fn fail(what: &str) -> ! {
    eprintln!("timely: {what}");
    process::exit(1)
}

/// Of all threads of this process.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
