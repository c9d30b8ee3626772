//! Dead letters for tests.

use std::task::Waker;

use millstream::log::Log;
use millstream_connect::{StoredLetter, StreamSource};
use millstream_flow::{Output, Parts, Source, SourceStatus};

/// Returns the committed letters of a stream; none if the stream does not exist.
pub fn read(log: &Log, stream: &str) -> Vec<StoredLetter> {
    let Ok(stream) = log.stream(stream) else {
        return Vec::new();
    };
    let mut source = StreamSource::bounded(&stream);
    let mut output = Output::default();
    while source.poll(&mut output, 1, Waker::noop()).unwrap() == SourceStatus::Ready {}
    let mut letters = Vec::new();
    for chunks in output.items() {
        chunks.for_each_part(|record| letters.push(StoredLetter::read(record)));
    }
    letters
}
