//! The native requests, for features that Kafka's protocol lacks: reads and writes of streamlets, groups and
//! segments (kera, tables 6.1 and 6.2), records by key, objects, and push.
//!
//! Their keys start at 10000. All versions have the encoding of Kafka's flexible versions; most requests have only one.
//! `docs/protocol.md` describes all fields, and a test holds it against the comments here.

mod chunks;
mod find_keys;
mod groups;
mod holds;
mod keys;
mod objects;
mod push;
mod streams;

pub use chunks::*;
pub use find_keys::*;
pub use groups::*;
pub use holds::*;
pub use keys::*;
pub use objects::*;
pub use push::*;
pub use streams::*;

#[cfg(test)]
use std::collections::BTreeMap;

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use millstream_base::{
    ByteSize, Cursor, GroupId, LaneIndex, Offset, Position, SegmentIndex, StreamId, StreamletIndex,
    Timestamp,
};
use uuid::Uuid;

use crate::error::Malformed;
#[cfg(any(test, feature = "forge"))]
use crate::forge::Forge;
use crate::input::Input;
use crate::pieces::Output;

/// A type of fields in native messages: its encoding, and its name in the documentation.
pub(crate) trait Field: Sized {
    fn decode(input: &mut Input, name: &str) -> Result<Self, Malformed>;

    fn encode(&self, output: &mut Output);

    /// Returns the type's name in the documentation.
    #[cfg(test)]
    fn type_name() -> String;

    /// Returns a random value.
    #[cfg(any(test, feature = "forge"))]
    fn forge(forge: &mut Forge) -> Self;
}

/// The answer to a native request. All of them begin with the same fields.
pub trait Answer: Default {
    /// Returns the answer that refuses a whole request. It has nothing but the error.
    fn refused(error_code: i16, error_message: StrBytes) -> Self;
}

