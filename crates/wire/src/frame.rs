//! Splitting of received bytes into frames: four bytes of length, then the message.

use bytes::{Bytes, BytesMut};

use crate::error::FrameError;

/// The size of a frame's length field, in bytes.
pub const FRAME_HEADER_BYTES: usize = 4;

/// Takes the next whole frame out of `buffer`, without its length. The frame shares the buffer's memory.
/// Returns `None` if the frame is incomplete, and allocates nothing for the missing bytes.
///
/// ```
/// use bytes::BytesMut;
/// use millstream_wire::{FrameError, take_frame};
///
/// let mut buffer = BytesMut::from(&b"\0\0\0\x03onetail"[..]);
/// assert_eq!(take_frame(&mut buffer, 100)?.as_deref(), Some(&b"one"[..]));
///
/// let mut buffer = BytesMut::from(&b"\x7f\xff\xff\xff"[..]);
/// let refused = FrameError::FrameTooLarge { announced: i32::MAX as usize, max: 100 };
/// assert_eq!(take_frame(&mut buffer, 100), Err(refused));
/// # Ok::<(), FrameError>(())
/// ```
///
/// # Errors
/// If the announced length is negative, or more than `bytes_max`. The connection is then unusable.
pub fn take_frame(buffer: &mut BytesMut, bytes_max: usize) -> Result<Option<Bytes>, FrameError> {
    let Some(length) = announced(buffer, bytes_max)? else {
        return Ok(None);
    };
    let end = FRAME_HEADER_BYTES + length;
    if buffer.len() < end {
        return Ok(None);
    }
    let frame = buffer.split_to(end).freeze();
    Ok(Some(frame.slice(FRAME_HEADER_BYTES..)))
}

/// Returns the number of bytes that `buffer` lacks for the next whole frame, or for the frame's length if
/// that is incomplete. A reader of large frames can reserve up to this much room as the bytes arrive.
///
/// # Errors
/// See [`take_frame`].
pub fn missing_bytes(buffer: &[u8], bytes_max: usize) -> Result<usize, FrameError> {
    let whole = announced(buffer, bytes_max)?
        .map_or(FRAME_HEADER_BYTES, |length| FRAME_HEADER_BYTES + length);
    Ok(whole.saturating_sub(buffer.len()))
}

/// Returns the length of the next frame; `None` if the length is incomplete.
fn announced(buffer: &[u8], bytes_max: usize) -> Result<Option<usize>, FrameError> {
    let Some(length) = buffer.first_chunk() else {
        return Ok(None);
    };
    let announced = i32::from_be_bytes(*length);
    let length =
        usize::try_from(announced).map_err(|_| FrameError::NegativeLength { announced })?;
    if length > bytes_max {
        return Err(FrameError::FrameTooLarge {
            announced: length,
            max: bytes_max,
        });
    }
    Ok(Some(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decoder_takes_frames_one_by_one_from_bytes_split_anywhere() {
        let sent = b"\0\0\0\x03one\0\0\0\0\0\0\0\x05three";
        for cut in 0..=sent.len() {
            let mut buffer = BytesMut::new();
            let mut frames = Vec::new();
            for part in [&sent[..cut], &sent[cut..]] {
                buffer.extend_from_slice(part);
                while let Some(frame) = take_frame(&mut buffer, 5).unwrap() {
                    frames.push(frame);
                }
            }
            assert_eq!(frames, [&b"one"[..], b"", b"three"], "cut at {cut}");
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn a_frame_is_a_slice_of_the_buffer() {
        let mut buffer = BytesMut::from(&b"\0\0\0\x03one"[..]);
        let memory = buffer.as_ptr_range();
        let frame = take_frame(&mut buffer, 3).unwrap().unwrap();
        assert_eq!(
            frame.as_ptr(),
            memory.start.wrapping_add(FRAME_HEADER_BYTES)
        );
    }

    #[test]
    fn a_decoder_counts_missing_bytes_without_allocating_them() {
        let check = |bytes: &[u8], missing| {
            assert_eq!(missing_bytes(bytes, 1 << 30), Ok(missing), "{bytes:?}");
        };
        check(b"", 4);
        check(b"\0\0\0", 1);
        check(b"\0\0\0\x03", 3);
        check(b"\0\0\0\x03one", 0);
        check(b"\0\0\0\x03onetail", 0);
        check(b"\x10\0\0\0one", (1 << 28) - 3);

        let mut buffer = BytesMut::from(&b"\x10\0\0\0one"[..]);
        assert_eq!(take_frame(&mut buffer, 1 << 30), Ok(None));
        assert!(buffer.capacity() < 100);
    }

    #[test]
    fn lengths_out_of_bounds_are_refused_before_the_frame_arrives() {
        let mut buffer = BytesMut::from(&b"\xff\xff\xff\xff"[..]);
        let refused = Err(FrameError::NegativeLength { announced: -1 });
        assert_eq!(take_frame(&mut buffer, 100), refused);
        let mut buffer = BytesMut::from(&b"\0\0\0\x65"[..]);
        let refused = FrameError::FrameTooLarge {
            announced: 101,
            max: 100,
        };
        assert_eq!(take_frame(&mut buffer, 100), Err(refused.clone()));
        assert_eq!(missing_bytes(&buffer, 100), Err(refused));
    }
}
