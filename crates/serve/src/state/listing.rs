//! The lists of flows and of their state elements: `/state` and `/state/<flow>`.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::Serialize;

use crate::Content;
use crate::error::RequestError;
use crate::shown::{Shown, flow_names, read, running};

/// A flow and the names of its state elements.
#[derive(Serialize)]
pub struct FlowElements {
    flow: String,
    elements: BTreeSet<String>,
}

/// Answers `/state`.
pub async fn flows(shown: State<Arc<Shown>>) -> Result<Json<Vec<FlowElements>>, RequestError> {
    read(shown, |shown| {
        let content = &*shown.content;
        let names = flow_names(content).into_iter();
        // A flow that ended meanwhile is left out.
        let flows = names.filter_map(|name| elements_of(content, name).ok());
        Ok(Json(flows.collect()))
    })
    .await
}

/// Answers `/state/<flow>`.
pub async fn elements(
    shown: State<Arc<Shown>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Json<FlowElements>, RequestError> {
    let Path(name) = path?;
    read(shown, move |shown| {
        elements_of(&*shown.content, name).map(Json)
    })
    .await
}

fn elements_of(content: &dyn Content, name: String) -> Result<FlowElements, RequestError> {
    let ranks = running(content, &name, None)?;
    let elements = ranks.iter().flat_map(|rank| rank.state_names());
    Ok(FlowElements {
        elements: elements.map(str::to_owned).collect(),
        flow: name,
    })
}
