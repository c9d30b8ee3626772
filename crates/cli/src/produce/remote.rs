//! Appends lines to a stream of a server.

use millstream_base::ByteSize;
use millstream_client::{Producer, ProducerConfig, ProducerRecord};
use millstream_connect::ProducerTotals;

use super::{Protocol, tell_totals};
use crate::args::ProduceArgs;
use crate::input::Input;
use crate::lines::{LineError, LineTarget, read_lines};
use crate::remote::{Remote, explained};
use crate::usage::WrongUsage;

/// The least overhead of a chunk with one record, beside key and value.
const CHUNK_FIELDS_BYTES: usize = 74;

pub fn run(args: &ProduceArgs, input: Input, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    if args.producer.is_some() {
        return Err(WrongUsage::error(
            "--producer numbers the lines of a data directory: name it with --data",
        ));
    }
    let settings = remote.stream(&args.stream)?.settings;
    let chunk_bytes_max = settings.chunk_bytes_max.unwrap_or(settings.segment_bytes);
    let producer = {
        let _runtime = remote.runtime().enter();
        Producer::new(remote.client(), ProducerConfig::default())
    };
    let mut lines = Lines {
        remote,
        producer,
        stream: &args.stream,
        protocol: Protocol::new(args),
        chunk_bytes_max,
        sent: 0,
        has_lost: false,
    };
    let result = read_lines(input, chunk_bytes_max, &mut lines);
    // Lines read before an error are stored nevertheless.
    let flushed = lines.flush();
    result.and(flushed)?;
    let totals = ProducerTotals {
        appended_records: lines.sent,
        known_records: 0,
        durable_records: lines.sent,
    };
    match args.acks {
        true => Ok(()),
        false => tell_totals(args, totals, is_json),
    }
}

struct Lines<'a> {
    remote: &'a Remote,
    producer: Producer,
    stream: &'a str,
    protocol: Protocol<'a>,
    chunk_bytes_max: ByteSize,
    sent: u64,
    /// Whether a line was not stored.
    has_lost: bool,
}

impl Lines<'_> {
    fn flush(&mut self) -> anyhow::Result<()> {
        let flushed = self.remote.wait(self.producer.flush());
        self.has_lost |= flushed.is_err();
        flushed?;
        match self.has_lost {
            // After this error, the number of stored lines before it is unknown.
            true => Ok(()),
            false => self.protocol.acknowledge(self.sent),
        }
    }
}

impl LineTarget for Lines<'_> {
    fn line(&mut self, line: &[u8]) -> Result<(), LineError> {
        if line.len() + CHUNK_FIELDS_BYTES > self.chunk_bytes_max.as_usize() {
            return Err(LineError::TooLong {
                chunk_bytes_max: self.chunk_bytes_max,
            });
        }
        let (key, value) = self.protocol.split(line);
        let sent = self.producer.send(ProducerRecord {
            topic: self.stream,
            key,
            value: Some(value),
            ..ProducerRecord::default()
        });
        let sent = self.remote.runtime().block_on(sent);
        sent.map_err(|error| LineError::Other(explained(error)))?;
        self.sent += 1;
        Ok(())
    }

    /// The client sends waiting records by itself; a program that waits for acknowledgements may send no more lines
    /// before they arrive. After a lost record, the command reads no more lines.
    fn end_block(&mut self, _is_drained: bool) -> anyhow::Result<()> {
        match self.protocol.prints_acks {
            true => self.flush(),
            false => self
                .producer
                .error()
                .map_or(Ok(()), |error| Err(explained(error))),
        }
    }
}
