//! How a flow begins: all ranks run the same graph, and go on from the same checkpoint, if from any.

use std::hash::{BuildHasher, Hasher, RandomState};

use foldhash::fast::FixedState;
use millstream_exchange::Fingerprint;

use crate::checkpoint::{Beginning, Keeper};
use crate::cuts::Purpose;
use crate::error::{BoxError, FlowError};
use crate::graph::Flow;

/// Agrees with all other ranks; brings back what a checkpoint has kept. Returns what cuts are for.
pub fn begin(flow: &Flow) -> Result<Purpose, FlowError> {
    let wrong = |error: BoxError| FlowError::Checkpoint {
        flow: flow.name.clone(),
        error: error.into(),
    };
    let keeper = keeper(flow);
    let resume = flow.settings.checkpoints.as_ref().map(|it| it.resume);
    let beginning = match (&keeper, resume) {
        (Some(keeper), Some(resume)) => keeper.beginning(resume).map_err(wrong)?,
        _ => None,
    };
    let number = beginning.as_ref().map_or(0, |beginning| beginning.number);
    let agreed = agree(flow, number)?;
    let seed = beginning
        .as_ref()
        .map_or(agreed, |beginning| beginning.seed);
    flow.homes.settle(seed);
    if let Some(beginning) = &beginning {
        restore(flow, beginning).map_err(wrong)?;
    }
    Ok(match keeper {
        Some(keeper) => {
            keeper.begin(number, seed);
            Purpose::Checkpoints(keeper)
        }
        // What comes of a source's items on other ranks is not known to have arrived.
        None if flow.settings.ranks.count() > 1 => Purpose::None,
        None => match flow.stages.iter().any(|stage| stage.wants_commits()) {
            true => Purpose::Commits,
            false => Purpose::None,
        },
    })
}

fn keeper(flow: &Flow) -> Option<Keeper> {
    let checkpoints = flow.settings.checkpoints.as_ref()?;
    let ranks = &flow.settings.ranks;
    let place = std::sync::Arc::clone(&checkpoints.place);
    Some(Keeper::new(place, &flow.name, ranks.rank(), ranks.count()))
}

/// Returns the seed by which keys are spread, if it is not that of a checkpoint.
fn agree(flow: &Flow, checkpoint: u64) -> Result<u64, FlowError> {
    let random = RandomState::new().build_hasher().finish();
    let ranks = &flow.settings.ranks;
    if ranks.count() == 1 {
        return Ok(random);
    }
    let mut description: Vec<String> = flow.stages.iter().map(|stage| stage.describe()).collect();
    description.push(format!("program {}", flow.settings.program));
    description.extend_from_slice(&flow.agreed);
    let keeps = match flow.settings.checkpoints {
        Some(_) => "keeps",
        None => "does not keep",
    };
    description.push(format!(
        "begins with checkpoint {checkpoint} and {keeps} more"
    ));
    let description = description.join("\n");
    let fingerprint = Fingerprint {
        program: flow.name.clone(),
        graph: FixedState::default().hash_one(&description),
        description,
    };
    let agreed = ranks.agree(fingerprint, random);
    agreed.map_err(|error| FlowError::Ranks {
        flow: flow.name.clone(),
        error,
    })
}

fn restore(flow: &Flow, beginning: &Beginning) -> Result<(), BoxError> {
    let saved = &beginning.saved;
    for stage in &flow.stages {
        stage
            .restore(saved)
            .map_err(|error| format!("stage \"{}\": {error}", stage.name()))?;
    }
    for (name, state) in &flow.states {
        saved
            .get(&format!("state/{name}"))
            .and_then(|bytes| state.restore(bytes))
            .map_err(|error| format!("state \"{name}\": {error}"))?;
    }
    Ok(())
}
