//! The rows that results leave, as a number of rows and a sum of hashes: the order does not matter.

use std::fmt::Debug;

use anyhow::Result;
use millstream::flow::Key;
use millstream::{Node, RowChange};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// The rows that results leave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    pub rows: i64,
    /// The sum, modulo 2^64.
    #[serde(deserialize_with = "from_hex", serialize_with = "to_hex")]
    pub hashes: u64,
}

/// Reads the rows that the results in a topic leave.
pub fn rows(node: &Node, query: &str) -> Result<Rows> {
    let mut rows = Rows::default();
    match query {
        "q15" => rows.add_last::<String>(node, query)?,
        "q16" => rows.add_last::<(String, String)>(node, query)?,
        _ => {
            let records = node.topic(query).json::<Value>().read_all()?;
            records
                .iter()
                .try_for_each(|record| rows.add_record(record))?;
        }
    }
    Ok(rows)
}

impl Rows {
    /// Adds the last record of each key.
    fn add_last<K: Key + Debug>(&mut self, node: &Node, topic: &str) -> Result<()> {
        let records = node.topic(topic).json::<Value>().read_keys::<K>()?;
        records.values().for_each(|row| self.add(row, 1));
        Ok(())
    }

    /// Adds a row, or a change of rows.
    fn add_record(&mut self, record: &Value) -> Result<()> {
        if record.get("op").is_none() {
            self.add(record, 1);
            return Ok(());
        }
        match serde_json::from_value::<RowChange<Value>>(record.clone())? {
            RowChange::Insert(row) | RowChange::UpdateAfter(row) => self.add(&row, 1),
            RowChange::UpdateBefore(row) | RowChange::Delete(row) => self.add(&row, -1),
        }
        Ok(())
    }

    fn add(&mut self, row: &Value, times: i64) {
        let mut columns = Vec::new();
        flatten(row, &mut columns);
        let hash = hash(&columns.join("\t"));
        self.rows += times;
        self.hashes = self.hashes.wrapping_add(hash.wrapping_mul(times as u64));
    }
}

/// Appends the columns of a row as text: fields in the order of the alphabet, and numbers that are no integers with three digits
/// behind the point.
fn flatten(value: &Value, columns: &mut Vec<String>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| flatten(value, columns)),
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            fields.iter().for_each(|(_, value)| flatten(value, columns));
        }
        Value::String(text) => columns.push(text.clone()),
        Value::Number(number) if number.is_f64() => {
            columns.push(format!("{:.3}", number.as_f64().unwrap_or(f64::NAN)));
        }
        other => columns.push(other.to_string()),
    }
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn from_hex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    u64::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
}

fn to_hex<S: serde::Serializer>(hash: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format!("{hash:016x}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(records: &[Value]) -> Rows {
        let mut rows = Rows::default();
        records
            .iter()
            .for_each(|record| rows.add_record(record).unwrap());
        rows
    }

    #[test]
    fn rows_are_those_that_changes_leave_in_any_order() {
        let change = |op: &str, row: Value| json!({ "op": op, "row": row });
        let changes = [
            change("+I", json!([1, "a"])),
            change("-U", json!([1, "a"])),
            change("+U", json!([1, "b"])),
            change("+I", json!([2, { "z": 4.5, "a": 3 }])),
        ];
        let left = of(&changes);
        assert_eq!(left, of(&[json!([2, 3, 4.5]), json!([1, "b"])]));
        assert_eq!(left.rows, 2);
        assert_ne!(left, of(&[json!([2, 3, 4.6]), json!([1, "b"])]));
    }
}
