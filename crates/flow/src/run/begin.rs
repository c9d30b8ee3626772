//! The beginning of a run: all ranks run the same graph, and resume from the same checkpoint, if from any.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use foldhash::fast::FixedState;
use millstream_exchange::Fingerprint;

use crate::checkpoint::coordinator::Purpose;
use crate::checkpoint::decision_signal::Waiting;
use crate::checkpoint::decisions::Decisions;
use crate::checkpoint::pace::Pace;
use crate::checkpoint::participants::Committer;
use crate::checkpoint::shard::PendingShard;
use crate::checkpoint::shards::{ResumePoint, Shards};
use crate::checkpoint::snapshot::{
    Elements, changelog_element, head_element, sample_element, sink_element, state_element,
};
use crate::checkpoint::store::{Checkpointing, Resume};
use crate::error::{BoxError, Failure, FlowError};
use crate::graph::Graph;
use crate::run::fit::check_fit;
use crate::run::settings::FlowSettings;
use crate::sinks::sink::SinkStart;
use crate::stage::user_code::catch;

/// Agrees with all other ranks; restores the elements from a checkpoint, or stores the first one. Returns the purpose
/// of snapshots.
pub fn begin(graph: &Graph, settings: &FlowSettings) -> Result<Purpose, FlowError> {
    let wrong = |error| of_checkpoints(graph, error);
    let checkpoints = shards(graph, settings);
    let shards = checkpoints.as_ref().map(|(shards, _)| shards);
    let resume = settings.checkpoints.as_ref().map(|it| it.resume);
    let beginning = match (shards, resume) {
        (Some(shards), Some(resume)) => lock(graph, settings, shards, resume)?,
        _ => None,
    };
    open_changelogs(graph, settings).map_err(wrong)?;
    let number = beginning.as_ref().map_or(0, |beginning| beginning.number);
    let run = agree(
        graph,
        settings,
        &describe(graph, settings, beginning.as_ref()),
    )?;
    if let Some(beginning) = &beginning {
        restore(graph, beginning, settings.clock.monotonic()).map_err(wrong)?;
    }
    recover_sinks(graph, settings, beginning.as_ref()).map_err(wrong)?;
    if graph.logged.iter().any(|element| element.is_open()) {
        recover_changelogs(graph, settings, beginning.as_ref()).map_err(wrong)?;
        // Otherwise a rank could read changes that another one has yet to decide.
        agree(graph, settings, "has decided the changes of earlier runs")?;
        restore_changelogs(graph, beginning.as_ref()).map_err(wrong)?;
    }
    Ok(match checkpoints {
        Some((shards, decisions)) => {
            graph.logged.iter().for_each(|element| element.begin());
            shards.begin(number, run).map_err(wrong)?;
            // Otherwise the store could hold a shard of the first checkpoint beside one that another rank has yet to remove.
            agree(
                graph,
                settings,
                "has removed the shards of later checkpoints",
            )?;
            if beginning.is_none() {
                let saved = save_first(graph, shards.checkpoint(1)).map_err(wrong)?;
                shards.store_first(saved).map_err(wrong)?;
                // Otherwise there could be results of a flow that has no checkpoint to resume from.
                agree(
                    graph,
                    settings,
                    "has stored its shard of the first checkpoint",
                )?;
                if has_records(settings) {
                    shards.record_first().map_err(wrong)?;
                    agree(
                        graph,
                        settings,
                        "has stored the record of the first checkpoint",
                    )?;
                }
            }
            let completion = shards.completion();
            decisions.begin(shards.checkpoint(0), beginning.is_some(), completion);
            Purpose::Checkpoints(Box::new(shards), Box::new(decisions))
        }
        // Commits need to know that items on other ranks have arrived, which only checkpoints do.
        None if settings.ranks.count() > 1 => Purpose::None,
        None => match graph.stages.iter().any(|stage| stage.wants_commits()) {
            true => Purpose::Commits,
            false => Purpose::None,
        },
    })
}

/// Locks the store. Returns the checkpoint that the flow resumes from, if there is one; it fits the program.
///
/// In a store with records the lock can be taken from a run that goes on. So before that the program has to fit the last
/// checkpoint, and has to be the same on all ranks: a start that is refused should end no other run.
fn lock(
    graph: &Graph,
    settings: &FlowSettings,
    shards: &Shards,
    resume: Resume,
) -> Result<Option<ResumePoint>, FlowError> {
    let wrong = |error| of_checkpoints(graph, error);
    let mut seen = None;
    if has_records(settings) {
        seen = shards.look(resume).map_err(wrong)?;
        if let Some(seen) = &seen {
            check_fit(graph, seen.saved()).map_err(wrong)?;
        }
        agree(
            graph,
            settings,
            &describe_program(graph, settings).join("\n"),
        )?;
    }
    shards.lock().map_err(wrong)?;
    if has_records(settings) {
        // Otherwise a rank could read a record that is not the last one yet.
        agree(graph, settings, "sees the checkpoints locked")?;
    }
    let beginning = shards.resume_point(resume, seen).map_err(wrong)?;
    if let Some(beginning) = &beginning {
        // Before a changelog is opened, which can create its stream.
        check_fit(graph, &beginning.saved).map_err(wrong)?;
    }
    Ok(beginning)
}

