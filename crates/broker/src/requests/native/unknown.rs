//! Hides streams that a client names by an id in a list of cursors. A stream that the client may not know of gets the same
//! answer, word for word, as one that does not exist, so that no answer shows which ids exist.

use millstream_base::Cursor;

use crate::client::Client;
use crate::security::{Operation, Resource};

/// Takes out the cursors whose streams do not exist or must stay unknown to the client, each with its place.
pub fn take_unknown(client: &Client, cursors: &mut Vec<Cursor>) -> Option<Vec<(usize, Cursor)>> {
    take(cursors, |cursor| {
        let name = client.stream_name(cursor.stream);
        // If the client may know of a stream and not read it, the request was refused as a whole.
        !name.is_some_and(|name| may_read(client, &name))
    })
}

fn may_read(client: &Client, name: &str) -> bool {
    client
        .access()
        .would(Operation::Read, Resource::topic(name))
}

/// Takes out the cursors that pass, each with its place.
fn take(
    cursors: &mut Vec<Cursor>,
    is_unknown: impl Fn(&Cursor) -> bool,
) -> Option<Vec<(usize, Cursor)>> {
    let places = std::mem::take(cursors).into_iter().enumerate();
    let (unknown, rest): (Vec<_>, Vec<_>) = places.partition(|(_, cursor)| is_unknown(cursor));
    cursors.extend(rest.into_iter().map(|(_, cursor)| cursor));
    (!unknown.is_empty()).then_some(unknown)
}

/// Puts the answers to the taken-out cursors among the others.
pub fn put<T>(answers: &mut Vec<T>, unknown: Vec<(usize, Cursor)>, answer: impl Fn(Cursor) -> T) {
    let mut others = std::mem::take(answers).into_iter();
    for (place, cursor) in unknown {
        let before = place - answers.len();
        answers.extend(others.by_ref().take(before));
        answers.push(answer(cursor));
    }
    answers.extend(others);
}
