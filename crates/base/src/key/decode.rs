//! Reads keys.

use serde::de::value::U32Deserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, VariantAccess,
    Visitor,
};

use super::decode_parts::{Parts, Sequence};
use super::error::KeyError;
use super::format::{ELEMENT, LEVELS_MAX, NAN_32, NAN_64, below};
use super::input::Input;

/// Reads a key.
///
/// # Errors
/// When [`encode_key`](super::encode_key) writes other bytes for every key of this type.
pub fn decode_key<K: DeserializeOwned>(bytes: &[u8]) -> Result<K, KeyError> {
    let mut input = Input { bytes, at: 0 };
    let key = K::deserialize(Decoder {
        input: &mut input,
        is_last: true,
        is_element: false,
        levels: LEVELS_MAX,
    })?;
    match input.rest() {
        [] => Ok(key),
        _ => Err(KeyError::Trailing {
            at: input.at,
            len: bytes.len(),
        }),
    }
}

/// Reads one value of a key; the counterpart of `Encoder`.
pub struct Decoder<'a, 'b> {
    pub input: &'b mut Input<'a>,
    /// Whether nothing follows the value; for an element, whether nothing follows its sequence.
    pub is_last: bool,
    /// Whether the value is an element of a sequence.
    is_element: bool,
    /// Levels that may follow.
    levels: u32,
}

impl<'a> Decoder<'a, '_> {
    /// Reads the mark of a value that is an element.
    pub fn begin(&mut self) -> Result<(), KeyError> {
        if self.is_element {
            if self.input.byte()? != ELEMENT {
                return Err(self.input.unexpected("1, which begins an element"));
            }
            self.is_element = false;
            self.is_last = false;
        }
        Ok(())
    }

    fn take<const N: usize>(mut self) -> Result<[u8; N], KeyError> {
        self.begin()?;
        self.input.take()
    }

    fn text(mut self) -> Result<Vec<u8>, KeyError> {
        self.begin()?;
        if self.is_last {
            let text = self.input.rest().to_vec();
            self.input.at = self.input.bytes.len();
            return Ok(text);
        }
        let mut text = Vec::new();
        while !self.input.ends(false) {
            text.push(self.input.byte_of_text(false)?);
        }
        Ok(text)
    }

    /// Returns the decoder of a value within this one.
    pub fn inner(&mut self, is_last: bool, is_element: bool) -> Decoder<'a, '_> {
        Decoder {
            input: self.input,
            is_last: is_last && self.is_last,
            is_element,
            levels: self.levels,
        }
    }

    fn descend(&mut self) -> Result<(), KeyError> {
        self.levels = below(self.levels)?;
        Ok(())
    }

    fn parts<'de, V: Visitor<'de>>(
        mut self,
        left: usize,
        visitor: V,
    ) -> Result<V::Value, KeyError> {
        self.begin()?;
        self.descend()?;
        let mut parts = Parts {
            decoder: self,
            left,
        };
        let value = visitor.visit_seq(&mut parts)?;
        match parts.left {
            0 => Ok(value),
            _ => Err(KeyError::Parts),
        }
    }

    /// Reads a sequence or map that ends where `visit` has reached its end.
    fn sequence<T>(
        mut self,
        visit: impl FnOnce(&mut Sequence<'a, '_>) -> Result<T, KeyError>,
    ) -> Result<T, KeyError> {
        self.begin()?;
        self.descend()?;
        let mut sequence = Sequence {
            decoder: self,
            has_ended: false,
            key: &[],
        };
        let value = visit(&mut sequence)?;
        match sequence.ends() {
            true => Ok(value),
            false => Err(KeyError::Parts),
        }
    }
}

macro_rules! float {
    ($decoder:ident, $type:ident, $nan:expr, $unsigned:ident) => {{
        const SIGN: $unsigned = 1 << ($unsigned::BITS - 1);
        let at = $decoder.input.at + usize::from($decoder.is_element);
        let bits = $unsigned::from_be_bytes($decoder.take()?);
        let float = $type::from_bits(if bits & SIGN == 0 { !bits } else { bits ^ SIGN });
        if float.is_nan() && float.to_bits() != $nan {
            let expected = "a number, or the one pattern of NaN";
            return Err(KeyError::Unexpected { at, expected });
        }
        float
    }};
}

