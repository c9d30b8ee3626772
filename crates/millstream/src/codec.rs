//! Codecs: the values of records as Rust values.

use std::fmt::Debug;
use std::marker::PhantomData;

use millstream_flow::BoxError;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads and writes the values of a topic's records.
pub trait Codec: Clone + Send + Sync + 'static {
    /// A decoded value.
    type Item: Debug + Clone + Send + 'static;

    /// Reads the value of a record.
    ///
    /// # Errors
    /// When the bytes are no value of this codec: the record becomes a dead letter.
    fn decode(&self, value: &[u8]) -> Result<Self::Item, BoxError>;
}

/// Writes values of type `T`.
pub trait Encode<T: ?Sized>: Clone + Send + Sync + 'static {
    /// Appends the bytes of a value.
    ///
    /// # Errors
    /// When the value has none: the item becomes a dead letter.
    fn encode(&self, item: &T, value: &mut Vec<u8>) -> Result<(), BoxError>;
}

/// JSON text: [`Topic::json`](crate::Topic::json).
#[derive(Debug)]
pub struct Json<T>(PhantomData<fn() -> T>);

/// Postcard, a small binary format: [`Topic::postcard`](crate::Topic::postcard).
#[derive(Debug)]
pub struct Postcard<T>(PhantomData<fn() -> T>);

/// UTF-8 text: [`Topic::text`](crate::Topic::text).
#[derive(Debug, Clone, Copy, Default)]
pub struct Text;

/// The bytes as they are: [`Topic::bytes`](crate::Topic::bytes).
#[derive(Debug, Clone, Copy, Default)]
pub struct Raw;

impl<T> Default for Json<T> {
    fn default() -> Self {
        Json(PhantomData)
    }
}

impl<T> Default for Postcard<T> {
    fn default() -> Self {
        Postcard(PhantomData)
    }
}

impl<T> Clone for Json<T> {
    fn clone(&self) -> Self {
        Json(PhantomData)
    }
}

impl<T> Clone for Postcard<T> {
    fn clone(&self) -> Self {
        Postcard(PhantomData)
    }
}

impl<T> Codec for Json<T>
where
    T: DeserializeOwned + Debug + Clone + Send + 'static,
{
    type Item = T;

    fn decode(&self, value: &[u8]) -> Result<T, BoxError> {
        Ok(serde_json::from_slice(value)?)
    }
}

impl<T: Serialize + 'static> Encode<T> for Json<T> {
    fn encode(&self, item: &T, value: &mut Vec<u8>) -> Result<(), BoxError> {
        Ok(serde_json::to_writer(value, item)?)
    }
}

impl<T> Codec for Postcard<T>
where
    T: DeserializeOwned + Debug + Clone + Send + 'static,
{
    type Item = T;

    fn decode(&self, value: &[u8]) -> Result<T, BoxError> {
        let (item, rest) = postcard::take_from_bytes(value)?;
        match rest.len() {
            0 => Ok(item),
            more => Err(format!("{more} bytes follow the value").into()),
        }
    }
}

impl<T: Serialize + 'static> Encode<T> for Postcard<T> {
    fn encode(&self, item: &T, value: &mut Vec<u8>) -> Result<(), BoxError> {
        Ok(postcard::to_io(item, value).map(drop)?)
    }
}

impl Codec for Text {
    type Item = String;

    fn decode(&self, value: &[u8]) -> Result<String, BoxError> {
        Ok(str::from_utf8(value)?.to_owned())
    }
}

impl<U: AsRef<str> + ?Sized> Encode<U> for Text {
    fn encode(&self, item: &U, value: &mut Vec<u8>) -> Result<(), BoxError> {
        value.extend_from_slice(item.as_ref().as_bytes());
        Ok(())
    }
}

impl Codec for Raw {
    type Item = Vec<u8>;

    fn decode(&self, value: &[u8]) -> Result<Vec<u8>, BoxError> {
        Ok(value.to_vec())
    }
}

impl<U: AsRef<[u8]> + ?Sized> Encode<U> for Raw {
    fn encode(&self, item: &U, value: &mut Vec<u8>) -> Result<(), BoxError> {
        value.extend_from_slice(item.as_ref());
        Ok(())
    }
}
