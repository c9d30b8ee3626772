//! Scores whose bytes compare as they do.

use std::cmp::Reverse;

use millstream_base::Timestamp;
use millstream_base::key::encode_key;

/// A score of a running [`top`](crate::Keyed::top): integers, floating-point numbers, texts, `bool`, `char`, [`Timestamp`],
/// tuples of them, and [`Reverse`] for the lowest first.
pub trait Rank {
    /// Appends bytes that compare as the scores do. The bytes of a score are never the beginning of another score's bytes.
    fn encode(&self, bytes: &mut Vec<u8>);

    /// Whether it can be compared: `false` of a NaN.
    fn is_comparable(&self) -> bool {
        true
    }
}

macro_rules! canonical {
    ($($name:ty),+) => {$(
        impl Rank for $name {
            fn encode(&self, bytes: &mut Vec<u8>) {
                encode_canonical(self, bytes);
            }
        }
    )+};
}

canonical!(
    i8, i16, i32, i64, i128, u8, u16, u32, u64, u128, bool, char, String, Timestamp
);

macro_rules! float {
    ($($name:ty),+) => {$(
        impl Rank for $name {
            fn encode(&self, bytes: &mut Vec<u8>) {
                // Both zeros are equal.
                encode_canonical(&(*self + 0.0), bytes);
            }

            fn is_comparable(&self) -> bool {
                !self.is_nan()
            }
        }
    )+};
}

float!(f32, f64);

/// Appends the canonical bytes of a value, as they are in front of others: then none are the beginning of another value's.
fn encode_canonical<T: serde::Serialize>(value: &T, bytes: &mut Vec<u8>) {
    let encoded = encode_key(&(value, ()), bytes);
    encoded.expect("numbers and texts have canonical bytes");
}

impl<S: Rank> Rank for Reverse<S> {
    fn encode(&self, bytes: &mut Vec<u8>) {
        let begin = bytes.len();
        self.0.encode(bytes);
        bytes[begin..].iter_mut().for_each(|byte| *byte = !*byte);
    }

    fn is_comparable(&self) -> bool {
        self.0.is_comparable()
    }
}

macro_rules! tuple {
    ($($name:ident . $index:tt),+) => {
        impl<$($name: Rank),+> Rank for ($($name,)+) {
            fn encode(&self, bytes: &mut Vec<u8>) {
                $(self.$index.encode(bytes);)+
            }

            fn is_comparable(&self) -> bool {
                $(self.$index.is_comparable())&&+
            }
        }
    };
}

tuple!(A.0, B.1);
tuple!(A.0, B.1, C.2);
tuple!(A.0, B.1, C.2, D.3);

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;

    /// Checks that bytes compare as scores do, and that none begin with another's.
    fn check<S: Rank + PartialOrd + Debug>(scores: &[S]) {
        let bytes = |score: &S| {
            let mut bytes = Vec::new();
            score.encode(&mut bytes);
            bytes
        };
        for one in scores {
            for other in scores {
                let (of_one, of_other) = (bytes(one), bytes(other));
                let order = one.partial_cmp(other).unwrap();
                assert_eq!(of_one.cmp(&of_other), order, "{one:?} {other:?}");
                assert!(of_one == of_other || !of_one.starts_with(&of_other));
            }
        }
    }

    #[test]
    fn bytes_of_scores_compare_as_the_scores_do() {
        check(&[i64::MIN, -256, -1, 0, 1, 255, 256, i64::MAX]);
        check(&[0, 1, 255, 256, u64::MAX]);
        check(&[
            f64::NEG_INFINITY,
            -1.5,
            -0.0,
            0.0,
            1e-300,
            2.0,
            f64::INFINITY,
        ]);
        let texts = ["", "a", "a\0", "a\0b", "ab", "b", "ü"].map(str::to_owned);
        check(&texts);
        check(&texts.clone().map(Reverse));
        let pairs = texts.iter().flat_map(|text| {
            let pair = |number| (Reverse(text.clone()), number);
            [pair(-1), pair(0), pair(1)]
        });
        check(&pairs.collect::<Vec<(Reverse<String>, i32)>>());
        check(&[Reverse(Reverse(-3)), Reverse(Reverse(4))]);
        check(&[Timestamp(-5), Timestamp(0), Timestamp(1 << 40)]);
    }

    #[test]
    fn a_nan_cannot_be_compared() {
        assert!(!f64::NAN.is_comparable() && !(1, Reverse(f32::NAN)).is_comparable());
        assert!((1, 2.0, true).is_comparable());
    }
}
