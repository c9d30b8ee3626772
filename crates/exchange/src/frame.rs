//! The encoding of parcels between processes: frames.
//!
//! A frame is a header, followed by parts up to its end; all numbers are little-endian.
//!
//! ```text
//! frame    magic u32 | version u32 | part…
//! part     kind u8, and by kind:
//!   1 message   source u32 | target u32 | bytes
//!   2 announced source u32 | target u32 | length u32    the bytes come after the frame; nothing follows it
//!   3 credit    source u32 | target u32 | bytes u64
//!   4 hello     ranks u32 | random u64 | graph u64 | program text | description text
//!   5 failure   rank u32 | text
//!   6 leave
//! bytes, text   length u32, and that many bytes
//! ```
//!
//! Short messages are copied into frames and out of them, so that the receiver keeps only memory that credit pays for.
//! Long ones go from the sender's memory into the receiver's own.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

use crate::credit::MESSAGE_BYTES_MAX;
use crate::error::{FAILURE_BYTES_MAX, Failure};
use crate::fingerprint::{DESCRIPTION_BYTES_MAX, Fingerprint, Hello, PROGRAM_BYTES_MAX};
use crate::parcel::{ChannelId, Parcel};

const MAGIC: u32 = u32::from_le_bytes(*b"MSxr");

/// The version of the protocol between ranks. Both sides are the same program, so there is only one.
const VERSION: u32 = 1;

const HEADER_BYTES: usize = 8;

/// The size, in bytes, at which a frame takes no further parcels.
const FRAME_BYTES: usize = 64 << 10;

/// Messages from this length on are not copied into a frame.
pub const LONG_BYTES: usize = 16 << 10;

/// The largest encoding of a part, except for hellos.
const PART_BYTES_MAX: usize = 13 + LONG_BYTES;

const HELLO_BYTES_MAX: usize = 29 + PROGRAM_BYTES_MAX + DESCRIPTION_BYTES_MAX;

/// The longest frame there can be: one that a hello or any other part has filled.
pub const FRAME_BYTES_MAX: usize = HEADER_BYTES
    + if HELLO_BYTES_MAX > FRAME_BYTES {
        HELLO_BYTES_MAX
    } else {
        FRAME_BYTES
    };

const _: () = assert!(HEADER_BYTES + PART_BYTES_MAX <= FRAME_BYTES);
const _: () = assert!(FAILURE_BYTES_MAX <= LONG_BYTES);

const MESSAGE: u8 = 1;
const ANNOUNCED: u8 = 2;
const CREDIT: u8 = 3;
const HELLO: u8 = 4;
const FAILURE: u8 = 5;
const LEAVE: u8 = 6;

