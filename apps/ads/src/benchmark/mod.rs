//! The benchmarks SWA, YSB and YSB* (Venugopal et al., "AIR", section 5.1) as applications: a
//! generator in every instance, a count of its events in windows, on any number of ranks, and a check
//! that no event is missing.
//!
//! ```
//! use millstream_ads::benchmark::{App, BenchmarkFlow, Order, probe};
//! use millstream_flow::FlowSettings;
//!
//! let settings = FlowSettings::default();
//! let order = Order::of_window(100, 100_000, settings.workers.get() as u32);
//! let flow = BenchmarkFlow::start(App::Ysb, order, settings, 0)?;
//! flow.running().join()?;
//! let probe = probe(App::Ysb, &order, &flow.gather()?);
//! assert_eq!(probe.missing, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod app;
mod feeds;
mod flow;
mod outcome;

pub use app::{App, Counts};
pub use flow::BenchmarkFlow;
pub use outcome::{Latency, Order, Outcome, Probe, Released, probe};
