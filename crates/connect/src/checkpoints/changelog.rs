//! Changelogs of state elements in streams: the common part of changelogs in a log and on a server.

use std::collections::HashMap;

use millstream_base::{ByteSize, Offset};
use millstream_client::partition_of_key;
use millstream_flow::{BoxError, Change, RestoreChange};
use millstream_log::{CLEANUP_POLICY, COMPACT, DELETE, Durability, Stream};
use millstream_record::{EXPIRES, Record};

use crate::sink::EncodedRecord;

/// The number of partitions of a new changelog. Ranks share all of them, so it does not bound their number.
pub const PARTITIONS: u32 = 4;

/// A changelog of at most as many records and bytes is read before the flow begins: that takes a fraction of a second, and a
/// record that cannot be read refuses the start.
const EAGER_RECORDS_MAX: u64 = 1 << 16;
const EAGER_BYTES_MAX: u64 = 16 << 20;

/// Whether changes of this number and these bytes take long to read.
pub fn is_large(records: u64, bytes: u64) -> bool {
    records > EAGER_RECORDS_MAX || bytes > EAGER_BYTES_MAX
}

/// Encodes a change as a record.
pub type Encode = fn(&Change, &mut EncodedRecord);

/// An error of a stream that is not the changelog of a state element, or cannot be restored.
#[derive(thiserror::Error)]
pub enum ChangelogError {
    /// The stream was created with other settings.
    #[error(
        "stream {stream} holds the state of a flow, and its setting cleanup.policy is {policy:?}: set it to \"compact\", so that no state is removed, or delete the stream if it is of something else"
    )]
    NotKeyed {
        /// The stream.
        stream: String,
        /// The setting.
        policy: String,
    },
    /// The stream was created with a weaker durability, which cannot change.
    #[error(
        "stream {stream} holds the state of a flow, and its setting millstream.durability is {durability:?}, so a crash could lose state that the flow's results follow from: let the flow create the stream, or create it with \"sync\""
    )]
    NotSynced {
        /// The stream.
        stream: String,
        /// The setting.
        durability: String,
    },
    /// A record is not a change of the state element.
    #[error(
        "stream {stream}, partition {partition}, offset {offset}: {why}; has another program written to the flow's state, or an earlier version of this one? Delete this stream, remove all checkpoints of the flow, and start it anew"
    )]
    Foreign {
        /// The stream.
        stream: String,
        /// The partition of the record.
        partition: u32,
        /// The offset of the record.
        offset: u64,
        /// The fault of the record.
        why: String,
    },
    /// A change is larger than the stream takes at once.
    #[error(
        "stream {stream}: the change of key {key} has {bytes}, and the stream takes {bytes_max} at once: raise its setting max.message.bytes, or let the state keep smaller values"
    )]
    TooLarge {
        /// The stream.
        stream: String,
        /// The key as text, or its bytes in hexadecimal.
        key: String,
        /// The size of the change.
        bytes: ByteSize,
        /// The bound, if it is known.
        bytes_max: String,
    },
    /// A change is of a later checkpoint than the one that the flow resumes from.
    #[error(
        "stream {stream}, partition {partition}, offset {offset}: the change is of checkpoint {checkpoint}, and the flow resumes from checkpoint {resumed}; was its transaction committed by force? Remove all checkpoints of the flow and start it anew"
    )]
    Ahead {
        /// The stream.
        stream: String,
        /// The partition of the record.
        partition: u32,
        /// The offset of the record.
        offset: u64,
        /// Its checkpoint.
        checkpoint: u64,
        /// The checkpoint that the flow resumes from.
        resumed: u64,
    },
    /// The first changes are not there any more.
    #[error(
        "stream {stream}, partition {partition}: the records before offset {earliest} were removed, and with them state of the flow: delete this stream, remove all checkpoints of the flow, and start it anew"
    )]
    Removed {
        /// The stream.
        stream: String,
        /// The partition.
        partition: u32,
        /// The first offset that is left.
        earliest: u64,
    },
    /// Changes that the checkpoint names are lost.
    #[error(
        "stream {stream}: {transaction} was aborted by force, and with it changes that the checkpoint names, so the state cannot be restored; remove all checkpoints of the flow and start it anew"
    )]
    Aborted {
        /// The stream.
        stream: String,
        /// The transaction.
        transaction: String,
    },
    /// Changes behind an open transaction of another program cannot be read.
    #[error(
        "stream {stream}, partition {partition}: the transaction of {producer} is open, so the state behind it cannot be restored; end it with `millstream transaction abort --force`"
    )]
    Undecided {
        /// The stream.
        stream: String,
        /// The partition.
        partition: u32,
        /// The producer of the transaction.
        producer: String,
    },
}

