//! Writes keys.

use serde::ser::{Serialize, Serializer};

use super::encode_parts::{Entries, Parts};
use super::error::KeyError;
use super::format::{ELEMENT, END, ESCAPE, LEVELS_MAX, NAN_32, NAN_64, below};

/// Appends the encoding of a key to `bytes`.
///
/// # Errors
/// When the type leaves fields out, or the key has too many levels. Then `bytes` is unchanged.
pub fn encode_key<K: Serialize + ?Sized>(key: &K, bytes: &mut Vec<u8>) -> Result<(), KeyError> {
    let len = bytes.len();
    let encoder = Encoder {
        bytes,
        is_last: true,
        is_element: false,
        levels: LEVELS_MAX,
    };
    let encoded = key.serialize(encoder);
    if encoded.is_err() {
        bytes.truncate(len);
    }
    encoded
}

/// Writes one value of a key.
pub struct Encoder<'a> {
    pub bytes: &'a mut Vec<u8>,
    /// Whether nothing follows the value; for an element, whether nothing follows its sequence.
    pub is_last: bool,
    /// Whether the value is an element of a sequence.
    pub is_element: bool,
    /// Levels that may follow.
    pub levels: u32,
}

impl Encoder<'_> {
    /// Marks a value that is an element. Elements that are single bytes have no mark.
    fn begin(&mut self) {
        if self.is_element {
            self.bytes.push(ELEMENT);
            self.is_element = false;
            self.is_last = false;
        }
    }

    fn plain(mut self, bytes: &[u8]) -> Result<(), KeyError> {
        self.begin();
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn byte_of_text(&mut self, byte: u8) {
        self.bytes.push(byte);
        if byte == 0 && !self.is_last {
            self.bytes.push(ESCAPE);
        }
    }

    /// Ends text or a sequence.
    pub fn end(self) {
        if !self.is_last {
            self.bytes.extend(END);
        }
    }

    /// Returns the encoder of a value within this one.
    pub fn inner(&mut self, is_last: bool, is_element: bool) -> Encoder<'_> {
        Encoder {
            bytes: self.bytes,
            is_last: is_last && self.is_last,
            is_element,
            levels: self.levels,
        }
    }

    fn variant(mut self, index: u32) -> Result<Self, KeyError> {
        self.begin();
        self.levels = below(self.levels)?;
        self.bytes.extend(index.to_be_bytes());
        Ok(self)
    }

    fn parts(mut self, left: usize) -> Result<Parts<Self>, KeyError> {
        self.begin();
        self.levels = below(self.levels)?;
        Ok(Parts {
            encoder: self,
            left,
        })
    }
}

/// Returns bits of a float that sort as [`f64::total_cmp`] sorts floats; NaN is the largest.
macro_rules! sorted_bits {
    ($float:ident, $nan:expr, $unsigned:ident) => {{
        const SIGN: $unsigned = 1 << ($unsigned::BITS - 1);
        // All patterns of NaN are one key.
        let bits = if $float.is_nan() {
            $nan
        } else {
            $float.to_bits()
        };
        if bits & SIGN == 0 { bits | SIGN } else { !bits }
    }};
}

macro_rules! signed {
    ($($name:ident: $type:ident),*) => {
        $(fn $name(self, value: $type) -> Result<(), KeyError> {
            // With the sign flipped, negative numbers sort first.
            self.plain(&(value ^ $type::MIN).to_be_bytes())
        })*
    };
}

macro_rules! unsigned {
    ($($name:ident: $type:ident),*) => {
        $(fn $name(self, value: $type) -> Result<(), KeyError> {
            self.plain(&value.to_be_bytes())
        })*
    };
}

impl<'a> Serializer for Encoder<'a> {
    type Ok = ();
    type Error = KeyError;
    type SerializeSeq = Self;
    type SerializeTuple = Parts<Self>;
    type SerializeTupleStruct = Parts<Self>;
    type SerializeTupleVariant = Parts<Self>;
    type SerializeMap = Entries<'a>;
    type SerializeStruct = Parts<Self>;
    type SerializeStructVariant = Parts<Self>;

    signed!(serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_i128: i128);
    unsigned!(serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_u128: u128);

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_u8(mut self, value: u8) -> Result<(), KeyError> {
        match self.is_element {
            true => self.byte_of_text(value),
            false => self.bytes.push(value),
        }
        Ok(())
    }

    fn serialize_bool(self, value: bool) -> Result<(), KeyError> {
        self.plain(&[u8::from(value)])
    }

    fn serialize_f32(self, value: f32) -> Result<(), KeyError> {
        self.plain(&sorted_bits!(value, NAN_32, u32).to_be_bytes())
    }

    fn serialize_f64(self, value: f64) -> Result<(), KeyError> {
        self.plain(&sorted_bits!(value, NAN_64, u64).to_be_bytes())
    }

    fn serialize_char(self, value: char) -> Result<(), KeyError> {
        self.plain(&u32::from(value).to_be_bytes())
    }

    fn serialize_str(self, value: &str) -> Result<(), KeyError> {
        self.serialize_bytes(value.as_bytes())
    }

    fn serialize_bytes(mut self, value: &[u8]) -> Result<(), KeyError> {
        self.begin();
        if self.is_last {
            self.bytes.extend_from_slice(value);
        } else {
            value.iter().for_each(|byte| self.byte_of_text(*byte));
        }
        self.end();
        Ok(())
    }

    fn serialize_none(self) -> Result<(), KeyError> {
        self.plain(&[0])
    }

    fn serialize_some<T: Serialize + ?Sized>(mut self, value: &T) -> Result<(), KeyError> {
        self.begin();
        self.levels = below(self.levels)?;
        self.bytes.push(1);
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), KeyError> {
        self.plain(&[])
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), KeyError> {
        self.plain(&[])
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
    ) -> Result<(), KeyError> {
        self.variant(index).map(drop)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        mut self,
        _: &'static str,
        value: &T,
    ) -> Result<(), KeyError> {
        // A newtype is its content; also as an element, so a sequence of newtypes of bytes is bytes.
        self.levels = below(self.levels)?;
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), KeyError> {
        value.serialize(self.variant(index)?)
    }

    fn serialize_seq(mut self, _: Option<usize>) -> Result<Self, KeyError> {
        self.begin();
        self.levels = below(self.levels)?;
        Ok(self)
    }

    fn serialize_tuple(self, len: usize) -> Result<Parts<Self>, KeyError> {
        self.parts(len)
    }

    fn serialize_tuple_struct(self, _: &'static str, len: usize) -> Result<Parts<Self>, KeyError> {
        self.parts(len)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        len: usize,
    ) -> Result<Parts<Self>, KeyError> {
        self.variant(index)?.parts(len)
    }

    fn serialize_map(mut self, _: Option<usize>) -> Result<Entries<'a>, KeyError> {
        self.begin();
        self.levels = below(self.levels)?;
        Ok(Entries {
            encoder: self,
            entries: Vec::new(),
        })
    }

    fn serialize_struct(self, _: &'static str, len: usize) -> Result<Parts<Self>, KeyError> {
        self.parts(len)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        len: usize,
    ) -> Result<Parts<Self>, KeyError> {
        self.variant(index)?.parts(len)
    }
}
