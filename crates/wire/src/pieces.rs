//! An outgoing frame in pieces, so that large payloads are written without a copy.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::EncodeError;
use crate::frame::FRAME_HEADER_BYTES;

/// Payloads of fewer bytes are copied, since a separate piece costs more.
pub const SHARED_BYTES_MIN: usize = 1024;

/// A whole frame, with its length, in pieces for vectored writes. As a [`Buf`] it is the unwritten rest
/// of the frame.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pieces {
    pieces: VecDeque<Bytes>,
    bytes: usize,
    /// The bytes of payloads that were not copied, written ones included.
    in_place_bytes: usize,
}

impl Pieces {
    /// Returns the unwritten pieces.
    pub fn iter(&self) -> impl Iterator<Item = &Bytes> {
        self.pieces.iter()
    }

    /// Returns the bytes of payloads that were not copied into the frames, written ones included.
    pub fn in_place_bytes(&self) -> usize {
        self.in_place_bytes
    }

    /// Appends another frame.
    pub fn append(&mut self, mut other: Pieces) {
        self.bytes += other.bytes;
        self.in_place_bytes += other.in_place_bytes;
        self.pieces.append(&mut other.pieces);
    }

    /// Returns a copy of the unwritten bytes, which pins no other memory.
    pub fn into_copy(mut self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.bytes);
        bytes.put(&mut self);
        bytes.freeze()
    }

    /// Returns the unwritten bytes in one piece. Several pieces are copied.
    pub fn into_bytes(mut self) -> Bytes {
        self.copy_to_bytes(self.bytes)
    }
}

impl FromIterator<Bytes> for Pieces {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Pieces {
        let pieces: VecDeque<Bytes> = pieces
            .into_iter()
            .filter(|piece| !piece.is_empty())
            .collect();
        Pieces {
            bytes: pieces.iter().map(Bytes::len).sum(),
            pieces,
            in_place_bytes: 0,
        }
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map(Bytes::as_ref).unwrap_or_default()
    }

    fn chunks_vectored<'a>(&'a self, target: &mut [IoSlice<'a>]) -> usize {
        let filled = self.pieces.iter().zip(target);
        filled
            .map(|(piece, slot)| *slot = IoSlice::new(piece))
            .count()
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.bytes, "only unwritten bytes can be written");
        self.bytes -= count;
        while let Some(piece) = self.pieces.front_mut() {
            if count < piece.len() {
                piece.advance(count);
                return;
            }
            count -= piece.len();
            // Release the piece at once: it may pin a segment or a window of catch-up reads.
            self.pieces.pop_front();
        }
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        match self.pieces.front_mut() {
            Some(piece) if piece.len() >= count => {
                let bytes = piece.split_to(count);
                self.bytes -= count;
                if piece.is_empty() {
                    self.pieces.pop_front();
                }
                bytes
            }
            _ => {
                assert!(count <= self.bytes, "only unwritten bytes can be copied");
                let mut bytes = BytesMut::with_capacity(count);
                bytes.put(self.take(count));
                bytes.freeze()
            }
        }
    }
}

/// Writes one frame.
#[derive(Debug)]
pub(crate) struct Output {
    /// All copied bytes, from the frame's length on.
    copied: BytesMut,
    /// The payloads in between, each with its position in `copied`.
    shared: Vec<(usize, Bytes)>,
    shared_bytes: usize,
    /// The version of a native message. Set before it is encoded.
    version: i16,
}

impl Output {
    pub(crate) fn new() -> Output {
        let mut copied = BytesMut::with_capacity(256);
        copied.put_bytes(0, FRAME_HEADER_BYTES);
        Output {
            copied,
            shared: Vec::new(),
            shared_bytes: 0,
            version: 0,
        }
    }

    /// Returns the version of the native message that is encoded.
    pub(crate) fn version(&self) -> i16 {
        self.version
    }

    pub(crate) fn set_version(&mut self, version: i16) {
        self.version = version;
    }

    /// Returns the buffer for all fields except large payloads.
    pub(crate) fn copied(&mut self) -> &mut BytesMut {
        &mut self.copied
    }

    /// Writes a payload; a large one is not copied.
    pub(crate) fn put_shared(&mut self, payload: &Bytes) {
        if payload.len() < SHARED_BYTES_MIN {
            self.copied.put_slice(payload);
        } else {
            self.shared.push((self.copied.len(), payload.clone()));
            self.shared_bytes += payload.len();
        }
    }

    /// Returns the whole frame.
    pub(crate) fn finish(mut self) -> Result<Pieces, EncodeError> {
        let bytes = self.copied.len() - FRAME_HEADER_BYTES + self.shared_bytes;
        let Ok(length) = i32::try_from(bytes) else {
            return Err(EncodeError::TooLarge { bytes });
        };
        self.copied[..FRAME_HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
        let mut copied = self.copied.freeze();
        let mut pieces = Vec::with_capacity(2 * self.shared.len() + 1);
        let mut position = 0;
        for (at, payload) in self.shared {
            pieces.push(copied.split_to(at - position));
            pieces.push(payload);
            position = at;
        }
        pieces.push(copied);
        Ok(Pieces {
            in_place_bytes: self.shared_bytes,
            ..pieces.into_iter().collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Pieces {
        let mut output = Output::new();
        output.copied().put_slice(b"head");
        output.put_shared(&Bytes::from_static(&[1; SHARED_BYTES_MIN]));
        output.put_shared(&Bytes::from_static(&[2; SHARED_BYTES_MIN]));
        output.put_shared(&Bytes::from_static(b"small"));
        output.finish().unwrap()
    }

    #[test]
    fn large_payloads_become_separate_pieces_and_small_ones_are_copied() {
        let pieces = frame();
        let lengths: Vec<usize> = pieces.iter().map(Bytes::len).collect();
        assert_eq!(lengths, [8, SHARED_BYTES_MIN, SHARED_BYTES_MIN, 5]);
        assert_eq!(pieces.in_place_bytes(), 2 * SHARED_BYTES_MIN);
        let bytes = pieces.into_bytes();
        assert_eq!(bytes[..4], (bytes.len() as u32 - 4).to_be_bytes());
        assert_eq!(&bytes[4..9], b"head\x01");
        assert_eq!(&bytes[bytes.len() - 6..], b"\x02small");
    }

    #[test]
    fn appended_frames_are_sent_one_after_the_other() {
        let mut both = frame();
        both.append(frame());
        let whole = frame().into_bytes();
        assert_eq!(both.remaining(), 2 * whole.len());
        assert_eq!(both.into_bytes(), [&whole[..], &whole[..]].concat());
    }

    #[test]
    fn frames_are_written_in_steps_of_any_size() {
        let whole = frame().into_bytes();
        for step in [1, 7, 1000, SHARED_BYTES_MIN, 1500, whole.len()] {
            let mut pieces = frame();
            let mut written = Vec::new();
            while pieces.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 3];
                let filled = pieces.chunks_vectored(&mut slices);
                let gathered: Vec<u8> = slices[..filled]
                    .iter()
                    .flat_map(|slice| slice.iter().copied())
                    .collect();
                let count = gathered.len().min(step);
                written.extend_from_slice(&gathered[..count]);
                pieces.advance(count);
            }
            assert_eq!(written, whole, "step {step}");
            assert_eq!(pieces.iter().count(), 0);
        }
    }
}
