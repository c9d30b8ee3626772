//! Errors of keys.

use std::fmt::Display;

use serde::{de, ser};

use super::format::LEVELS_MAX;

/// The error of a key that has no encoding, or of bytes that are not the key of a type.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// A value needs more bytes than the key has.
    #[error("the key ends at byte {at}, within a value")]
    Ends {
        /// The length of the key.
        at: usize,
    },
    /// Bytes follow the value.
    #[error(
        "the value ends at byte {at}, and the key has {len} bytes; was it written with another type?"
    )]
    Trailing {
        /// The length of the value.
        at: usize,
        /// The length of the key.
        len: usize,
    },
    /// A byte has a value that no key of this type has there.
    #[error(
        "byte {at} of the key does not fit: expected {expected}; was it written with another type?"
    )]
    Unexpected {
        /// The position of the byte.
        at: usize,
        /// The values that may stand there.
        expected: &'static str,
    },
    /// The key is nested too deeply.
    #[error("the key has more than {LEVELS_MAX} levels; use a flatter type")]
    Levels,
    /// The type leaves a field out, so a reader cannot know which fields the key has.
    #[error("field {field} of a key is left out; remove `skip_serializing_if` from it")]
    SkippedField {
        /// The name of the field.
        field: &'static str,
    },
    /// A tuple has other parts than it announced.
    #[error(
        "a tuple or struct of a key has another number of parts than its `Serialize` announces"
    )]
    Parts,
    /// The type asks the key for its own type, which the bytes do not contain.
    #[error(
        "keys do not describe themselves, so untagged enums and flattened fields cannot be read; use a plain type"
    )]
    NotSelfDescribing,
    /// An error of the type's own `Serialize` or `Deserialize`.
    #[error("{0}")]
    Type(String),
}

crate::debug_as_display!(KeyError);

impl ser::Error for KeyError {
    fn custom<T: Display>(message: T) -> Self {
        KeyError::Type(message.to_string())
    }
}

impl de::Error for KeyError {
    fn custom<T: Display>(message: T) -> Self {
        KeyError::Type(message.to_string())
    }
}
