//! Running aggregates: the aggregate of a key's rows at each moment.

use serde::{Deserialize, Serialize};

use super::{RowChange, Unmatched};
use crate::stage::chain::Emit;
use crate::windows::{Aggregate, Combine, Retract};

/// The rows of a key so far, in the state of a [`running`] aggregate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunningAggregate<S> {
    /// The state of the aggregate.
    state: S,
    /// The number of rows.
    rows: u64,
}

impl<S> RunningAggregate<S> {
    fn empty<A: Combine<State = S>>(aggregate: &A) -> Self {
        RunningAggregate {
            state: aggregate.empty(),
            rows: 0,
        }
    }

    fn result<A: Combine<State = S>>(&self, aggregate: &A) -> A::Out {
        aggregate.result(&self.state, self.rows)
    }
}

/// The value of a key in the state of an aggregate `A`.
type Present<A> = Option<RunningAggregate<<A as Combine>::State>>;

/// The function to which an aggregate `A` passes the changes of its results.
type EmitResult<'a, K, A> = Emit<'a, RowChange<(K, <A as Combine>::Out)>>;

/// Returns a function for [`Keyed::update`](crate::Keyed::update), which does the work of
/// [`Keyed::running`](crate::Keyed::running).
pub fn running<K, T, A>(
    aggregate: A,
) -> impl Fn(&K, &mut Present<A>, &T, &mut EmitResult<'_, K, A>) + Send + Sync + 'static
where
    K: Clone + 'static,
    T: 'static,
    A: Aggregate<T, Out: PartialEq>,
{
    move |key, present, item, emit| {
        let before = present.as_ref().map(|it| it.result(&aggregate));
        let running = present.get_or_insert_with(|| RunningAggregate::empty(&aggregate));
        aggregate.add(&mut running.state, item);
        running.rows += 1;
        let after = running.result(&aggregate);
        emit_update(key, before, Some(after), emit);
    }
}

/// Returns a function for [`Keyed::update`](crate::Keyed::update), which does the work of
/// [`KeyedRows::running`](crate::KeyedRows::running).
pub fn running_rows<K, R, A>(
    aggregate: A,
    unmatched: Unmatched,
) -> impl Fn(&K, &mut Present<A>, &RowChange<R>, &mut EmitResult<'_, K, A>) + Send + Sync + 'static
where
    K: Clone + 'static,
    R: 'static,
    A: Retract<R, Out: PartialEq>,
{
    move |key, present, change, emit| {
        let row = change.row();
        let before = present.as_ref().map(|it| it.result(&aggregate));
        if change.adds() {
            let running = present.get_or_insert_with(|| RunningAggregate::empty(&aggregate));
            aggregate.add(&mut running.state, row);
            running.rows += 1;
        } else {
            let running = present.as_mut();
            let Some(running) = running.filter(|it| aggregate.may_have(&it.state, row)) else {
                return unmatched.add();
            };
            aggregate.retract(&mut running.state, row);
            running.rows -= 1;
            if running.rows == 0 {
                *present = None;
            }
        }
        let after = present.as_ref().map(|it| it.result(&aggregate));
        emit_update(key, before, after, emit);
    }
}

/// Emits the difference between two values of a key; `None` for none.
fn emit_update<K: Clone, V: PartialEq>(
    key: &K,
    before: Option<V>,
    after: Option<V>,
    emit: &mut Emit<'_, RowChange<(K, V)>>,
) {
    let row = |value| (key.clone(), value);
    match (before, after) {
        (None, Some(after)) => emit(&RowChange::Insert(row(after))),
        (Some(before), None) => emit(&RowChange::Delete(row(before))),
        (Some(before), Some(after)) if before != after => {
            emit(&RowChange::UpdateBefore(row(before)));
            emit(&RowChange::UpdateAfter(row(after)));
        }
        _ => {}
    }
}
