//! Splits text into words. This file uses no other, so that the benchmarks' peer in timely dataflow includes it, too.

/// Calls `each` for the words of a text: the longest runs of bytes that are not ASCII white space.
///
/// It searches 64 bytes at once for white space, which compilers turn into few instructions, and then visits only the
/// positions of white space.
#[inline]
pub fn for_each_word<'t>(text: &'t [u8], mut each: impl FnMut(&'t [u8])) {
    let mut start = 0;
    let (blocks, rest) = text.as_chunks::<64>();
    let mut end_at = |end| {
        if start < end {
            each(&text[start..end]);
        }
        start = end + 1;
    };
    for (number, block) in blocks.iter().enumerate() {
        let mut gaps = white_space_in(block);
        while gaps != 0 {
            end_at(64 * number + gaps.trailing_zeros() as usize);
            gaps &= gaps - 1;
        }
    }
    for (at, byte) in rest.iter().enumerate() {
        if is_white_space(*byte) {
            end_at(text.len() - rest.len() + at);
        }
    }
    end_at(text.len());
}

/// A copy of the definition in `millstream_base::text`, which this file cannot use; a test compares the two.
#[inline]
fn is_white_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// Returns a bit for each byte, from the lowest on: whether it is white space.
#[inline]
pub fn white_space_in(block: &[u8; 64]) -> u64 {
    /// The product of this and a word of eight bytes, each 0 or 1, has the eight bits in its highest byte.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let is_white_space = block.map(|byte| u8::from(is_white_space(byte)));
    let (eights, _) = is_white_space.as_chunks::<8>();
    let mut mask = [0; 8];
    for (byte, eight) in mask.iter_mut().zip(eights) {
        *byte = (u64::from_le_bytes(*eight).wrapping_mul(GATHER) >> 56) as u8;
    }
    u64::from_le_bytes(mask)
}

/// Works like [`slice::starts_with`], but needs no call for the many words whose first byte differs.
#[inline]
pub fn starts_with(word: &[u8], prefix: &[u8]) -> bool {
    let Some((first, rest)) = prefix.split_first() else {
        return true;
    };
    word.first() == Some(first) && (rest.is_empty() || word[1..].starts_with(rest))
}