millstream_base::debug_as_display!(ChangelogError);

/// Returns the name of the stream that holds the changes of a state element.
pub fn stream_name(flow: &str, element: &str) -> String {
    format!("{flow}.state.{element}")
}

/// The header with the number of a change's checkpoint, in digits.
const CHECKPOINT: &[u8] = b"checkpoint";

/// Encodes a change, with its end as the stream compares it with its clock.
pub fn encode(change: &Change, record: &mut EncodedRecord) {
    encode_for_ever(change, record);
    if let Some(end) = change.expires.filter(|_| change.value.is_some()) {
        let end = end.to_string().into_bytes();
        record
            .headers
            .push((EXPIRES.as_bytes().to_vec(), Some(end)));
    }
}

/// Encodes a change, without its end.
pub fn encode_for_ever(change: &Change, record: &mut EncodedRecord) {
    let checkpoint = change.checkpoint.to_string().into_bytes();
    record.headers.push((CHECKPOINT.to_vec(), Some(checkpoint)));
    record.key.extend_from_slice(&change.key);
    record.has_empty_key = true;
    match &change.value {
        Some(value) => record.value.extend_from_slice(value),
        None => record.is_deletion = true,
    }
}

/// Fails unless the stream keeps the newest record of each key for ever, from the moment when its producer is answered.
pub fn check_settings(
    stream: &str,
    policy: Option<&str>,
    durability: Option<&str>,
) -> Result<(), ChangelogError> {
    let policy = policy.unwrap_or(DELETE);
    if !policy.split(',').all(|item| item.trim() == COMPACT) {
        return Err(ChangelogError::NotKeyed {
            stream: stream.to_owned(),
            policy: policy.to_owned(),
        });
    }
    match durability {
        Some(durability) if durability != Durability::Sync.name() => {
            Err(ChangelogError::NotSynced {
                stream: stream.to_owned(),
                durability: durability.to_owned(),
            })
        }
        _ => Ok(()),
    }
}

/// [Checks](check_settings) a stream of a log in the process.
pub fn check_stream(stream: &Stream) -> Result<(), ChangelogError> {
    let config = stream.config();
    let policy = config.settings.get(CLEANUP_POLICY).map(String::as_str);
    check_settings(stream.name(), policy, Some(config.durability.name()))
}

/// Bytes of a key that errors show.
const SHOWN_BYTES: usize = 100;

/// Returns a key's text, or its bytes in hexadecimal; of a long key the beginning.
pub fn text_of_key(key: &[u8]) -> String {
    let shown = &key[..key.len().min(SHOWN_BYTES)];
    let text = match std::str::from_utf8(shown) {
        // A character is cut in two.
        Err(error) if error.error_len().is_none() && shown.len() < key.len() => {
            std::str::from_utf8(&shown[..error.valid_up_to()])
        }
        text => text,
    };
    let shown = match text {
        Ok(text) if !text.chars().any(char::is_control) => format!("{text:?}"),
        _ => shown
            .iter()
            .fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}")),
    };
    match key.len() {
        ..=SHOWN_BYTES => shown,
        bytes => format!("{shown}… ({bytes} bytes)"),
    }
}

/// Names the stream in an error that does not name it.
pub fn of_stream(stream: &str, error: BoxError) -> BoxError {
    match error.is::<ChangelogError>() {
        true => error,
        false => format!("stream {stream}: {error}").into(),
    }
}

