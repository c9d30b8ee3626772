//! Splits text into words. Stands alone, so that the benchmarks' peer in timely dataflow splits in the same way.

/// Calls `each` for the words of a text: the longest runs of bytes that are not ASCII white space.
///
/// White space is looked for in 64 bytes at once, which compilers turn into few instructions; then
/// only the places where it is are gone through.
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

/// The definition in `millstream_base::text`, on which this file cannot stand; a test compares them.
#[inline]
fn is_white_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// A bit for each byte, from the lowest on: whether it is white space.
#[inline]
pub fn white_space_in(block: &[u8; 64]) -> u64 {
    /// Multiplied with eight bytes that are 0 or 1 each, it gathers them in the highest byte.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let is_white_space = block.map(|byte| u8::from(is_white_space(byte)));
    let (eights, _) = is_white_space.as_chunks::<8>();
    let mut mask = [0; 8];
    for (byte, eight) in mask.iter_mut().zip(eights) {
        *byte = (u64::from_le_bytes(*eight).wrapping_mul(GATHER) >> 56) as u8;
    }
    u64::from_le_bytes(mask)
}

/// As [`slice::starts_with`], which takes a call even for the many words whose first byte tells.
#[inline]
pub fn starts_with(word: &[u8], prefix: &[u8]) -> bool {
    let Some((first, rest)) = prefix.split_first() else {
        return true;
    };
    word.first() == Some(first) && (rest.is_empty() || word[1..].starts_with(rest))
}
