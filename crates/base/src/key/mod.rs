//! The canonical encoding of keys: the bytes of two keys of one type compare as the keys do.
//!
//! Equal keys have equal bytes, and each key has one encoding. So a table of bytes finds keys, and gives ranges of them
//! in order. `docs/formats.md` describes the bytes for programs in other languages. The order follows serde's data
//! model, and so does the order of all usual types; a type with another order, such as [`std::cmp::Reverse`], sorts as its content.
//!
//! ```
//! use millstream_base::key::{decode_key, encode_key};
//!
//! let mut bytes = Vec::new();
//! encode_key(&("page", 7_u32), &mut bytes)?;
//! assert_eq!(bytes, b"page\0\x01\0\0\0\x07");
//! assert_eq!(decode_key::<(String, u32)>(&bytes)?, ("page".to_owned(), 7));
//! # Ok::<(), millstream_base::key::KeyError>(())
//! ```
//!
//! A type that serializes in no fixed order, such as a `HashSet`, has no canonical encoding. (A `HashMap` has one, since its entries
//! are sorted.)

mod decode;
mod decode_parts;
mod encode;
mod encode_parts;
mod error;
mod format;
mod input;
#[cfg(test)]
mod tests;

pub use decode::decode_key;
pub use encode::encode_key;
pub use error::KeyError;