/// A partition that is restored.
pub struct Restoring<'a> {
    pub stream: &'a str,
    pub partition: u32,
    /// The number of the stream's partitions.
    pub partitions: usize,
    /// The checkpoint that the flow resumes from, if it does.
    pub resumed: Option<u64>,
}

/// Changes that could not be read or do not belong to the state, by key: only the last change of a key has to. An element
/// that began anew has older ones, maybe of another type.
pub struct Unread<E = ChangelogError>(HashMap<Vec<u8>, E>);

/// Unread changes whose keys are kept until the end.
const UNREAD_MAX: usize = 100_000;

impl<E> Default for Unread<E> {
    fn default() -> Self {
        Unread(HashMap::new())
    }
}

impl<E> Unread<E> {
    /// Notes whether a change was read. Fails if too many were not.
    pub fn note(&mut self, key: &[u8], read: Result<(), E>) -> Result<(), E> {
        match read {
            Err(error) if self.0.len() >= UNREAD_MAX => return Err(error),
            Err(error) => drop(self.0.insert(key.to_vec(), error)),
            Ok(()) if self.0.is_empty() => {}
            Ok(()) => drop(self.0.remove(key)),
        }
        Ok(())
    }

    /// Fails if a key's last change was not read.
    pub fn check(self) -> Result<(), E> {
        self.0.into_values().next().map_or(Ok(()), Err)
    }
}

impl Restoring<'_> {
    /// Fails if changes were removed, also where the flow begins anew: otherwise it could never resume.
    pub fn check_start(&self, earliest: u64) -> Result<(), ChangelogError> {
        match earliest {
            0 => Ok(()),
            earliest => Err(ChangelogError::Removed {
                stream: self.stream.to_owned(),
                partition: self.partition,
                earliest,
            }),
        }
    }

    /// Hands a record to `each`, also if its change has ended by the clock of the stream and is not dropped yet.
    pub fn restore(
        &self,
        record: &Record<'_>,
        each: &mut RestoreChange<'_>,
        unread: &mut Unread,
    ) -> Result<(), ChangelogError> {
        let Some(key) = record.key else {
            return Err(self.foreign(record.offset, "it has no key"));
        };
        if partition_of_key(key, self.partitions) != self.partition as usize {
            return Err(self.foreign(record.offset, "its key belongs to another partition"));
        }
        let read = match each(key, record.value) {
            // A key that cannot be read has no value any more.
            _ if record.value.is_none() => Ok(()),
            read => read.map_err(|error| self.foreign(record.offset, &error.to_string())),
        };
        let headers = record.headers().map(|it| (it.name, it.value));
        let checked = read.and_then(|()| self.check_checkpoint(record.offset, headers));
        unread.note(key, checked)
    }

    /// Checks the headers of a change: it is of no later checkpoint than the flow.
    pub fn check_checkpoint<'r>(
        &self,
        offset: Offset,
        mut headers: impl Iterator<Item = (&'r [u8], Option<&'r [u8]>)>,
    ) -> Result<(), ChangelogError> {
        let header = headers.find(|(name, _)| *name == CHECKPOINT);
        let number = header.and_then(|(_, value)| std::str::from_utf8(value?).ok()?.parse().ok());
        let Some(checkpoint) = number else {
            let why =
                "it has no header \"checkpoint\" with a number, as the flow's own changes have";
            return Err(self.foreign(offset, why));
        };
        match self.resumed {
            Some(resumed) if checkpoint > resumed => Err(ChangelogError::Ahead {
                stream: self.stream.to_owned(),
                partition: self.partition,
                offset: offset.0,
                checkpoint,
                resumed,
            }),
            _ => Ok(()),
        }
    }

    fn foreign(&self, offset: Offset, why: &str) -> ChangelogError {
        ChangelogError::Foreign {
            stream: self.stream.to_owned(),
            partition: self.partition,
            offset: offset.0,
            why: why.to_owned(),
        }
    }
}
