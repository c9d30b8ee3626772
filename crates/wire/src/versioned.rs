//! Messages that several versions have, for those whose newest version the generated messages lack. All versions are
//! flexible. Unchanged parts have the generated types.

use bytes::Bytes;
use kafka_protocol::messages::{GroupId, TopicName};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use crate::error::Malformed;
#[cfg(any(test, feature = "forge"))]
use crate::forge::Forge;
use crate::input::Input;
use crate::native::Field;
use crate::pieces::Output;

/// A type of fields in messages with several versions.
pub(crate) trait Versioned: Sized {
    fn decode(input: &mut Input, name: &str, version: i16) -> Result<Self, Malformed>;

    /// Writes it. An error names the field that the version lacks.
    fn encode(&self, output: &mut Output, version: i16) -> Result<(), String>;

    /// Returns a random value, if the attempt succeeds.
    #[cfg(any(test, feature = "forge"))]
    fn forge(forge: &mut Forge, version: i16) -> Option<Self>;
}

/// Declares a message. On the wire its fields have this order, and tagged fields follow them. A field with `[version, value]`
/// exists from this version on, and has this value in older ones. With `needed` behind the value, an older version cannot
/// be encoded with another value; without it, the value is left out.
macro_rules! versioned {
    ($($(#[$attribute:meta])* $name:ident {
        $($(#[doc = $doc:literal])* $field:ident: $type:ty $([$from:literal, $missing:expr $(, $needed:ident)?])?,)*
    })*) => {
        $(
            $(#[$attribute])*
            #[derive(Debug, Clone, PartialEq)]
            pub struct $name {
                $($(#[doc = $doc])* pub $field: $type,)*
            }

            impl $crate::versioned::Versioned for $name {
                fn decode(
                    input: &mut $crate::input::Input,
                    _: &str,
                    version: i16,
                ) -> Result<$name, $crate::error::Malformed> {
                    $(
                        let $field = $(if version < $from {
                            $missing
                        } else)? {
                            $crate::versioned::Versioned::decode(input, stringify!($field), version)?
                        };
                    )*
                    input.tags()?;
                    Ok($name { $($field,)* })
                }

                fn encode(&self, output: &mut $crate::pieces::Output, version: i16) -> Result<(), String> {
                    $(
                        $(if version < $from {
                            $($crate::body::$needed(self.$field == $missing, stringify!($field), $from)?;)?
                        } else)? {
                            $crate::versioned::Versioned::encode(&self.$field, output, version)?;
                        }
                    )*
                    output.no_tags();
                    Ok(())
                }

                #[cfg(any(test, feature = "forge"))]
                fn forge(forge: &mut $crate::forge::Forge, version: i16) -> Option<$name> {
                    $(
                        let $field = $(if version < $from {
                            $missing
                        } else)? {
                            $crate::versioned::Versioned::forge(forge, version)?
                        };
                    )*
                    Some($name { $($field,)* })
                }
            }

            impl $crate::body::Body for $name {
                fn decode(
                    input: &mut $crate::input::Input,
                    version: i16,
                ) -> Result<$name, $crate::error::Malformed> {
                    $crate::versioned::Versioned::decode(input, stringify!($name), version)
                }

                fn encode(&self, output: &mut $crate::pieces::Output, version: i16) -> Result<(), String> {
                    $crate::versioned::Versioned::encode(self, output, version)
                }
            }

            #[cfg(any(test, feature = "forge"))]
            impl $crate::forge::Forged for $name {
                fn forge(forge: &mut $crate::forge::Forge, version: i16) -> Option<$name> {
                    $crate::versioned::Versioned::forge(forge, version)
                }
            }
        )*
    };
}
pub(crate) use versioned;

/// Declares types that are encoded like native messages.
macro_rules! primitive {
    ($($type:ty)*) => {
        $(
            impl Versioned for $type {
                fn decode(input: &mut Input, name: &str, _: i16) -> Result<$type, Malformed> {
                    Field::decode(input, name)
                }

                fn encode(&self, output: &mut Output, _: i16) -> Result<(), String> {
                    Field::encode(self, output);
                    Ok(())
                }

                #[cfg(any(test, feature = "forge"))]
                fn forge(forge: &mut Forge, _: i16) -> Option<$type> {
                    Some(Field::forge(forge))
                }
            }
        )*
    };
}

primitive!(bool i8 i16 i32 i64 Uuid Option<StrBytes>);

/// Declares names, which are encoded like strings.
macro_rules! name {
    ($($name:ident)*) => {
        $(
            impl Versioned for $name {
                fn decode(input: &mut Input, name: &str, _: i16) -> Result<$name, Malformed> {
                    input.string(name).map($name)
                }

                fn encode(&self, output: &mut Output, _: i16) -> Result<(), String> {
                    output.string(self);
                    Ok(())
                }

                #[cfg(any(test, feature = "forge"))]
                fn forge(forge: &mut Forge, _: i16) -> Option<$name> {
                    Some($name(forge.string()))
                }
            }
        )*
    };
}

name!(GroupId TopicName);

impl Versioned for Option<GroupId> {
    fn decode(input: &mut Input, name: &str, _: i16) -> Result<Option<GroupId>, Malformed> {
        Ok(input.nullable_string(name)?.map(GroupId))
    }

    fn encode(&self, output: &mut Output, _: i16) -> Result<(), String> {
        output.nullable_string(self.as_ref().map(|id| &***id));
        Ok(())
    }

    #[cfg(any(test, feature = "forge"))]
    fn forge(forge: &mut Forge, _: i16) -> Option<Option<GroupId>> {
        Some(forge.nullable_string().map(GroupId))
    }
}

impl<T: Versioned> Versioned for Vec<T> {
    fn decode(input: &mut Input, name: &str, version: i16) -> Result<Vec<T>, Malformed> {
        input.array(name, |input| T::decode(input, name, version))
    }

    fn encode(&self, output: &mut Output, version: i16) -> Result<(), String> {
        output.length(self.len());
        let mut elements = self.iter();
        elements.try_for_each(|element| element.encode(output, version))
    }

    #[cfg(any(test, feature = "forge"))]
    fn forge(forge: &mut Forge, version: i16) -> Option<Vec<T>> {
        (0..forge.below(3))
            .map(|_| T::forge(forge, version))
            .collect()
    }
}

/// Records in pieces, which are sent without a copy. Null means none.
impl Versioned for Vec<Bytes> {
    fn decode(input: &mut Input, name: &str, _: i16) -> Result<Vec<Bytes>, Malformed> {
        let records = input.nullable_bytes(name)?.into_iter();
        Ok(records.filter(|records| !records.is_empty()).collect())
    }

    fn encode(&self, output: &mut Output, _: i16) -> Result<(), String> {
        output.bytes(self);
        Ok(())
    }

    #[cfg(any(test, feature = "forge"))]
    fn forge(forge: &mut Forge, _: i16) -> Option<Vec<Bytes>> {
        let records = Some(forge.bytes()).filter(|records| !records.is_empty());
        Some(records.into_iter().collect())
    }
}

/// Declares generated types, in the version that they have.
macro_rules! generated {
    ($version:literal: $($type:ty),*) => {
        $(
            impl $crate::versioned::Versioned for $type {
                fn decode(
                    input: &mut $crate::input::Input,
                    _: &str,
                    _: i16,
                ) -> Result<$type, $crate::error::Malformed> {
                    input.message($version)
                }

                fn encode(&self, output: &mut $crate::pieces::Output, _: i16) -> Result<(), String> {
                    kafka_protocol::protocol::Encodable::encode(self, output.copied(), $version)
                        .map_err(|error| error.to_string())
                }

                #[cfg(any(test, feature = "forge"))]
                fn forge(forge: &mut $crate::forge::Forge, _: i16) -> Option<$type> {
                    $crate::forge::Forged::forge(forge, $version)
                }
            }
        )*
    };
}
pub(crate) use generated;
