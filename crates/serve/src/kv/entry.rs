//! Entries of keyed streams, as pages and events show them.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use millstream_base::{Offset, Timestamp};
use serde::Serialize;
use serde_json::value::RawValue;

#[derive(Serialize)]
pub struct Entry<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secondary: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secondary_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// Names one of the entries of a key of state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<&'a RawValue>,
    pub partition: u32,
    pub version: Offset,
    pub timestamp: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<ShownValue<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
}

/// A value that is text.
#[derive(Serialize)]
#[serde(untagged)]
pub enum ShownValue<'a> {
    /// As it is stored, so that numbers keep all their digits.
    Json(&'a RawValue),
    Text(&'a str),
}

pub fn shown_value(value: &[u8]) -> Option<ShownValue<'_>> {
    match serde_json::from_slice(value) {
        Ok(json) => Some(ShownValue::Json(json)),
        Err(_) => std::str::from_utf8(value).ok().map(ShownValue::Text),
    }
}

/// Returns bytes as text, or in base64 if they are not UTF-8.
pub fn text(bytes: Option<&[u8]>) -> (Option<&str>, Option<String>) {
    match bytes.map(std::str::from_utf8) {
        None => (None, None),
        Some(Ok(text)) => (Some(text), None),
        Some(Err(_)) => (None, bytes.map(|bytes| BASE64_STANDARD.encode(bytes))),
    }
}
