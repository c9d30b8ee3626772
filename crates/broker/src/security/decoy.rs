//! Decoys: the salts and iteration counts that the broker sends for unknown users in SCRAM's first answer.
//!
//! That answer must not distinguish unknown users from known ones. So an unknown name gets the
//! [`Shapes`] of a known user: the share of each pair of shapes among the unknown names is the same
//! as among the known users. One draw gives the shapes of both hashes, since a client may begin
//! logins with both and compare them. A name keeps its shapes, unless the known users change enough
//! to give the name others; then its salts change, too, as they do when a known user gets a new
//! password.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use millstream_wire::sasl::{Credential, Hash, ITERATIONS_DEFAULT, Iterations, Key};

use super::users::SALT_BYTES;

/// The digits that Kafka's own tools write salts with: each salt is a random number of 130 bits in
/// base 36, without leading zeros.
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// The sizes of nearly all salts of Kafka's own tools. Two in five have the greater size. These
/// begin with 1, since the greatest number of 130 bits does.
const DIGITS_USUAL: RangeInclusive<usize> = 25..=26;

/// The part of a credential that a client can compare between users: all but the salt's random
/// content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    iterations: u32,
    salt_bytes: usize,
    /// Whether the salt consists of [`DIGITS`]. Kafka's own tools make these salts; other tools
    /// take random bytes.
    has_digits: bool,
}

impl Shape {
    /// The shape of passwords that this project's tools set.
    const DEFAULT: Shape = Shape {
        iterations: ITERATIONS_DEFAULT.0,
        salt_bytes: SALT_BYTES,
        has_digits: false,
    };

    pub(super) fn of(credential: &Credential) -> Shape {
        let salt = credential.salt();
        Shape {
            iterations: credential.iterations().0,
            salt_bytes: salt.len(),
            has_digits: salt.iter().all(|byte| DIGITS.contains(byte)),
        }
    }

    pub(super) fn iterations(self) -> Iterations {
        Iterations(self.iterations)
    }

    /// Returns a salt of this shape. Only `key`, which is secret, distinguishes it from a random one.
    pub(super) fn salt(self, key: &Key) -> Vec<u8> {
        let block = |number: usize| {
            let Shape {
                iterations,
                salt_bytes,
                has_digits,
            } = self;
            let message = format!("{iterations} {salt_bytes} {has_digits} {number}");
            Hash::Sha512.hmac(key.as_bytes(), message.as_bytes())
        };
        let blocks = (0..).map(block);
        if self.has_digits && DIGITS_USUAL.contains(&self.salt_bytes) {
            // Two of five numbers have the greater size, and nearly all others the smaller one.
            let mut texts = blocks.map(|block| number_text(&block));
            return texts
                .find(|text| text.len() == self.salt_bytes)
                .expect("the blocks never end");
        }
        let bytes = blocks.flat_map(|block| block.as_bytes().to_vec());
        let salt = bytes.take(self.salt_bytes);
        match self.has_digits {
            true => salt
                .enumerate()
                .map(|(index, byte)| {
                    // The first digit is no zero.
                    let least = usize::from(index == 0);
                    DIGITS[least + usize::from(byte) % (DIGITS.len() - least)]
                })
                .collect(),
            false => salt.collect(),
        }
    }

    fn bits(self) -> u64 {
        let flag = u64::from(self.has_digits) << 63;
        flag | (self.salt_bytes as u64) << 32 | u64::from(self.iterations)
    }
}

/// Returns the first 130 bits of a block in base 36, without leading zeros.
fn number_text(block: &Key) -> Vec<u8> {
    let (number, _) = block
        .as_bytes()
        .split_first_chunk::<17>()
        .expect("a hash has more than 17 bytes");
    let mut number = *number;
    number[0] &= 0b11;
    let mut text = Vec::new();
    while number.iter().any(|byte| *byte != 0) {
        // A long division by 36: its rest is the next digit, beginning with the last one.
        let mut rest = 0;
        for byte in &mut number {
            let dividend = rest << 8 | usize::from(*byte);
            *byte = (dividend / DIGITS.len()) as u8;
            rest = dividend % DIGITS.len();
        }
        text.push(DIGITS[rest]);
    }
    text.reverse();
    text
}

/// The shapes of a user's answers, by hash. A user without a credential for one hash has there the
/// shape of its other credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shapes {
    sha256: Shape,
    sha512: Shape,
}

impl Shapes {
    /// The shapes of a user whose password this project's tools set.
    const DEFAULT: Shapes = Shapes {
        sha256: Shape::DEFAULT,
        sha512: Shape::DEFAULT,
    };

    /// Returns the shapes of a user with these credentials; `None` if there are none.
    pub(super) fn of(sha256: Option<&Credential>, sha512: Option<&Credential>) -> Option<Shapes> {
        let [sha256, sha512] = [sha256, sha512].map(|credential| credential.map(Shape::of));
        Some(Shapes {
            sha256: sha256.or(sha512)?,
            sha512: sha512.or(sha256)?,
        })
    }

    pub(super) fn shape(self, hash: Hash) -> Shape {
        match hash {
            Hash::Sha256 => self.sha256,
            Hash::Sha512 => self.sha512,
        }
    }

    fn bits(self) -> u64 {
        self.sha256.bits() ^ mixed(self.sha512.bits())
    }
}

/// The number of known users with each pair of shapes.
#[derive(Debug, Clone, Default)]
pub(super) struct Decoys {
    /// No count is 0.
    counts: BTreeMap<Shapes, usize>,
}

impl Decoys {
    pub(super) fn add(&mut self, shapes: Shapes) {
        *self.counts.entry(shapes).or_default() += 1;
    }

    pub(super) fn remove(&mut self, shapes: Shapes) {
        if let Some(count) = self.counts.get_mut(&shapes) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&shapes);
            }
        }
    }

    /// Returns the shapes of the name that `key` was made of. Weighted rendezvous hashing: each
    /// pair draws an exponentially distributed number, divided by its count, and the least wins.
    /// So a changed count moves the fewest names possible, and every start draws the same.
    pub(super) fn shapes(&self, key: &Key) -> Shapes {
        let (seed, _) = key
            .as_bytes()
            .split_first_chunk()
            .expect("a hash has more than 8 bytes");
        let seed = u64::from_be_bytes(*seed);
        let counts = self.counts.iter();
        let drawn = counts.map(|(shapes, count)| (draw(seed, *shapes) / *count as f64, *shapes));
        let least = drawn.min_by(|(one, _), (other, _)| one.total_cmp(other));
        least.map_or(Shapes::DEFAULT, |(_, shapes)| shapes)
    }
}

/// Returns a number that is exponentially distributed over the seeds.
fn draw(seed: u64, shapes: Shapes) -> f64 {
    // 53 bits fit into a float; the half keeps the logarithm's argument above 0.
    let bits = mixed(seed ^ mixed(shapes.bits())) >> 11;
    let uniform = (bits as f64 + 0.5) / (1_u64 << 53) as f64;
    -uniform.ln()
}

/// Returns the number after the finalizer of SplitMix64: each bit of the result depends on all bits
/// of the number.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
