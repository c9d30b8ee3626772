//! The names of topics.

use millstream_log::is_reserved;

/// Kafka's bound on names of topics.
pub const NAME_BYTES_MAX: usize = 249;

/// Checks a name by Kafka's rules for the names of topics.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match name {
        "" => Err("a topic has a name"),
        name if is_reserved(name) => Err("it is the name of one of the broker's own topics"),
        "." | ".." => Err("a topic is not called . or .."),
        name if name.len() > NAME_BYTES_MAX => Err("the name is longer than 249 characters"),
        name if !name.bytes().all(is_allowed) => {
            Err("a name has letters, digits, '.', '_' and '-' only")
        }
        _ => Ok(()),
    }
}
