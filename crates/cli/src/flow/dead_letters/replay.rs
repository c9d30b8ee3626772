//! `millstream flow dead-letters replay`

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use millstream_base::Offset;
use millstream_client::{
    ClientError, Header, ProducerConfig, ProducerRecord, TopicPartition, TransactionConfig,
    TransactionalProducer,
};
use millstream_flow::Origin;
use serde_json::json;

use super::letters::{Letter, Letters, replayed, stream_id};
use super::{LetterStream, flow_of, group_of};
use crate::args::ReplayDeadLettersArgs;
use crate::console::{count_of, print, print_json, tell};
use crate::remote::Remote;
use crate::stop::Stop;

/// The bound of letters in one transaction, beside one read, so that it ends long before its timeout.
const LETTERS_MAX: usize = 1_000;

/// The timeout after which the server aborts a transaction.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How often the replay checks whether readers see the committed records.
const SEEN_INTERVAL: Duration = Duration::from_millis(5);

/// Headers of a replayed record: the letter that it comes from, and the number of replays.
const REPLAY_OF: &str = "replay.of";
const REPLAY_TIMES: &str = "replay.times";

/// The result of a replay.
#[derive(Default)]
struct Replayed {
    /// Written records, by stream.
    streams: BTreeMap<String, u64>,
    /// Letters that hold no record.
    without_record: u64,
}

pub fn run(
    args: &ReplayDeadLettersArgs,
    remote: &Remote,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<()> {
    let flow = flow_of(&args.flow);
    let stream = LetterStream::find(remote, flow, args.stream.as_deref())?;
    let mut replay = Replay::begin(remote, flow, &stream)?;
    let left = args.limit.unwrap_or(u64::MAX);
    let result = replay.all(left, args.again, stop);
    if result.is_err() {
        // An open transaction would block readers until its timeout.
        let _ = remote.wait(replay.producer.abort());
    }
    result.map_err(|error| explained(error, flow))?;
    let Replayed {
        streams,
        without_record,
    } = replay.replayed;
    if is_json {
        return print_json(&json!({
            "flow": flow,
            "replayed": streams.values().sum::<u64>(),
            "streams": streams,
            "without_record": without_record,
        }));
    }
    print(|out| {
        if streams.is_empty() {
            let what = match args.again {
                true => "no dead letters",
                false => {
                    "no dead letters that were not replayed; --again replays all from the start"
                }
            };
            writeln!(out, "flow {flow} has {what}")?;
        }
        for (stream, count) in &streams {
            writeln!(
                out,
                "wrote {} to {stream} again",
                count_of(*count, "record")
            )?;
        }
        Ok(())
    })?;
    if without_record > 0 {
        tell(format_args!(
            "warning: {} cannot be replayed, since the flow did not know the record, or it was too large: `millstream flow \
             dead-letters list {flow}{}` shows them",
            count_of(without_record, "letter"),
            match stream.flow {
                Some(_) => String::new(),
                None => format!(" --stream {}", stream.name),
            }
        ));
    }
    Ok(())
}

/// Returns the error of a replay that runs at the same time as another one of the flow.
fn explained(error: anyhow::Error, flow: &str) -> anyhow::Error {
    let is_fenced = |error: &anyhow::Error| {
        let error = error.downcast_ref::<ClientError>();
        error.is_some_and(ClientError::is_fenced)
    };
    match is_fenced(&error) {
        true => anyhow!(
            "another replay of flow {flow} has begun, or this one took longer than {TIMEOUT:?} for {LETTERS_MAX} letters; \
             start it again, it goes on where the last one was: {error}"
        ),
        false => error,
    }
}

struct Replay<'a> {
    remote: &'a Remote,
    flow: &'a str,
    stream: &'a LetterStream,
    producer: TransactionalProducer,
    /// The number of partitions of each stream.
    partitions: HashMap<String, u32>,
    replayed: Replayed,
}

