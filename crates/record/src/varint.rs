//! Zigzag varints of up to 64 bits: seven bits per byte, the lowest bits first.

/// The longest varint.
pub(crate) const VARINT_BYTES_MAX: usize = 10;

/// Reads a number. Returns it and the bytes behind it, or `None` if it is cut off or has more than 64 bits.
#[inline(always)]
pub(crate) fn read(bytes: &[u8]) -> Option<(i64, &[u8])> {
    // Nearly all numbers have one or two bytes: deltas, and lengths of keys, values and records.
    match *bytes {
        [a, ref rest @ ..] if a < 0x80 => Some((unzigzag(u64::from(a)), rest)),
        [a, b, ref rest @ ..] if b < 0x80 => {
            let number = u64::from(a & 0x7f) | u64::from(b) << 7;
            Some((unzigzag(number), rest))
        }
        _ => read_long(bytes),
    }
}

#[cold]
#[inline(never)]
fn read_long(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let mut number = 0;
    for (index, &byte) in bytes.iter().enumerate().take(VARINT_BYTES_MAX) {
        let bits = u64::from(byte & 0x7f);
        let shifted = bits << (7 * index);
        // The tenth byte can hold only the highest of the 64 bits.
        if shifted >> (7 * index) != bits {
            return None;
        }
        number |= shifted;
        if byte < 0x80 {
            return Some((unzigzag(number), &bytes[index + 1..]));
        }
    }
    None
}

/// Writes `number` to the start of `bytes`. Returns the number of bytes written.
#[inline(always)]
pub(crate) fn write(bytes: &mut [u8], number: i64) -> usize {
    let mut left = zigzag(number);
    let mut index = 0;
    while left >= 0x80 {
        bytes[index] = left as u8 | 0x80;
        left >>= 7;
        index += 1;
    }
    bytes[index] = left as u8;
    index + 1
}

/// Returns the size of `number` in bytes.
#[inline(always)]
pub(crate) fn len(number: i64) -> usize {
    let bits = 64 - (zigzag(number) | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

#[inline(always)]
fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

#[inline(always)]
fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(number: i64) -> Vec<u8> {
        let mut bytes = [0; VARINT_BYTES_MAX];
        let length = write(&mut bytes, number);
        bytes[..length].to_vec()
    }

    #[test]
    fn varints_have_their_documented_bytes() {
        for (number, bytes) in [
            (0, &[0x00][..]),
            (-1, &[0x01]),
            (1, &[0x02]),
            (63, &[0x7e]),
            (-64, &[0x7f]),
            (64, &[0x80, 0x01]),
            (8191, &[0xfe, 0x7f]),
            (8192, &[0x80, 0x80, 0x01]),
            (
                i64::MAX,
                &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            ),
            (
                i64::MIN,
                &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            ),
        ] {
            assert_eq!(written(number), bytes, "{number}");
        }
    }

    #[test]
    fn truncated_and_overlong_varints_are_refused() {
        for bytes in [
            &[][..],
            &[0x80],
            &[0x80, 0x80],
            &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02],
            &[
                0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00,
            ],
        ] {
            assert_eq!(read(bytes), None, "{bytes:x?}");
        }
    }

    proptest! {
        #[test]
        fn varints_round_trip(number: i64, shift in 0_u32..64, rest: Vec<u8>) {
            // All magnitudes, not just the large ones that make up most of the range.
            let number = number >> shift;
            let mut bytes = written(number);
            prop_assert_eq!(bytes.len(), len(number));
            bytes.extend(&rest);
            prop_assert_eq!(read(&bytes), Some((number, &rest[..])));
        }
    }
}