fn of_checkpoints(graph: &Graph, error: BoxError) -> FlowError {
    FlowError::Checkpoint {
        flow: graph.name.clone(),
        error: error.into(),
    }
}

/// Creates the decisions, which inform sinks, changelogs and readers of state about complete checkpoints.
fn decisions(graph: &Graph, settings: &FlowSettings, checkpoints: &Checkpointing) -> Decisions {
    let sinks = graph.sinks.iter().filter(|it| it.waits_for_commit());
    // Also without a changelog: readers may ask for the values of complete checkpoints.
    let logged = graph.logged.iter();
    let are_sinks = sinks.clone().next().is_some();
    let have_history = logged.clone().any(|element| element.has_history());
    let waiting = Waiting {
        are_sinks,
        is_any: are_sinks || have_history || has_records(settings),
        has_records: has_records(settings),
    };
    // First: a reader that finds a value committed finds its checkpoint.
    let trail = Arc::clone(&graph.trail) as Arc<dyn Committer>;
    let sinks = sinks.map(|it| Arc::clone(it) as Arc<dyn Committer>);
    let passed = logged.clone().map(|it| Arc::clone(it.passed())).collect();
    let logged = logged.map(|it| Arc::clone(it) as Arc<dyn Committer>);
    let committers = [trail].into_iter().chain(sinks).chain(logged).collect();
    let pace = Pace::new(checkpoints.interval, checkpoints.store.interval_min());
    Decisions::new(
        &settings.ranks,
        &graph.doorbell,
        committers,
        passed,
        waiting,
        pace,
    )
}

/// Whether records make checkpoints complete.
fn has_records(settings: &FlowSettings) -> bool {
    let checkpoints = settings.checkpoints.as_ref();
    checkpoints.is_some_and(|checkpoints| checkpoints.store.records().is_some())
}

/// Lets sinks decide the results that an earlier run has left.
pub fn recover_sinks(
    graph: &Graph,
    settings: &FlowSettings,
    beginning: Option<&ResumePoint>,
) -> Result<(), BoxError> {
    for sink in &graph.sinks {
        let element = sink_element(sink.name());
        let prepared = beginning
            .map(|it| it.saved.get(&element))
            .filter(|saved| saved.is_ok() || !sink.may_be_new());
        let start = SinkStart {
            flow: &graph.name,
            sink: sink.name(),
            rank: settings.ranks.rank(),
            ranks: settings.ranks.count(),
            takes_checkpoints: settings.checkpoints.is_some(),
            prepared: prepared.transpose()?,
        };
        catch(|| sink.recover(&start))
            .map_err(|error| format!("sink \"{}\": {error}", sink.name()))?;
    }
    Ok(())
}

/// Opens the changelogs of state elements, if the store of checkpoints has any.
fn open_changelogs(graph: &Graph, settings: &FlowSettings) -> Result<(), BoxError> {
    let Some(checkpoints) = &settings.checkpoints else {
        return Ok(());
    };
    for element in &graph.logged {
        let name = element.name();
        let changelog = catch(|| checkpoints.store.changelog(&graph.name, name));
        if let Some(changelog) = changelog.map_err(|error| of_changelog(name, &error))? {
            let watched = checkpoints.store.watched_changelog(&graph.name, name);
            element.open(changelog, watched);
        }
    }
    check_names(graph)
}

/// Lets changelogs decide the changes that an earlier run has left.
fn recover_changelogs(
    graph: &Graph,
    settings: &FlowSettings,
    beginning: Option<&ResumePoint>,
) -> Result<(), BoxError> {
    for element in graph.logged.iter().filter(|element| element.is_open()) {
        let name = element.name();
        let saved = changelog_element(name);
        let start = SinkStart {
            flow: &graph.name,
            sink: &changelog_sink(name),
            rank: settings.ranks.rank(),
            ranks: settings.ranks.count(),
            takes_checkpoints: true,
            // The element may have been saved whole before.
            prepared: beginning.and_then(|it| it.saved.get(&saved).ok()),
        };
        catch(|| element.recover(&start)).map_err(|error| of_changelog(name, &error))?;
    }
    Ok(())
}

/// Restores the state elements whose changes are in changelogs.
fn restore_changelogs(graph: &Graph, beginning: Option<&ResumePoint>) -> Result<(), BoxError> {
    let waker = Waker::from(Arc::clone(&graph.doorbell));
    for element in graph.logged.iter().filter(|element| element.is_open()) {
        let name = element.name();
        let saved = changelog_element(name);
        let resumed = beginning.filter(|it| it.saved.get(&saved).is_ok());
        let restored = catch(|| {
            if let Some(head) = resumed.and_then(|it| it.saved.get(&head_element(name)).ok()) {
                element.restore_head(head)?;
            }
            element.restore(resumed.map(|it| it.number), &waker)?;
            let sample = resumed.and_then(|it| it.saved.get(&sample_element(name)).ok());
            sample.map_or(Ok(()), |sample| element.check_restored(sample))
        });
        restored.map_err(|error| of_changelog(name, &error))?;
    }
    Ok(())
}

