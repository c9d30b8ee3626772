//! The applications as flows, in this process.

use std::num::NonZeroUsize;

use anyhow::Result;
use millstream_ads::benchmark::{App, BenchmarkFlow, Order};
use millstream_flow::FlowSettings;

use super::contender::{Contender, Counted, INSTANCES};
use crate::measure::{ended, time};

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
    fn run(&mut self, order: &Order) -> Result<Counted> {
        let settings = FlowSettings {
            workers: NonZeroUsize::new(INSTANCES as usize).expect("there are instances"),
            ..FlowSettings::default()
        };
        let mut outcome = None;
        let took = time(|| {
            let flow = BenchmarkFlow::start(self.app, *order, settings, 0)?;
            ended(flow.running())?;
            outcome = Some(flow.gather()?);
            Ok(())
        })?;
        Ok(Counted {
            outcome: outcome.expect("it has come to its end"),
            cpu_seconds: took.cpu_seconds,
        })
    }
}
