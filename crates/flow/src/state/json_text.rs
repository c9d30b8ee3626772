//! JSON values as texts, for formats that do not describe themselves. An absent value is another one than `null`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

pub fn serialize<S: Serializer>(value: &Value, serializer: S) -> Result<S::Ok, S::Error> {
    value.to_string().serialize(serializer)
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    let text = String::deserialize(deserializer)?;
    serde_json::from_str(&text).map_err(D::Error::custom)
}

pub mod optional {
    use super::*;

    pub fn serialize<S: Serializer>(
        value: &Option<Value>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().map(Value::to_string).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Value>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        let value = text.map(|text| serde_json::from_str(&text));
        value.transpose().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::state::ordered::StateValue;

    #[test]
    fn values_including_null_round_trip_between_ranks() {
        let values = [
            None,
            Some(json!(null)),
            Some(json!(0.1 + 0.2)),
            Some(json!({ "a": [u64::MAX, "ü"] })),
        ];
        for value in values {
            let value = StateValue {
                value,
                is_committed: true,
                checkpoint: Some(7),
            };
            let sent = postcard::to_stdvec(&value).unwrap();
            assert_eq!(postcard::from_bytes(&sent), Ok(value));
        }
    }
}