fn of_changelog(state: &str, error: &BoxError) -> BoxError {
    format!("the changelog of state \"{state}\": {error}").into()
}

/// Returns this rank's shards and decisions, if the flow takes checkpoints.
fn shards(graph: &Graph, settings: &FlowSettings) -> Option<(Shards, Decisions)> {
    let checkpoints = settings.checkpoints.as_ref()?;
    let ranks = &settings.ranks;
    let decisions = decisions(graph, settings, checkpoints);
    let shards = Shards::new(
        Arc::clone(&checkpoints.store),
        &graph.name,
        ranks.rank(),
        ranks.count(),
        &settings.clock,
        Arc::clone(decisions.signal()),
    );
    Some((shards, decisions))
}

fn describe_program(graph: &Graph, settings: &FlowSettings) -> Vec<String> {
    let mut description: Vec<String> = graph.stages.iter().map(|stage| stage.describe()).collect();
    description.push(format!("program {}", settings.program));
    description.extend_from_slice(&graph.agreed);
    description
}

/// Describes everything that must be the same on all ranks.
fn describe(graph: &Graph, settings: &FlowSettings, beginning: Option<&ResumePoint>) -> String {
    let mut description = describe_program(graph, settings);
    let logged = graph.logged.iter().filter(|element| element.is_open());
    description.extend(logged.map(|element| format!("state {} has a changelog", element.name())));
    let begins = match beginning {
        Some(ResumePoint { number, run, .. }) => {
            format!("begins with checkpoint {number} of run {run:016x}")
        }
        None => "begins without a checkpoint".to_owned(),
    };
    let keeps = match settings.checkpoints {
        Some(_) if has_records(settings) => "keeps with records",
        Some(_) => "keeps",
        None => "does not keep",
    };
    description.push(format!("{begins} and {keeps} more"));
    description.join("\n")
}

/// Returns a random number, the same on all ranks.
fn agree(graph: &Graph, settings: &FlowSettings, description: &str) -> Result<u64, FlowError> {
    let random = RandomState::new().build_hasher().finish();
    let ranks = &settings.ranks;
    if ranks.count() == 1 {
        return Ok(random);
    }
    let fingerprint = Fingerprint {
        program: graph.name.clone(),
        graph: FixedState::default().hash_one(description),
        description: description.to_owned(),
    };
    let agreed = ranks.agree(fingerprint, random);
    agreed.map_err(|error| FlowError::Ranks {
        flow: graph.name.clone(),
        error,
    })
}

/// Saves the beginning, as a checkpoint for a run that is killed before its next one.
pub fn save_first(graph: &Graph, checkpoint: u64) -> Result<PendingShard, BoxError> {
    let elements = Elements {
        stages: &graph.stages,
        cycles: &[],
        states: &graph.states,
        sinks: &graph.sinks,
        logged: &graph.logged,
        trail: &graph.trail,
    };
    catch(|| {
        elements.save(checkpoint).map_err(|failure| match failure {
            Failure::Error { operator, error } => format!("\"{operator}\": {error}").into(),
            Failure::Panicked { operator, message } => {
                format!("\"{operator}\" panicked: {message}").into()
            }
        })
    })
}

pub fn restore(graph: &Graph, beginning: &ResumePoint, now: Duration) -> Result<(), BoxError> {
    let saved = &beginning.saved;
    for stage in &graph.stages {
        catch(|| stage.restore(saved, now))
            .map_err(|error| format!("stage \"{}\": {error}", stage.name()))?;
    }
    for (name, state) in &graph.states {
        if saved.get(&changelog_element(name)).is_ok() {
            check_open(graph, name)?;
            continue;
        }
        let bytes = saved.get(&state_element(name));
        bytes
            .and_then(|bytes| catch(|| state.restore(bytes)))
            .map_err(|error| format!("state \"{name}\": {error}"))?;
    }
    Ok(())
}

/// Checks that a state element whose changes are in a changelog has one now.
fn check_open(graph: &Graph, name: &str) -> Result<(), BoxError> {
    let mut logged = graph.logged.iter();
    match logged.any(|element| element.name() == name && element.is_open()) {
        true => Ok(()),
        false => Err(format!(
            "the checkpoint has state \"{name}\" in a changelog, and the store of checkpoints has no changelog of it; \
             resume with the store that the flow had before"
        )
        .into()),
    }
}

/// Checks that no sink has the name by which a changelog has its transactions.
fn check_names(graph: &Graph) -> Result<(), BoxError> {
    let logged = graph.logged.iter().filter(|element| element.is_open());
    for element in logged {
        let name = changelog_sink(element.name());
        if graph.sinks.iter().any(|sink| sink.name() == name) {
            return Err(format!(
                "sink \"{name}\" has the name that the transactions of state \"{}\" have; give it another name",
                element.name()
            )
            .into());
        }
    }
    Ok(())
}

/// Names a changelog like a sink of the flow, for the names of its transactions.
fn changelog_sink(state: &str) -> String {
    format!("state.{state}")
}
