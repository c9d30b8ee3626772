//! The count as a timely dataflow: each of two workers reads its half of the file, splits it into
//! words, keeps those that start with the prefix, and counts them.
//!
//! Words stay where they were read: the dataflow carries containers, which hold a piece of text once and the places of
//! words in it. So no operator copies a word or takes memory for one.

mod measure;
/// Words are found by our own code, so that the comparison covers only the dataflow around it.
#[path = "../../../apps/logparser/src/split.rs"]
mod split;
mod text;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use timely::Accountable;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::{Operator, source};
use timely::dataflow::{Scope, Stream};
use timely::worker::Worker;

use measure::Counted;
use text::Text;

/// As in Cargo.toml.
const VERSION: &str = "0.31.0";
const WORKERS: usize = 2;

type Piece = Rc<Vec<u8>>;

/// Words of one piece of text.
#[derive(Clone, Default)]
struct Words {
    text: Piece,
    places: Vec<Place>,
}

/// Where a word starts and ends.
type Place = (u32, u32);

impl Accountable for Words {
    fn record_count(&self) -> i64 {
        self.places.len() as i64
    }
}

fn main() {
    measure::run("timely", VERSION, count);
}

fn count(file: &Path, prefix: &[u8]) -> Result<Counted, String> {
    let file: Arc<PathBuf> = Arc::new(file.to_owned());
    let prefix: Arc<[u8]> = prefix.into();
    let workers = timely::execute(timely::Config::process(WORKERS), move |worker| {
        let text = Text::part(&file, worker.index(), worker.peers())
            .map_err(|error| format!("cannot read {file:?}: {error}"))?;
        Ok::<Counted, String>(work(worker, text, &prefix))
    })?;
    let mut all = Counted { count: 0, words: 0 };
    for counted in workers.join() {
        let counted = counted??;
        all.count += counted.count;
        all.words += counted.words;
    }
    Ok(all)
}

fn work(worker: &mut Worker, text: Text, prefix: &Arc<[u8]>) -> Counted {
    let counted = Rc::new(Cell::new(Counted { count: 0, words: 0 }));
    worker.dataflow::<u64, _, _>(|scope| {
        let words = split(read(scope, text), &counted);
        count_words(filter(words, prefix.clone()), &counted);
    });
    while worker.has_dataflows() {
        worker.step();
    }
    counted.get()
}

/// One piece each time that it is activated, so that few are in memory at once.
fn read<'scope>(scope: Scope<'scope, u64>, mut text: Text) -> Stream<'scope, u64, Vec<Piece>> {
    source::<_, CapacityContainerBuilder<Vec<Piece>>, _, _>(scope, "read", |capability, info| {
        let activator = scope.activator_for(info.address);
        let mut capability = Some(capability);
        move |output| {
            let Some(time) = &capability else { return };
            match text.next_piece() {
                Some(piece) => {
                    output.session(time).give(Rc::new(piece));
                    activator.activate();
                }
                None => capability = None,
            }
        }
    })
}

fn split<'scope>(
    pieces: Stream<'scope, u64, Vec<Piece>>,
    counted: &Rc<Cell<Counted>>,
) -> Stream<'scope, u64, Words> {
    let counted = counted.clone();
    pieces.unary::<CapacityContainerBuilder<Words>, _, _, _>(Pipeline, "split", |_, _| {
        move |input, output| {
            input.for_each(|time, pieces| {
                let mut session = output.session(&time);
                for text in pieces.drain(..) {
                    let places = text::places_of_words(&text);
                    let mut sum = counted.get();
                    sum.words += places.len() as u64;
                    counted.set(sum);
                    session.give_container(&mut Words { text, places });
                }
            });
        }
    })
}

fn filter<'scope>(
    words: Stream<'scope, u64, Words>,
    prefix: Arc<[u8]>,
) -> Stream<'scope, u64, Words> {
    words.unary::<CapacityContainerBuilder<Words>, _, _, _>(Pipeline, "filter", |_, _| {
        move |input, output| {
            input.for_each(|time, words| {
                let Words { text, places } = words;
                places.retain(|(start, end)| {
                    split::starts_with(&text[*start as usize..*end as usize], &prefix)
                });
                output.session(&time).give_container(words);
            });
        }
    })
}

fn count_words(words: Stream<'_, u64, Words>, counted: &Rc<Cell<Counted>>) {
    let counted = counted.clone();
    words.sink(Pipeline, "count", move |(input, _)| {
        input.for_each(|_, words| {
            let mut sum = counted.get();
            sum.count += words.places.len() as u64;
            counted.set(sum);
        });
    });
}
