//! The bytes of a shard, by the names of the elements that resume from them, and the names that stages give theirs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::BoxError;

const STAGE: &str = "stage/";
const SOURCE: &str = "/source";
const TIME: &str = "/time";
const WATERMARK: &str = "/watermark";

/// A rank's shard of a checkpoint: for each element of the flow the bytes that it resumes from.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    elements: BTreeMap<String, Vec<u8>>,
}

impl Saved {
    pub fn put(&mut self, element: String, bytes: Vec<u8>) {
        self.elements.insert(element, bytes);
    }

    /// The names of all elements.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.elements.keys().map(String::as_str)
    }

    /// # Errors
    /// When there is no such element.
    pub fn get(&self, element: &str) -> Result<&[u8], BoxError> {
        let bytes = self.elements.get(element);
        bytes.map(Vec::as_slice).ok_or_else(|| {
            format!("it holds nothing of \"{element}\": it is of another flow").into()
        })
    }
}

/// Names the position of a source, an instance of a stage.
pub fn source_element(stage: &str, instance: usize) -> String {
    format!("{STAGE}{stage}/{instance}{SOURCE}")
}

/// Names the event time of a source.
pub fn time_element(stage: &str, instance: usize) -> String {
    format!("{STAGE}{stage}/{instance}{TIME}")
}

/// Names the watermark that an instance of a stage has come to.
pub fn watermark_element(stage: &str, instance: usize) -> String {
    format!("{STAGE}{stage}/{instance}{WATERMARK}")
}

/// Whether an element is the watermark of an instance.
pub fn is_watermark(element: &str) -> bool {
    element.starts_with(STAGE) && element.ends_with(WATERMARK)
}

/// Returns the stage of a source's element.
pub fn source_of(element: &str) -> Option<&str> {
    let instance = element.strip_prefix(STAGE)?;
    let of_source = instance.strip_suffix(SOURCE);
    let instance = of_source.or_else(|| instance.strip_suffix(TIME))?;
    Some(instance.rsplit_once('/')?.0)
}
