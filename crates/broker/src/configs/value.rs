//! Values of settings: their types, and the parsing of their texts.

use std::collections::HashSet;

/// Types of values in Kafka's protocol.
const TYPE_BOOLEAN: i8 = 1;
const TYPE_STRING: i8 = 2;
const TYPE_INT: i8 = 3;
const TYPE_LONG: i8 = 5;
const TYPE_DOUBLE: i8 = 6;
const TYPE_LIST: i8 = 7;

/// The item for all partitions in a list of throttled replicas.
const ALL_REPLICAS: &str = "*";

/// The valid values of a setting.
#[derive(Debug, Clone, Copy)]
pub enum Values {
    /// `true` or `false`.
    Boolean,
    /// Any text.
    Text,
    /// One of these.
    Choice(&'static [&'static str]),
    /// A text that the function accepts.
    Checked(fn(&str) -> Result<(), String>),
    /// A number of 32 bits within these bounds, both included.
    Int(i32, i32),
    /// As [`Int`](Values::Int), or -1.
    IntOrNone(i32, i32),
    /// A number of 64 bits from this one on.
    Long(i64),
    /// A fraction from 0 to 1.
    Ratio,
    /// An amount in a second, which Kafka stores as a fraction, too.
    Rate,
    /// A list, with commas between its items: of these, or of any if there are none here.
    List(&'static [&'static str]),
    /// A list of `partition:broker`, or `*`.
    Replicas,
}

impl Values {
    /// The number of the type in Kafka's protocol.
    pub fn code(self) -> i8 {
        match self {
            Values::Boolean => TYPE_BOOLEAN,
            Values::Text | Values::Choice(_) | Values::Checked(_) => TYPE_STRING,
            Values::Int(..) | Values::IntOrNone(..) => TYPE_INT,
            Values::Long(_) => TYPE_LONG,
            Values::Ratio | Values::Rate => TYPE_DOUBLE,
            Values::List(_) | Values::Replicas => TYPE_LIST,
        }
    }

    /// Whether values are lists.
    pub fn is_list(self) -> bool {
        matches!(self, Values::List(_) | Values::Replicas)
    }

    /// Parses a value, and returns it in the form that is stored and shown.
    ///
    /// # Errors
    /// When the value is not valid; the message says why.
    pub fn read(self, text: &str) -> Result<String, String> {
        let text = text.trim();
        match self {
            Values::Boolean => {
                let known = ["true", "false"];
                let found = known.iter().find(|known| known.eq_ignore_ascii_case(text));
                let found = found.ok_or_else(|| format!("{text:?} is neither true nor false"));
                found.map(|known| (*known).to_owned())
            }
            Values::Text => Ok(text.to_owned()),
            Values::Choice(known) => {
                one_of(text, known)?;
                Ok(text.to_owned())
            }
            Values::Checked(check) => {
                check(text)?;
                Ok(text.to_owned())
            }
            Values::Int(min, max) => whole(text, min.into(), max.into()),
            Values::IntOrNone(..) if text == "-1" => Ok(text.to_owned()),
            Values::IntOrNone(min, max) => {
                let read = whole(text, min.into(), max.into());
                read.map_err(|why| format!("{why}, and not -1 for the default"))
            }
            Values::Long(min) => whole(text, min, i64::MAX),
            Values::Ratio => match text.parse::<f64>() {
                Ok(number) if (0.0..=1.0).contains(&number) => Ok(text.to_owned()),
                _ => Err(format!("{text:?} is no number from 0 to 1")),
            },
            Values::Rate => match text.parse::<f64>() {
                Ok(number) if number > 0.0 && number.is_finite() => Ok(text.to_owned()),
                _ => Err(format!("{text:?} is no number above 0")),
            },
            Values::List(known) => {
                let items = items_of(text);
                if !known.is_empty() {
                    items.iter().try_for_each(|item| one_of(item, known))?;
                }
                Ok(items.join(","))
            }
            Values::Replicas => {
                let items = items_of(text);
                let is_place = |item: &&str| {
                    let place = item.split_once(':');
                    place.is_some_and(|(partition, broker)| {
                        partition.parse::<u32>().is_ok() && broker.parse::<u32>().is_ok()
                    })
                };
                match items.iter().all(is_place) || items == [ALL_REPLICAS] {
                    true => Ok(items.join(",")),
                    false => Err(format!(
                        "{text:?} is neither * nor a list of partition:broker"
                    )),
                }
            }
        }
    }
}

/// The items of a list, each once, in the order in which they come first.
pub fn items_of(list: &str) -> Vec<&str> {
    let mut seen = HashSet::new();
    let items = list.split(',').map(str::trim);
    items
        .filter(|item| !item.is_empty() && seen.insert(*item))
        .collect()
}

fn one_of(text: &str, known: &[&str]) -> Result<(), String> {
    match known.contains(&text) {
        true => Ok(()),
        false => Err(format!("{text:?} is none of {}", known.join(", "))),
    }
}

fn whole(text: &str, min: i64, max: i64) -> Result<String, String> {
    match text.parse::<i64>() {
        Ok(number) if (min..=max).contains(&number) => Ok(number.to_string()),
        _ if max == i64::MAX => Err(format!("{text:?} is no whole number from {min} on")),
        _ => Err(format!("{text:?} is no whole number from {min} to {max}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_kafka_reads_them() {
        let choice = Values::Choice(&["gzip", "producer"]);
        let list = Values::List(&["compact", "delete"]);
        for (values, text, expected) in [
            (Values::Boolean, "TRUE", Some("true")),
            (Values::Boolean, "yes", None),
            (Values::Int(1, 9), " 5 ", Some("5")),
            (Values::Int(1, 9), "10", None),
            (Values::Int(0, i32::MAX), "3000000000", None),
            (Values::IntOrNone(1, 9), "-1", Some("-1")),
            (Values::IntOrNone(1, 9), "0", None),
            (Values::Long(-1), "-1", Some("-1")),
            (Values::Long(-1), "-2", None),
            (Values::Long(-1), "x", None),
            (Values::Ratio, "0.5", Some("0.5")),
            (Values::Ratio, "1.5", None),
            (Values::Ratio, "NaN", None),
            (choice, "gzip", Some("gzip")),
            (choice, "brotli", None),
            (list, "delete, delete", Some("delete")),
            (list, "delete,x", None),
            (Values::List(&[]), "b,a,,b", Some("b,a")),
            (Values::Replicas, "0:1,2:3", Some("0:1,2:3")),
            (Values::Replicas, "*", Some("*")),
            (Values::Replicas, "", Some("")),
            (Values::Replicas, "*,0:1", None),
            (Values::Replicas, "x", None),
        ] {
            let read = values.read(text);
            assert_eq!(read.as_deref().ok(), expected, "{values:?} {text:?}");
        }
    }
}
