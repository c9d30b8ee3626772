//! The part of a history that shows why it is not linearizable.

use std::fmt::Write;

use super::search::{Furthest, Outcome, search};
use super::{Model, Operation, OperationOf};

/// The most lines of a report.
const OPERATIONS_MAX: usize = 30;

/// The most searches for a smaller part.
const SEARCHES_MAX: usize = 200;

/// Describes a history that is not linearizable.
pub fn report<M: Model>(history: &[OperationOf<M>], steps_max: u64) -> String {
    let mut part = without_end::<M>(history, steps_max);
    remove_reads::<M>(&mut part, steps_max);
    part.sort_by_key(|operation| operation.called_at);
    match failure::<M>(&part, steps_max) {
        Some(furthest) => describe::<M>(history.len(), &part, &furthest),
        None => "the part that shows it was not found".to_owned(),
    }
}

/// Returns the furthest point that the search reached in a history that is not linearizable.
fn failure<M: Model>(history: &[OperationOf<M>], steps_max: u64) -> Option<Furthest<M::State>> {
    match search::<M>(history, steps_max) {
        Ok(Outcome::Not(furthest)) => Some(furthest),
        // Undecided counts as linearizable, so that the part that remains certainly is not.
        Ok(Outcome::Linearizable) | Err(_) => None,
    }
}

/// Returns the history up to the first answer with which it is not linearizable.
fn without_end<M: Model>(history: &[OperationOf<M>], steps_max: u64) -> Vec<OperationOf<M>> {
    let answers = history.iter().filter_map(Operation::answered_at);
    let mut answers: Vec<u64> = answers.collect();
    answers.sort_unstable();
    let count = answers
        .partition_point(|end| failure::<M>(&until::<M>(history, *end), steps_max).is_none());
    let end = answers.get(count).copied().unwrap_or(u64::MAX);
    until::<M>(history, end)
}

/// Returns the history up to a time.
fn until<M: Model>(history: &[OperationOf<M>], end: u64) -> Vec<OperationOf<M>> {
    let called = history
        .iter()
        .filter(|operation| operation.called_at <= end);
    let seen = called.map(|operation| Operation {
        answer: operation.answer.clone().filter(|(at, _)| *at <= end),
        ..operation.clone()
    });
    seen.collect()
}

/// Removes reads without which the history is not linearizable either, many at once as long as that goes.
fn remove_reads<M: Model>(part: &mut Vec<OperationOf<M>>, steps_max: u64) {
    let is_read = |operation: &OperationOf<M>| M::is_read(&operation.call, operation.answer());
    let mut searches = 0;
    let mut count = part.len();
    while count > 0 {
        let mut start = 0;
        while start < part.len() {
            let chunk = start..part.len().min(start + count);
            let places = part.iter().enumerate();
            let rest = places.filter(|(place, it)| !chunk.contains(place) || !is_read(it));
            let rest: Vec<OperationOf<M>> = rest.map(|(_, it)| it.clone()).collect();
            start = chunk.end;
            if rest.len() == part.len() {
                continue;
            }
            if searches == SEARCHES_MAX {
                return;
            }
            searches += 1;
            if failure::<M>(&rest, steps_max).is_some() {
                start -= part.len() - rest.len();
                *part = rest;
            }
        }
        count /= 2;
    }
}

fn describe<M: Model>(
    count: usize,
    part: &[OperationOf<M>],
    furthest: &Furthest<M::State>,
) -> String {
    let left_out = part.len().saturating_sub(OPERATIONS_MAX);
    let mut text = format!(
        "{} of {count} operations suffice to show it, of which {left_out} older ones are left out here:\n",
        part.len()
    );
    for operation in &part[left_out..] {
        let Operation {
            client,
            called_at,
            call,
            answer,
        } = operation;
        // Writing to a string does not fail.
        let _ = match answer {
            Some((at, answer)) => {
                writeln!(
                    text,
                    "  client {client}, {called_at} to {at}: {call:?} -> {answer:?}"
                )
            }
            None => writeln!(text, "  client {client}, from {called_at} on: {call:?}"),
        };
    }
    let _ = writeln!(
        text,
        "{} operations with answers fit in some order, to the state {:?}. None of these fits next:",
        furthest.answered, furthest.state
    );
    for place in &furthest.refused {
        let Operation {
            client, called_at, ..
        } = &part[*place];
        let _ = writeln!(text, "  client {client}, called at {called_at}");
    }
    text
}