macro_rules! signed {
    ($($name:ident $visit:ident: $type:ident),*) => {
        $(fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
            visitor.$visit($type::from_be_bytes(self.take()?) ^ $type::MIN)
        })*
    };
}

macro_rules! unsigned {
    ($($name:ident $visit:ident: $type:ident),*) => {
        $(fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
            visitor.$visit($type::from_be_bytes(self.take()?))
        })*
    };
}

macro_rules! not_self_describing {
    ($($name:ident),*) => {
        $(fn $name<V: Visitor<'de>>(self, _: V) -> Result<V::Value, KeyError> {
            Err(KeyError::NotSelfDescribing)
        })*
    };
}

impl<'de> Deserializer<'de> for Decoder<'_, '_> {
    type Error = KeyError;

    signed!(deserialize_i8 visit_i8: i8, deserialize_i16 visit_i16: i16, deserialize_i32 visit_i32: i32,
        deserialize_i64 visit_i64: i64, deserialize_i128 visit_i128: i128);
    unsigned!(deserialize_u16 visit_u16: u16, deserialize_u32 visit_u32: u32, deserialize_u64 visit_u64: u64,
        deserialize_u128 visit_u128: u128);
    not_self_describing!(
        deserialize_any,
        deserialize_identifier,
        deserialize_ignored_any
    );

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        visitor.visit_u8(match self.is_element {
            true => self.input.byte_of_text(self.is_last)?,
            false => self.input.byte()?,
        })
    }

    fn deserialize_bool<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, KeyError> {
        self.begin()?;
        visitor.visit_bool(self.input.flag()?)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        visitor.visit_f32(float!(self, f32, NAN_32, u32))
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        visitor.visit_f64(float!(self, f64, NAN_64, u64))
    }

    fn deserialize_char<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, KeyError> {
        self.begin()?;
        let code = u32::from_be_bytes(self.input.take()?);
        let character = char::from_u32(code);
        visitor.visit_char(character.ok_or_else(|| self.input.unexpected("a character"))?)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        self.deserialize_string(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        let start = self.input.at + usize::from(self.is_element);
        let text = String::from_utf8(self.text()?);
        visitor.visit_string(text.map_err(|error| KeyError::Unexpected {
            at: start + error.utf8_error().valid_up_to(),
            expected: "text in UTF-8",
        })?)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        self.deserialize_byte_buf(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        visitor.visit_byte_buf(self.text()?)
    }

    fn deserialize_option<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, KeyError> {
        self.begin()?;
        match self.input.flag()? {
            true => {
                self.descend()?;
                visitor.visit_some(self)
            }
            false => visitor.visit_none(),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, KeyError> {
        self.begin()?;
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, KeyError> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        mut self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, KeyError> {
        self.descend()?;
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        self.sequence(|sequence| visitor.visit_seq(sequence))
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, KeyError> {
        self.parts(len, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, KeyError> {
        self.parts(len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, KeyError> {
        self.sequence(|sequence| visitor.visit_map(sequence))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, KeyError> {
        self.parts(fields.len(), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        mut self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, KeyError> {
        self.begin()?;
        self.descend()?;
        visitor.visit_enum(self)
    }
}

impl<'de> EnumAccess<'de> for Decoder<'_, '_> {
    type Error = KeyError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), KeyError> {
        let index = u32::from_be_bytes(self.input.take()?);
        let index: U32Deserializer<KeyError> = index.into_deserializer();
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de> VariantAccess<'de> for Decoder<'_, '_> {
    type Error = KeyError;

    fn unit_variant(self) -> Result<(), KeyError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, KeyError> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, KeyError> {
        self.parts(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, KeyError> {
        self.parts(fields.len(), visitor)
    }
}
