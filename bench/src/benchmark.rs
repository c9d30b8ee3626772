//! A benchmark, and the run of its cases.

use anyhow::{Context as _, Result};

use crate::measure::Bench;
use crate::report::Case;

/// Runs a case, and returns one or more results.
pub type Run = fn(&Bench) -> Result<Vec<Case>>;

/// Cases that are reported together.
pub struct Benchmark {
    pub name: &'static str,
    /// The measured things, in one sentence.
    pub measures: &'static str,
    /// In the order in which they run.
    pub cases: &'static [(&'static str, Run)],
}

impl Benchmark {
    pub fn has_case(&self, case: &str) -> bool {
        self.cases.iter().any(|(name, _)| *name == case)
    }

    /// Runs all cases, or one.
    pub fn run(&self, bench: &Bench, only: Option<&str>) -> Result<Vec<Case>> {
        bench.ran.borrow_mut().clear();
        let mut results = Vec::new();
        for (name, run) in self.cases {
            if only.is_none_or(|only| only == *name) {
                eprintln!("bench: {} {name} …", self.name);
                let cases = run(bench).with_context(|| format!("case {name}"))?;
                bench.ran.borrow_mut().extend(cases.iter().cloned());
                results.extend(cases);
            }
        }
        Ok(results)
    }
}
