//! Reads of a state element by secondary keys: another element has them as its keys, and keys of the read one as values.

use std::collections::BTreeSet;
use std::thread;

use serde_json::Value;

use super::element::{Element, Entry, Found, List, READ_AGAIN_AFTER, READS_MAX};
use super::query::{StateQuery, Wanted};
use super::ranks::FlowRanks;
use crate::bounds::ENTRIES_MAX;
use crate::error::RequestError;

/// The element that a request reads, and the one with its secondary keys.
pub struct Elements {
    pub element: Element,
    by: Option<Element>,
}

impl Elements {
    /// Finds the elements of a request.
    pub fn find(
        ranks: &FlowRanks,
        name: &str,
        query: &StateQuery,
    ) -> Result<Elements, RequestError> {
        let element = Element::find(ranks, name, query)?;
        let by = query.by.as_deref();
        let by = by.map(|by| Element::find(ranks, by, query)).transpose();
        let by = by.map_err(|error| match error {
            RequestError::UnknownElement { flow, element } => {
                let known: BTreeSet<&str> = ranks.first().state_names().collect();
                RequestError::UnknownBy {
                    known: known.into_iter().map(str::to_owned).collect(),
                    flow,
                    element,
                }
            }
            error => error,
        })?;
        Ok(Elements { element, by })
    }

    /// Reads committed values of this checkpoint or a later one.
    pub fn since(&mut self, checkpoint: u64) {
        self.element.since(checkpoint);
        self.by.iter_mut().for_each(|by| by.since(checkpoint));
    }

    /// Reads the wanted entries.
    pub fn list(&self, wanted: &Wanted) -> Result<List, RequestError> {
        match &self.by {
            Some(by) => list(&self.element, by, wanted),
            None => self.element.list(wanted),
        }
    }
}

/// Reads the entries of `element` whose keys the wanted entries of `by` name.
fn list(element: &Element, by: &Element, wanted: &Wanted) -> Result<List, RequestError> {
    for _ in 0..READS_MAX {
        let secondary = by.list(wanted)?;
        let named = named_keys(element, by, secondary.entries)?;
        let keys: Vec<String> = named.iter().map(|(_, key)| key.clone()).collect();
        let values = match keys.is_empty() {
            true => Vec::new(),
            false => element.all_values(&keys)?,
        };
        let mut checkpoints = values.iter().flatten().map(|value| value.checkpoint);
        if checkpoints.any(|it| it != secondary.found.checkpoint) {
            thread::sleep(READ_AGAIN_AFTER);
            continue;
        }
        let found = values.iter().flatten().map(|value| Found::of(Some(value)));
        let found = Found::all([secondary.found].into_iter().chain(found));
        let entries = named.into_iter().zip(values);
        let entries = entries.filter_map(|((by, key), value)| {
            let (by, value) = (Some(by), value?.value?);
            Some(Entry { by, key, value })
        });
        return Ok(List {
            entries: entries.collect(),
            next: secondary.next,
            found,
        });
    }
    Err(RequestError::Checkpoints)
}

/// Returns each secondary key with each key that its value names.
fn named_keys(
    element: &Element,
    by: &Element,
    entries: Vec<Entry>,
) -> Result<Vec<(String, String)>, RequestError> {
    let mut named = Vec::new();
    for Entry {
        key: secondary,
        value,
        ..
    } in entries
    {
        let values = match value {
            Value::Array(values) => values,
            value => vec![value],
        };
        for value in values {
            let key = text_of(&value).filter(|key| element.may_have(key));
            let key = key.ok_or_else(|| RequestError::KeysBy {
                by: by.name.clone(),
                element: element.name.clone(),
                key: secondary.clone(),
                value: shortened(&value),
            })?;
            named.push((secondary.clone(), key));
            if named.len() > ENTRIES_MAX {
                return Err(RequestError::ManyKeysBy {
                    by: by.name.clone(),
                });
            }
        }
    }
    Ok(named)
}

/// Returns the text of the key that a value is; `None` for one that is no key.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Array(_) => Some(value.to_string()),
        Value::Null | Value::Bool(_) | Value::Object(_) => None,
    }
}

/// Returns the first characters of a value.
fn shortened(value: &Value) -> String {
    const CHARACTERS_MAX: usize = 100;
    let text = value.to_string();
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_texts_numbers_and_lists_are_keys() {
        let cases = [
            (json!("a"), Some("a")),
            (json!(7), Some("7")),
            (json!(["a", 7]), Some(r#"["a",7]"#)),
            (json!(null), None),
            (json!(true), None),
            (json!({ "a": 1 }), None),
        ];
        for (value, key) in cases {
            assert_eq!(text_of(&value).as_deref(), key, "{value}");
        }
        assert_eq!(shortened(&json!("ä".repeat(1_000))).chars().count(), 101);
    }
}
