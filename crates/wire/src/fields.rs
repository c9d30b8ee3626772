//! The primitive types of headers and native requests.
//!
//! They have the encoding of Kafka's flexible versions. Integers are big-endian. The length of a string, of
//! bytes or of an array is a varint of the length plus one, and 0 means null. Tagged fields end a structure;
//! none is defined, and the decoder skips all.

use bytes::{Buf, BufMut, Bytes};
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::protocol::buf::ByteBuf;
use uuid::Uuid;

use crate::error::Malformed;
use crate::frame::FRAME_HEADER_BYTES;
use crate::input::Input;
use crate::pieces::Output;

impl Input {
    pub(crate) fn int8(&mut self, name: &str) -> Result<i8, Malformed> {
        let value = self.try_get_i8();
        value.map_err(|_| self.cut_off(name))
    }

    pub(crate) fn int16(&mut self, name: &str) -> Result<i16, Malformed> {
        let value = self.try_get_i16();
        value.map_err(|_| self.cut_off(name))
    }

    pub(crate) fn uint16(&mut self, name: &str) -> Result<u16, Malformed> {
        let value = self.try_get_i16();
        value
            .map(|value| value as u16)
            .map_err(|_| self.cut_off(name))
    }

    pub(crate) fn int32(&mut self, name: &str) -> Result<i32, Malformed> {
        let value = self.try_get_i32();
        value.map_err(|_| self.cut_off(name))
    }

    pub(crate) fn uint32(&mut self, name: &str) -> Result<u32, Malformed> {
        let value = self.try_get_u32();
        value.map_err(|_| self.cut_off(name))
    }

    pub(crate) fn int64(&mut self, name: &str) -> Result<i64, Malformed> {
        let value = self.try_get_i64();
        value.map_err(|_| self.cut_off(name))
    }