impl<'a> Replay<'a> {
    /// Ends the transaction that another replay of the flow has left open, before it reads that replay's position.
    fn begin(
        remote: &'a Remote,
        flow: &'a str,
        stream: &'a LetterStream,
    ) -> anyhow::Result<Replay<'a>> {
        let config = TransactionConfig {
            id: group_of(flow),
            timeout: TIMEOUT,
            two_phase: false,
        };
        let client = remote.client();
        let producer = TransactionalProducer::new(client, ProducerConfig::default(), config);
        Ok(Replay {
            remote,
            flow,
            stream,
            producer: remote.wait(producer)?,
            partitions: HashMap::new(),
            replayed: Replayed::default(),
        })
    }

    fn all(&mut self, limit: u64, is_again: bool, stop: &Stop) -> anyhow::Result<()> {
        let done = match is_again {
            true => HashMap::new(),
            false => replayed(self.remote, self.flow, &self.stream.name)?,
        };
        let mut letters = Letters::open(self.remote, &self.stream.name, &done)?;
        let mut left = limit;
        while left > 0
            && let Some(found) = letters.next(stop)?
        {
            let mut own = 0;
            let fits = |letter: &&Letter| {
                own += u64::from(self.stream.flow_of(letter) == self.flow);
                own <= left
            };
            let taken = found.iter().take_while(fits).count();
            for letters in found[..taken].chunks(LETTERS_MAX) {
                self.replay(letters)?;
            }
            left -= own.min(left);
        }
        self.wait_until_seen()
    }

    /// Waits until readers see the committed records, since a server may acknowledge the commit earlier.
    fn wait_until_seen(&self) -> anyhow::Result<()> {
        let client = self.remote.client();
        let id = group_of(self.flow);
        let started_at = Instant::now();
        while let Some(found) = self.remote.wait(client.transaction(&id))?
            && found.state.starts_with("Prepare")
            && started_at.elapsed() < TIMEOUT
        {
            thread::sleep(SEEN_INTERVAL);
        }
        Ok(())
    }

    /// Writes the records of the flow's letters among these, and commits the position in one transaction.
    fn replay(&mut self, letters: &[Letter]) -> anyhow::Result<()> {
        let mut done = BTreeMap::new();
        let mut written: BTreeMap<String, u64> = BTreeMap::new();
        let mut without_record = 0;
        self.producer.begin()?;
        for letter in letters {
            done.insert(letter.place.clone(), Offset(letter.offset.0 + 1));
            if self.stream.flow_of(letter) != self.flow {
                continue;
            }
            match &letter.letter.original {
                Some(original) => {
                    self.write(letter, original)?;
                    *written.entry(original.stream.clone()).or_default() += 1;
                }
                None => without_record += 1,
            }
        }
        let group = group_of(self.flow);
        let id = stream_id(self.remote, &self.stream.name)?;
        let committed = self.producer.commit_offsets(&group, &done, &id);
        self.remote.wait(committed)?;
        self.remote.wait(self.producer.commit())?;
        self.replayed.without_record += without_record;
        for (stream, count) in written {
            *self.replayed.streams.entry(stream).or_default() += count;
        }
        Ok(())
    }

    fn write(&mut self, letter: &Letter, original: &Origin) -> anyhow::Result<()> {
        let Letter { place, offset, .. } = letter;
        let TopicPartition { topic, partition } = place;
        let partitions = self.partitions(&original.stream, letter)?;
        let names = [REPLAY_OF, REPLAY_TIMES].map(str::as_bytes);
        let times = original.headers.iter().find_map(|(name, value)| {
            let value = str::from_utf8(value.as_deref()?).ok()?;
            (name == names[1]).then(|| value.parse::<u64>().ok())?
        });
        let of = format!("{topic}, partition {partition}, offset {offset}");
        let times = times.unwrap_or(0).saturating_add(1).to_string();
        let marks = [(names[0], of.as_bytes()), (names[1], times.as_bytes())];
        let marks = marks.map(|(name, value)| Header {
            name,
            value: Some(value),
        });
        let headers = original.headers.iter();
        let headers = headers.filter(|(name, _)| !names.contains(&name.as_slice()));
        let headers = headers.map(|(name, value)| Header {
            name,
            value: value.as_deref(),
        });
        let headers: Vec<_> = headers.chain(marks).collect();
        // A recreated stream may have fewer partitions: then the key selects one.
        let partition = (original.partition < partitions).then_some(original.partition);
        let record = ProducerRecord {
            topic: &original.stream,
            partition: partition.and_then(|partition| i32::try_from(partition).ok()),
            timestamp: Some(original.timestamp),
            key: original.key.as_deref(),
            value: original.value.as_deref(),
            headers: &headers,
        };
        self.remote.wait(self.producer.send(record))?;
        Ok(())
    }

    /// Returns the number of partitions of the stream from which a letter's record comes.
    fn partitions(&mut self, stream: &str, letter: &Letter) -> anyhow::Result<u32> {
        if let Some(partitions) = self.partitions.get(stream) {
            return Ok(*partitions);
        }
        let found = self.remote.wait(self.remote.client().stream(stream));
        let found = found.map_err(|error| {
            let is_gone = error
                .downcast_ref::<ClientError>()
                .is_some_and(ClientError::is_unknown_stream);
            match is_gone {
                true => anyhow!(
                    "stream {stream} is gone, of which the record of the dead letter at offset {} of {} is: \
                     `millstream stream create {stream}` makes it again",
                    letter.offset,
                    letter.place.topic
                ),
                false => error,
            }
        })?;
        let partitions = found.lanes.len() as u32;
        if partitions == 0 {
            bail!("stream {stream} has no partitions");
        }
        self.partitions.insert(stream.to_owned(), partitions);
        Ok(partitions)
    }
}
