//! Writes sequences, maps, tuples and structs of keys.

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant,
};

use super::encode::Encoder;
use super::error::KeyError;
use super::format::ELEMENT;

/// A sequence.
impl SerializeSeq for Encoder<'_> {
    type Ok = ();
    type Error = KeyError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), KeyError> {
        value.serialize(self.inner(true, true))
    }

    fn end(self) -> Result<(), KeyError> {
        Encoder::end(self);
        Ok(())
    }
}

/// The entries of a map, which are written in the order of their keys.
pub struct Entries<'a> {
    pub encoder: Encoder<'a>,
    pub entries: Vec<Vec<u8>>,
}

impl Entries<'_> {
    fn write<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), KeyError> {
        let bytes = self.entries.last_mut().ok_or(KeyError::Parts)?;
        value.serialize(Encoder {
            bytes,
            is_last: false,
            is_element: false,
            levels: self.encoder.levels,
        })
    }
}

impl SerializeMap for Entries<'_> {
    type Ok = ();
    type Error = KeyError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), KeyError> {
        self.entries.push(vec![ELEMENT]);
        self.write(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), KeyError> {
        self.write(value)
    }

    fn end(mut self) -> Result<(), KeyError> {
        self.entries.sort_unstable();
        self.encoder.bytes.extend(self.entries.concat());
        self.encoder.end();
        Ok(())
    }
}

/// The parts of a tuple or struct.
pub struct Parts<E> {
    pub encoder: E,
    pub left: usize,
}

impl Parts<Encoder<'_>> {
    fn part<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), KeyError> {
        self.left = self.left.checked_sub(1).ok_or(KeyError::Parts)?;
        value.serialize(self.encoder.inner(self.left == 0, false))
    }

    fn finish(self) -> Result<(), KeyError> {
        match self.left {
            0 => Ok(()),
            _ => Err(KeyError::Parts),
        }
    }
}

impl SerializeTuple for Parts<Encoder<'_>> {
    type Ok = ();
    type Error = KeyError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), KeyError> {
        self.part(value)
    }

    fn end(self) -> Result<(), KeyError> {
        self.finish()
    }
}

macro_rules! unnamed_parts {
    ($($trait:ident),*) => {
        $(impl $trait for Parts<Encoder<'_>> {
            type Ok = ();
            type Error = KeyError;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), KeyError> {
                self.part(value)
            }

            fn end(self) -> Result<(), KeyError> {
                self.finish()
            }
        })*
    };
}

macro_rules! named_parts {
    ($($trait:ident),*) => {
        $(impl $trait for Parts<Encoder<'_>> {
            type Ok = ();
            type Error = KeyError;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                _: &'static str,
                value: &T,
            ) -> Result<(), KeyError> {
                self.part(value)
            }

            fn skip_field(&mut self, field: &'static str) -> Result<(), KeyError> {
                Err(KeyError::SkippedField { field })
            }

            fn end(self) -> Result<(), KeyError> {
                self.finish()
            }
        })*
    };
}

unnamed_parts!(SerializeTupleStruct, SerializeTupleVariant);
named_parts!(SerializeStruct, SerializeStructVariant);