    pub(crate) fn uint64(&mut self, name: &str) -> Result<u64, Malformed> {
        let value = self.try_get_u64();
        value.map_err(|_| self.cut_off(name))
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Result<bool, Malformed> {
        match self.int8(name)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.malformed(format!("{name} is {other}, neither 0 nor 1"))),
        }
    }

    pub(crate) fn uuid(&mut self, name: &str) -> Result<Uuid, Malformed> {
        let mut bytes = [0; 16];
        let copied = self.try_copy_to_slice(&mut bytes);
        copied.map_err(|_| self.cut_off(name))?;
        Ok(Uuid::from_bytes(bytes))
    }

    /// Reads the string of a header, which has a 16-bit length in all versions.
    pub(crate) fn header_string(&mut self, name: &str) -> Result<Option<StrBytes>, Malformed> {
        let length = self.int16(name)?;
        match usize::try_from(length) {
            Ok(length) => self.text(name, length).map(Some),
            Err(_) if length == -1 => Ok(None),
            Err(_) => Err(self.malformed(format!("{name} has a length of {length}"))),
        }
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<StrBytes, Malformed> {
        let length = self.length(name)?;
        self.text(name, length)
    }

    pub(crate) fn nullable_string(&mut self, name: &str) -> Result<Option<StrBytes>, Malformed> {
        let length = self.nullable_length(name)?;
        length.map(|length| self.text(name, length)).transpose()
    }

    /// Reads bytes as a slice of the frame.
    pub(crate) fn bytes(&mut self, name: &str) -> Result<Bytes, Malformed> {
        let length = self.length(name)?;
        let bytes = self.try_get_bytes(length);
        bytes.map_err(|_| self.cut_off(name))
    }

    /// Reads bytes as a slice of the frame; null differs from empty bytes.
    pub(crate) fn nullable_bytes(&mut self, name: &str) -> Result<Option<Bytes>, Malformed> {
        let Some(length) = self.nullable_length(name)? else {
            return Ok(None);
        };
        let bytes = self.try_get_bytes(length);
        bytes.map(Some).map_err(|_| self.cut_off(name))
    }

    pub(crate) fn array<T>(
        &mut self,
        name: &str,
        element: impl Fn(&mut Input) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        self.nullable_array(name, element)?
            .ok_or_else(|| self.malformed(format!("{name} is null")))
    }

    pub(crate) fn nullable_array<T>(
        &mut self,
        name: &str,
        element: impl Fn(&mut Input) -> Result<T, Malformed>,
    ) -> Result<Option<Vec<T>>, Malformed> {
        let Some(length) = self.nullable_length(name)? else {
            return Ok(None);
        };
        // At most the rest of the frame, since `varint` checks the length.
        let mut elements = Vec::with_capacity(length);
        for _ in 0..length {
            elements.push(element(self)?);
        }
        Ok(Some(elements))
    }

    /// Skips tagged fields.
    pub(crate) fn tags(&mut self) -> Result<(), Malformed> {
        for _ in 0..self.varint32("tagged fields")? {
            self.varint32("tag")?;
            let length = self.varint32("tagged field")?;
            let bytes = self.try_get_bytes(length as usize);
            bytes.map_err(|_| self.cut_off("tagged field"))?;
        }
        Ok(())
    }

    fn length(&mut self, name: &str) -> Result<usize, Malformed> {
        self.nullable_length(name)?
            .ok_or_else(|| self.malformed(format!("{name} is null")))
    }

    fn nullable_length(&mut self, name: &str) -> Result<Option<usize>, Malformed> {
        Ok(self
            .varint32(name)?
            .checked_sub(1)
            .map(|length| length as usize))
    }

    fn varint32(&mut self, name: &str) -> Result<u32, Malformed> {
        let mut value = 0;
        for shift in (0..).step_by(7).take(5) {
            let byte = self.try_get_u8();
            let byte = byte.map_err(|_| self.cut_off(name))?;
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        Ok(value)
    }

    fn text(&mut self, name: &str, length: usize) -> Result<StrBytes, Malformed> {
        let bytes = self.try_get_bytes(length);
        let bytes = bytes.map_err(|_| self.cut_off(name))?;
        StrBytes::from_utf8(bytes)
            .map_err(|error| self.malformed(format!("{name} is no text: {error}")))
    }

    fn cut_off(&mut self, name: &str) -> Malformed {
        let fault = self.take_fault();
        let what = fault.unwrap_or_else(|| "the frame ends in the middle of this field".to_owned());
        self.malformed(format!("{name}: {what}"))
    }
}

impl Output {
    pub(crate) fn int8(&mut self, value: i8) {
        self.copied().put_i8(value);
    }

    pub(crate) fn int16(&mut self, value: i16) {
        self.copied().put_i16(value);
    }

    pub(crate) fn uint16(&mut self, value: u16) {
        self.copied().put_u16(value);
    }

    pub(crate) fn int32(&mut self, value: i32) {
        self.copied().put_i32(value);
    }

    pub(crate) fn uint32(&mut self, value: u32) {
        self.copied().put_u32(value);
    }

    pub(crate) fn int64(&mut self, value: i64) {
        self.copied().put_i64(value);
    }

    pub(crate) fn uint64(&mut self, value: u64) {
        self.copied().put_u64(value);
    }

    pub(crate) fn boolean(&mut self, value: bool) {
        self.int8(value.into());
    }

    pub(crate) fn uuid(&mut self, value: Uuid) {
        self.copied().put_slice(value.as_bytes());
    }

    pub(crate) fn string(&mut self, value: &str) {
        self.length(value.len());
        self.copied().put_slice(value.as_bytes());
    }

    pub(crate) fn nullable_string(&mut self, value: Option<&str>) {
        match value {
            Some(value) => self.string(value),
            None => self.varint32(0),
        }
    }

    /// Writes pieces as one field. Large pieces are not copied.
    pub(crate) fn bytes(&mut self, pieces: &[Bytes]) {
        self.length(pieces.iter().map(Bytes::len).sum());
        pieces.iter().for_each(|piece| self.put_shared(piece));
    }

    pub(crate) fn nullable_bytes(&mut self, bytes: Option<&Bytes>) {
        match bytes {
            Some(bytes) => self.bytes(std::slice::from_ref(bytes)),
            None => self.varint32(0),
        }
    }

    pub(crate) fn array<T>(&mut self, elements: &[T], element: impl Fn(&mut Output, &T)) {
        self.length(elements.len());
        elements.iter().for_each(|value| element(self, value));
    }

    /// Writes an empty set of tagged fields.
    pub(crate) fn no_tags(&mut self) {
        self.varint32(0);
    }

    /// Writes a tagged field.
    pub(crate) fn tag(&mut self, tag: u32, mut value: Output) {
        let value = value.copied().split_off(FRAME_HEADER_BYTES);
        self.varint32(tag);
        self.varint32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        self.copied().put_slice(&value);
    }

    /// Writes the length of a string, of bytes or of an array. A length above 32 bits does not fit into a
    /// frame either; `finish` reports it.
    pub(crate) fn length(&mut self, length: usize) {
        self.varint32(u32::try_from(length + 1).unwrap_or(u32::MAX));
    }

    /// Writes the length of bytes or of an array, in flexible versions and in others.
    pub(crate) fn length_in(&mut self, is_flexible: bool, length: usize) {
        match is_flexible {
            true => self.length(length),
            false => self.int32(i32::try_from(length).unwrap_or(i32::MAX)),
        }
    }

    /// Writes a string, in flexible versions and in others.
    pub(crate) fn string_in(&mut self, is_flexible: bool, value: &str) -> Result<(), String> {
        if is_flexible {
            self.string(value);
            return Ok(());
        }
        let length = i16::try_from(value.len());
        self.int16(length.map_err(|_| format!("a string of {} bytes is too long", value.len()))?);
        self.copied().put_slice(value.as_bytes());
        Ok(())
    }

    pub(crate) fn varint32(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.copied().put_u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.copied().put_u8(value as u8);
    }
}
