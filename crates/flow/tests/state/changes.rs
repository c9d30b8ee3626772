//! Change streams: applied in order, the changes that an operator emits give the answer of a plain model.

mod items;
pub mod model;
mod resumed;
mod trouble;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use millstream_exchange::Ranks;
use millstream_flow::changes::{RowSet, RowTable};
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, RetractableMax, RetractableMin, Sum};
use millstream_flow::{
    BoxError, Flow, FlowError, FlowSettings, RowChange, Running, Sink, SinkStart,
};

use self::model::{Answer, Row, Totals, random_changes};
use crate::support::{on_ranks, settings};

/// Keeps items over the flow's runs. Those behind the checkpoint of a run that resumes are dropped.
pub struct Kept<T>(pub Arc<Mutex<Vec<T>>>);

impl<T: Clone + Send + 'static> Sink<T> for Kept<T> {
    fn push(&mut self, items: &[T], _: &std::task::Waker) -> Result<usize, BoxError> {
        self.0.lock().unwrap().extend_from_slice(items);
        Ok(items.len())
    }

    fn flush(&mut self, _: &std::task::Waker) -> Result<bool, BoxError> {
        Ok(true)
    }

    fn prepare(&mut self, _: u64) -> Result<Vec<u8>, BoxError> {
        Ok(self.0.lock().unwrap().len().to_le_bytes().to_vec())
    }

    fn recover(&mut self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        let kept = match start.prepared {
            Some(prepared) => usize::from_le_bytes(prepared.try_into()?),
            None => 0,
        };
        self.0.lock().unwrap().truncate(kept);
        Ok(())
    }
}

/// The changes that an operator emits.
type Emitted<T> = Arc<Mutex<Vec<RowChange<T>>>>;

/// The changes that the operators emit on one rank.
#[derive(Clone, Default)]
pub struct Results {
    totals: Emitted<(u64, Totals)>,
    scores: Emitted<i64>,
    top: Emitted<Row>,
}

impl Results {
    /// Applies the changes of all ranks.
    fn answer(of_ranks: &[Results]) -> Answer {
        let mut totals = RowTable::default();
        let (mut scores, mut top) = (RowSet::default(), RowSet::default());
        for results in of_ranks {
            for change in results.totals.lock().unwrap().iter() {
                totals.apply(*change).unwrap();
            }
            for change in results.scores.lock().unwrap().iter() {
                scores.apply(*change).unwrap();
            }
            for change in results.top.lock().unwrap().iter() {
                top.apply(*change).unwrap();
            }
        }
        Answer {
            totals: totals.iter().map(|(key, value)| (*key, *value)).collect(),
            scores: scores
                .iter()
                .map(|(score, times)| (*score, times))
                .collect(),
            top: top.iter().map(|(row, times)| (*row, times)).collect(),
        }
    }
}

/// The number of rows in the top of each group.
pub const TOP: u64 = 3;

/// Runs the operators over the changes of each source of a rank. `wait` is called for each change.
pub fn start(
    settings: FlowSettings,
    sources: Vec<Vec<RowChange<Row>>>,
    results: &Results,
    wait: fn(u64),
) -> Result<Running, FlowError> {
    let flow = Flow::with_settings("changes", settings);
    let channels = ["of totals", "of scores", "of top"].map(|name| flow.channel(name));
    let source = |changes: Vec<RowChange<Row>>| {
        let limit = changes.len() as u64;
        let change = move |number| {
            wait(number);
            changes[number as usize]
        };
        Generator::new(change).limit(limit)
    };
    flow.sources("rows", sources.into_iter().map(source))
        .to_all(&channels);
    let [totals, scores, top] = &channels;
    let score = |row: &Row| row.score;
    let aggregate = (
        Count,
        Sum::of(score),
        RetractableMin::of(score),
        RetractableMax::of(score),
    );
    flow.stage("of totals", totals)
        .key_rows(|row| row.group)
        .running("totals", aggregate)
        .sink("totals", Kept(Arc::clone(&results.totals)));
    flow.stage("of scores", scores)
        .key_rows(score)
        .distinct("scores")
        .sink("scores", Kept(Arc::clone(&results.scores)));
    flow.stage("of top", top)
        .key_rows(|row| row.group)
        .top("top", TOP, score)
        .sink("top", Kept(Arc::clone(&results.top)));
    flow.run()
}

/// The retractions that matched no row, by operator, as one rank has counted them.
pub fn unmatched(running: &Running) -> BTreeMap<&'static str, u64> {
    let count = |operator| {
        let state = running.state(&format!("{operator}.unmatched")).unwrap();
        (operator, state.get("count").unwrap().as_u64().unwrap())
    };
    ["totals", "scores", "top"].map(count).into()
}

#[test]
fn the_changes_of_each_prefix_of_the_input_give_the_answer_over_the_prefix() {
    let changes = random_changes(1, 0, 60);
    for end in 0..=changes.len() {
        let prefix = changes[..end].to_vec();
        let results = Results::default();
        let (expected, retractions) = Answer::over([&prefix]);
        let running = start(settings(1, 16), vec![prefix], &results, |_| ()).unwrap();
        running.join().unwrap();
        assert_eq!(Results::answer(&[results]), expected, "after {end} changes");
        assert!(
            unmatched(&running)
                .values()
                .all(|count| *count == retractions)
        );
    }
}

#[test]
fn changes_on_any_number_of_ranks_workers_and_sources_give_the_answer() {
    for (ranks, workers, sources, ring) in
        [(1, 1, 1, 64), (1, 3, 3, 16), (2, 2, 2, 64), (4, 2, 1, 16)]
    {
        let source = |rank: u64, source: u64| random_changes(7, rank * sources + source, 3_000);
        let of_rank = |rank: u32| -> Vec<_> {
            let numbers = 0..sources;
            numbers.map(|number| source(rank.into(), number)).collect()
        };
        let found = on_ranks(ranks, |ranks: &Ranks| {
            let settings = FlowSettings {
                ranks: ranks.clone(),
                ..settings(workers, ring)
            };
            let results = Results::default();
            let running = start(settings, of_rank(ranks.rank()), &results, |_| ()).unwrap();
            running.join().unwrap();
            (results, unmatched(&running))
        });
        let (results, counts): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        let all: Vec<_> = (0..ranks).flat_map(of_rank).collect();
        let (expected, retractions) = Answer::over(&all);
        assert_eq!(Results::answer(&results), expected);
        assert!(retractions > 0);
        for operator in ["totals", "scores", "top"] {
            let count: u64 = counts.iter().map(|counts| counts[operator]).sum();
            assert_eq!(count, retractions, "{operator}");
        }
    }
}