/// The reason why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadFrame {
    #[error("it sent bytes without the beginning of a frame")]
    Magic,
    #[error("it speaks version {0} of the protocol between ranks, and this is version {VERSION}")]
    Version(u32),
    #[error("it sent a frame with a part of the unknown kind {0}")]
    Kind(u8),
    #[error("it sent a frame that is cut short in {0}")]
    CutShort(&'static str),
    #[error("it sent a frame in which {what} has {length} bytes, and it may have {bytes_max}")]
    TooLong {
        what: &'static str,
        length: usize,
        bytes_max: usize,
    },
    #[error("it sent a frame in which {0} is no text")]
    NotText(&'static str),
    #[error("it sent a frame that goes on after it has announced a long message")]
    AfterAnnouncement,
    #[error("it sent {came} bytes where it had announced a message of {announced}")]
    OtherLength { announced: usize, came: usize },
    #[error("it sent the bytes of a long message that it had not announced")]
    NotAnnounced,
    #[error("it sent a frame in place of the message that it had announced")]
    NotFollowed,
}

/// Takes parcels from the front of a queue, as many as one frame has room for. The bytes of a long message,
/// which is the last then, go after the frame.
pub fn pack(queue: &mut VecDeque<Parcel>) -> (Vec<u8>, Option<Bytes>) {
    let mut frame = Vec::with_capacity(256);
    frame.extend_from_slice(&MAGIC.to_le_bytes());
    frame.extend_from_slice(&VERSION.to_le_bytes());
    while let Some(parcel) = queue.front() {
        let is_full = frame.len() + part_bytes(parcel) > FRAME_BYTES;
        if is_full && frame.len() > HEADER_BYTES {
            break;
        }
        if let Some(long) = queue
            .pop_front()
            .and_then(|parcel| write(&mut frame, parcel))
        {
            return (frame, Some(long));
        }
    }
    (frame, None)
}

/// Returns the largest size of a parcel in a frame.
fn part_bytes(parcel: &Parcel) -> usize {
    match parcel {
        Parcel::Message { bytes, .. } if bytes.len() < LONG_BYTES => 13 + bytes.len(),
        Parcel::Hello(hello) => {
            29 + hello.fingerprint.program.len() + hello.fingerprint.description.len()
        }
        Parcel::Failure(failure) => 9 + failure.message.len(),
        Parcel::Message { .. } | Parcel::Credit { .. } | Parcel::Leave => 17,
    }
}

/// Writes one part; returns the bytes that must follow the frame.
fn write(frame: &mut Vec<u8>, parcel: Parcel) -> Option<Bytes> {
    match parcel {
        Parcel::Message { channel, bytes } if bytes.len() >= LONG_BYTES => {
            write_channel(frame, ANNOUNCED, channel);
            frame.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            return Some(bytes);
        }
        Parcel::Message { channel, bytes } => {
            write_channel(frame, MESSAGE, channel);
            write_bytes(frame, &bytes);
        }
        Parcel::Credit { channel, bytes } => {
            write_channel(frame, CREDIT, channel);
            frame.extend_from_slice(&bytes.to_le_bytes());
        }
        Parcel::Hello(hello) => {
            frame.push(HELLO);
            frame.extend_from_slice(&hello.ranks.to_le_bytes());
            frame.extend_from_slice(&hello.random.to_le_bytes());
            frame.extend_from_slice(&hello.fingerprint.graph.to_le_bytes());
            write_bytes(frame, hello.fingerprint.program.as_bytes());
            write_bytes(frame, hello.fingerprint.description.as_bytes());
        }
        Parcel::Failure(failure) => {
            frame.push(FAILURE);
            frame.extend_from_slice(&failure.rank.to_le_bytes());
            write_bytes(frame, failure.message.as_bytes());
        }
        Parcel::Leave => frame.push(LEAVE),
    }
    None
}

fn write_channel(frame: &mut Vec<u8>, kind: u8, channel: ChannelId) {
    frame.push(kind);
    frame.extend_from_slice(&channel.source.to_le_bytes());
    frame.extend_from_slice(&channel.target.to_le_bytes());
}

fn write_bytes(frame: &mut Vec<u8>, bytes: &[u8]) {
    frame.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    frame.extend_from_slice(bytes);
}

/// Decodes the parcels that one rank has sent, in order.
#[derive(Debug, Default)]
pub struct Unpacker {
    /// The long message whose bytes follow.
    announced: Option<(ChannelId, usize)>,
}

impl Unpacker {
    /// Passes on the parcels of a frame, up to the first fault.
    pub fn frame(&mut self, frame: &[u8], mut to: impl FnMut(Parcel)) -> Result<(), BadFrame> {
        if self.announced.is_some() {
            return Err(BadFrame::NotFollowed);
        }
        let mut reader = Reader { rest: frame };
        if reader.u32("its header") != Ok(MAGIC) {
            return Err(BadFrame::Magic);
        }
        match reader.u32("its header")? {
            VERSION => {}
            other => return Err(BadFrame::Version(other)),
        }
        while !reader.rest.is_empty() {
            if self.announced.is_some() {
                return Err(BadFrame::AfterAnnouncement);
            }
            match reader.part()? {
                FramePart::Whole(parcel) => to(parcel),
                FramePart::Announced(channel, length) => self.announced = Some((channel, length)),
            }
        }
        Ok(())
    }

    /// Returns the message whose bytes came after a frame.
    pub fn long(&mut self, bytes: Bytes) -> Result<Parcel, BadFrame> {
        let (channel, announced) = self.announced.take().ok_or(BadFrame::NotAnnounced)?;
        let came = bytes.len();
        if came != announced {
            return Err(BadFrame::OtherLength { announced, came });
        }
        Ok(Parcel::Message { channel, bytes })
    }
}

enum FramePart {
    Whole(Parcel),
    Announced(ChannelId, usize),
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn part(&mut self) -> Result<FramePart, BadFrame> {
        let [kind] = self.array("a kind")?;
        Ok(FramePart::Whole(match kind {
            MESSAGE => {
                let channel = self.channel()?;
                let bytes = Bytes::copy_from_slice(self.bytes("a message", LONG_BYTES - 1)?);
                Parcel::Message { channel, bytes }
            }
            ANNOUNCED => {
                let channel = self.channel()?;
                let length = self.length("an announced message", MESSAGE_BYTES_MAX)?;
                return Ok(FramePart::Announced(channel, length));
            }
            CREDIT => Parcel::Credit {
                channel: self.channel()?,
                bytes: self.u64("credit")?,
            },
            HELLO => Parcel::Hello(self.hello()?),
            FAILURE => {
                let rank = self.u32("a failure")?;
                Parcel::Failure(Failure::new(
                    rank,
                    self.text("a failure", FAILURE_BYTES_MAX)?,
                ))
            }
            LEAVE => Parcel::Leave,
            other => return Err(BadFrame::Kind(other)),
        }))
    }

    fn hello(&mut self) -> Result<Hello, BadFrame> {
        let ranks = self.u32("a hello")?;
        let random = self.u64("a hello")?;
        let fingerprint = Fingerprint {
            graph: self.u64("a hello")?,
            program: self.text("a program's name", PROGRAM_BYTES_MAX)?.to_owned(),
            description: self
                .text("a description", DESCRIPTION_BYTES_MAX)?
                .to_owned(),
        };
        Ok(Hello {
            ranks,
            random,
            fingerprint: Arc::new(fingerprint),
        })
    }

    fn channel(&mut self) -> Result<ChannelId, BadFrame> {
        Ok(ChannelId {
            source: self.u32("a channel")?,
            target: self.u32("a channel")?,
        })
    }

    fn text(&mut self, what: &'static str, bytes_max: usize) -> Result<&'a str, BadFrame> {
        str::from_utf8(self.bytes(what, bytes_max)?).map_err(|_| BadFrame::NotText(what))
    }

    fn bytes(&mut self, what: &'static str, bytes_max: usize) -> Result<&'a [u8], BadFrame> {
        let length = self.length(what, bytes_max)?;
        let (bytes, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(BadFrame::CutShort(what))?;
        self.rest = rest;
        Ok(bytes)
    }

    fn length(&mut self, what: &'static str, bytes_max: usize) -> Result<usize, BadFrame> {
        let length = self.u32(what)? as usize;
        if length > bytes_max {
            return Err(BadFrame::TooLong {
                what,
                length,
                bytes_max,
            });
        }
        Ok(length)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, BadFrame> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, BadFrame> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], BadFrame> {
        let (array, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(BadFrame::CutShort(what))?;
        self.rest = rest;
        Ok(*array)
    }
}

#[cfg(test)]
mod tests;