/// Declares the native messages of a module. The fields of all answers precede those of a message that is marked as an
/// `Answer`.
macro_rules! native {
    ($($(#[$attribute:meta])* $name:ident $(: $answer:ident)? { $($fields:tt)* })*) => {
        $crate::native::messages! {
            $($(#[$attribute])* $name $(: $answer)? { $($fields)* })*
        }

        /// The messages of this module, which the documentation repeats.
        #[cfg(test)]
        pub(crate) const DESCRIBED: &[(&str, fn() -> Vec<[String; 3]>)] =
            &[$((stringify!($name), <$name as $crate::native::Described>::fields)),*];
    };
}
use native;

/// Declares messages. On the wire the fields of a message have this order, and tagged fields follow them. A field with
/// `[version, value]` exists from this version of the request on, and has this value in older ones. A message that is not
/// inside another one cannot be encoded in an older version with another value; an inner one leaves the field out.
macro_rules! messages {
    ($($(#[$attribute:meta])* $name:ident $(: $answer:ident)? { $($fields:tt)* })*) => {
        $($crate::native::message! { $(#[$attribute])* $name $(: $answer)? { $($fields)* } })*
    };
}
pub(crate) use messages;

/// Declares a message.
macro_rules! message {
    ($(#[$attribute:meta])* $name:ident: Answer { $($fields:tt)* }) => {
        $crate::native::message! {
            $(#[$attribute])*
            #[derive(Default)]
            $name {
                /// How long the client must wait before its next request.
                throttle_time_ms: u32,
                /// The error of the whole request: 0, or one of Kafka's error codes.
                error_code: i16,
                /// The description of the error.
                error_message: Option<$crate::StrBytes>,
                $($fields)*
            }
        }

        impl $crate::native::Answer for $name {
            fn refused(error_code: i16, error_message: $crate::StrBytes) -> $name {
                $name {
                    error_code,
                    error_message: Some(error_message),
                    ..$name::default()
                }
            }
        }
    };
    ($(#[$attribute:meta])* $name:ident {
        $($(#[doc = $doc:literal])* $field:ident: $type:ty $([$from:literal, $missing:expr])?,)*
    }) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $doc])* pub $field: $type,)*
        }

        impl $crate::native::Field for $name {
            fn decode(
                input: &mut $crate::input::Input,
                _: &str,
            ) -> Result<$name, $crate::error::Malformed> {
                $(
                    let $field = $(if input.version() < $from {
                        $missing
                    } else)? {
                        $crate::native::Field::decode(input, stringify!($field))?
                    };
                )*
                input.tags()?;
                Ok($name { $($field,)* })
            }

            fn encode(&self, output: &mut $crate::pieces::Output) {
                $(
                    $(if output.version() >= $from)? {
                        $crate::native::Field::encode(&self.$field, output);
                    }
                )*
                output.no_tags();
            }

            #[cfg(test)]
            fn type_name() -> String {
                stringify!($name).to_owned()
            }

            #[cfg(any(test, feature = "forge"))]
            fn forge(forge: &mut $crate::forge::Forge) -> $name {
                // A message without fields does not use it otherwise.
                let _ = &forge;
                $(
                    let $field = $(if forge.version() < $from {
                        $missing
                    } else)? {
                        $crate::native::Field::forge(forge)
                    };
                )*
                $name { $($field,)* }
            }
        }

        impl $crate::body::Body for $name {
            fn decode(
                input: &mut $crate::input::Input,
                version: i16,
            ) -> Result<$name, $crate::error::Malformed> {
                input.set_version(version);
                $crate::native::Field::decode(input, stringify!($name))
            }

            fn encode(&self, output: &mut $crate::pieces::Output, version: i16) -> Result<(), String> {
                $($(
                    if version < $from {
                        $crate::body::needed(self.$field == $missing, stringify!($field), $from)?;
                    }
                )?)*
                output.set_version(version);
                $crate::native::Field::encode(self, output);
                Ok(())
            }
        }

        #[cfg(test)]
        impl $crate::native::Described for $name {
            fn fields() -> Vec<[String; 3]> {
                vec![$([
                    stringify!($field).to_owned(),
                    <$type as $crate::native::Field>::type_name(),
                    concat!($($doc),*).trim().to_owned(),
                ],)*]
            }
        }

        #[cfg(any(test, feature = "forge"))]
        impl $crate::forge::Forged for $name {
            fn forge(forge: &mut $crate::forge::Forge, version: i16) -> Option<$name> {
                forge.set_version(version);
                Some($crate::native::Field::forge(forge))
            }
        }
    };
}
pub(crate) use message;

/// The description of a message.
#[cfg(test)]
pub(crate) trait Described {
    /// Returns the name, type and meaning of each field, in their order.
    fn fields() -> Vec<[String; 3]>;
}

/// Returns all native messages with their fields.
#[cfg(test)]
pub(crate) fn described() -> BTreeMap<&'static str, Vec<[String; 3]>> {
    let modules = [
        chunks::DESCRIBED,
        find_keys::DESCRIBED,
        groups::DESCRIBED,
        holds::DESCRIBED,
        keys::DESCRIBED,
        objects::DESCRIBED,
        push::DESCRIBED,
        streams::DESCRIBED,
    ];
    let messages = modules.into_iter().flatten();
    messages.map(|(name, fields)| (*name, fields())).collect()
}

/// Bytes of any size. The sender writes them from where they lie; the receiver gets one piece.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Payload(pub Vec<Bytes>);

impl Payload {
    /// Returns the number of bytes in all pieces.
    pub fn size(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Payload {
        match bytes.is_empty() {
            true => Payload::default(),
            false => Payload(vec![bytes]),
        }
    }
}

macro_rules! field {
    ($($type:ty, $name:literal, $method:ident,
        $value:ident => $wrap:expr, $field:ident => $unwrap:expr;)*) => {
        $(
            impl Field for $type {
                fn decode(input: &mut Input, name: &str) -> Result<$type, Malformed> {
                    let $value = input.$method(name)?;
                    Ok($wrap)
                }

                fn encode(&self, output: &mut Output) {
                    let $field = self;
                    output.$method($unwrap);
                }

                #[cfg(test)]
                fn type_name() -> String {
                    $name.to_owned()
                }

                #[cfg(any(test, feature = "forge"))]
                fn forge(forge: &mut Forge) -> $type {
                    let $value = forge.$method();
                    $wrap
                }
            }
        )*
    };
}

// The type, its name in the documentation, the method that reads or writes it, and the conversions.
field! {
    bool, "bool", boolean, value => value, field => *field;
    i8, "int8", int8, value => value, field => *field;
    i16, "int16", int16, value => value, field => *field;
    i32, "int32", int32, value => value, field => *field;
    i64, "int64", int64, value => value, field => *field;
    u16, "uint16", uint16, value => value, field => *field;
    u32, "uint32", uint32, value => value, field => *field;
    u64, "uint64", uint64, value => value, field => *field;
    StreamId, "uint64", uint64, value => StreamId(value), field => field.0;
    StreamletIndex, "uint32", uint32, value => StreamletIndex(value), field => field.0;
    LaneIndex, "uint32", uint32, value => LaneIndex(value), field => field.0;
    GroupId, "uint64", uint64, value => GroupId(value), field => field.0;
    SegmentIndex, "uint32", uint32, value => SegmentIndex(value), field => field.0;
    Position, "uint64", uint64, value => Position(value), field => field.0;
    Offset, "uint64", uint64, value => Offset(value), field => field.0;
    Timestamp, "int64", int64, value => Timestamp(value), field => field.0;
    ByteSize, "uint64", uint64, value => ByteSize(value), field => field.0;
    Uuid, "uuid", uuid, value => value, field => *field;
    StrBytes, "string", string, value => value, field => field;
    Option<StrBytes>, "nullable string", nullable_string, value => value, field => field.as_deref();
    Bytes, "bytes", bytes, value => value, field => std::slice::from_ref(field);
    Option<Bytes>, "nullable bytes", nullable_bytes, value => value, field => field.as_ref();
    Payload, "bytes", bytes, value => Payload::from(value), field => &field.0;
}

impl<T: Field> Field for Vec<T> {
    fn decode(input: &mut Input, name: &str) -> Result<Vec<T>, Malformed> {
        input.array(name, |input| T::decode(input, name))
    }

    fn encode(&self, output: &mut Output) {
        output.array(self, |output, element| element.encode(output));
    }

    #[cfg(test)]
    fn type_name() -> String {
        format!("array of {}", T::type_name())
    }

    #[cfg(any(test, feature = "forge"))]
    fn forge(forge: &mut Forge) -> Vec<T> {
        (0..forge.below(3)).map(|_| T::forge(forge)).collect()
    }
}

/// A null array has the length 0, like a null string.
impl<T: Field> Field for Option<Vec<T>> {
    fn decode(input: &mut Input, name: &str) -> Result<Option<Vec<T>>, Malformed> {
        input.nullable_array(name, |input| T::decode(input, name))
    }

    fn encode(&self, output: &mut Output) {
        match self {
            Some(elements) => elements.encode(output),
            None => output.varint32(0),
        }
    }

    #[cfg(test)]
    fn type_name() -> String {
        format!("nullable array of {}", T::type_name())
    }

    #[cfg(any(test, feature = "forge"))]
    fn forge(forge: &mut Forge) -> Option<Vec<T>> {
        forge.boolean().then(|| Field::forge(forge))
    }
}

/// The byte before a nullable value.
const PRESENT: i8 = 1;
const NULL: i8 = -1;

/// Declares nullable types. A byte before the value announces whether it is null, as in Kafka's structures.
macro_rules! nullable {
    ($($type:ty),*) => {
        $(
            impl $crate::native::Field for Option<$type> {
                fn decode(
                    input: &mut $crate::input::Input,
                    name: &str,
                ) -> Result<Option<$type>, $crate::error::Malformed> {
                    if input.presence(name)? {
                        $crate::native::Field::decode(input, name).map(Some)
                    } else {
                        Ok(None)
                    }
                }

                fn encode(&self, output: &mut $crate::pieces::Output) {
                    output.presence(self.is_some());
                    if let Some(value) = self {
                        $crate::native::Field::encode(value, output);
                    }
                }

                #[cfg(test)]
                fn type_name() -> String {
                    format!("nullable {}", <$type as $crate::native::Field>::type_name())
                }

                #[cfg(any(test, feature = "forge"))]
                fn forge(forge: &mut $crate::forge::Forge) -> Option<$type> {
                    forge.boolean().then(|| $crate::native::Field::forge(forge))
                }
            }
        )*
    };
}
pub(crate) use nullable;

nullable!(u64, ByteSize);

impl Field for Cursor {
    fn decode(input: &mut Input, _: &str) -> Result<Cursor, Malformed> {
        Ok(Cursor {
            stream: Field::decode(input, "stream")?,
            streamlet: Field::decode(input, "streamlet")?,
            group: Field::decode(input, "group")?,
            segment: Field::decode(input, "segment")?,
            position: Field::decode(input, "position")?,
        })
    }

    fn encode(&self, output: &mut Output) {
        self.stream.encode(output);
        self.streamlet.encode(output);
        self.group.encode(output);
        self.segment.encode(output);
        self.position.encode(output);
    }

    #[cfg(test)]
    fn type_name() -> String {
        "Cursor".to_owned()
    }

    #[cfg(any(test, feature = "forge"))]
    fn forge(forge: &mut Forge) -> Cursor {
        Cursor {
            stream: Field::forge(forge),
            streamlet: Field::forge(forge),
            group: Field::forge(forge),
            segment: Field::forge(forge),
            position: Field::forge(forge),
        }
    }
}

impl Input {
    /// Reads whether a nullable value follows.
    pub(crate) fn presence(&mut self, name: &str) -> Result<bool, Malformed> {
        match self.int8(name)? {
            PRESENT => Ok(true),
            NULL => Ok(false),
            other => {
                Err(self.malformed(format!("{name} is neither present nor null, but {other}")))
            }
        }
    }
}

impl Output {
    pub(crate) fn presence(&mut self, is_present: bool) {
        self.int8(if is_present { PRESENT } else { NULL });
    }
}
