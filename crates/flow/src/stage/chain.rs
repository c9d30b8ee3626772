//! Stateless operators in a row, fused at compile time: each hands its results straight to the
//! next, by reference, so that an item may be a slice of a larger one (a word of a block of text).

use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;

use millstream_base::Timestamp;

use crate::error::BoxError;
use crate::parts::{Flatten, Parts, Shown};
use crate::stage::attempt::Attempt;
use crate::stage::user_code::Label;
use crate::state::table::Table;

/// A series of fused operators.
pub trait Chain<In: ?Sized>: Send + Sync + 'static {
    /// The results of the last operator.
    type Out: ?Sized;

    /// Hands every result of `item` to `out`.
    fn process<A: Attempt>(&self, attempt: &A, item: &In, out: &mut impl FnMut(&Self::Out));

    /// Hands those results of `item` to `out` for which `keep` holds, which is code of the operator `label`.
    #[inline]
    fn process_if<A: Attempt>(
        &self,
        attempt: &A,
        item: &In,
        label: &Label,
        keep: &impl Fn(&Self::Out) -> bool,
        out: &mut impl FnMut(&Self::Out),
    ) where
        Self::Out: Debug,
    {
        self.process(attempt, item, &mut |item: &Self::Out| {
            if let Some(true) = attempt.call(label, item, || keep(item)) {
                out(item);
            }
        });
    }
}

/// No operator at all: the beginning of a row.
#[derive(Debug, Clone, Copy)]
pub struct Same;

impl<T: ?Sized> Chain<T> for Same {
    type Out = T;

    #[inline]
    fn process<A: Attempt>(&self, _: &A, item: &T, out: &mut impl FnMut(&T)) {
        out(item);
    }
}

pub struct Map<C, F, U> {
    pub(crate) before: C,
    pub(crate) function: F,
    pub(crate) label: Label,
    pub(crate) result: PhantomData<fn() -> U>,
}

impl<In: ?Sized, C: Chain<In>, F, U> Chain<In> for Map<C, F, U>
where
    C::Out: Debug,
    F: Fn(&C::Out) -> U + Send + Sync + 'static,
    U: 'static,
{
    type Out = U;

    #[inline]
    fn process<A: Attempt>(&self, attempt: &A, item: &In, out: &mut impl FnMut(&U)) {
        self.before.process(attempt, item, &mut |item: &C::Out| {
            if let Some(result) = attempt.call(&self.label, item, || (self.function)(item)) {
                out(&result);
            }
        });
    }
}

pub struct Filter<C, F> {
    pub(crate) before: C,
    pub(crate) function: F,
    pub(crate) label: Label,
}

impl<In: ?Sized, C: Chain<In>, F> Chain<In> for Filter<C, F>
where
    C::Out: Debug,
    F: Fn(&C::Out) -> bool + Send + Sync + 'static,
{
    type Out = C::Out;

    #[inline]
    fn process<A: Attempt>(&self, attempt: &A, item: &In, out: &mut impl FnMut(&C::Out)) {
        let Filter {
            before,
            function,
            label,
        } = self;
        before.process_if(attempt, item, label, function, out);
    }
}

/// How many parts of an item are filtered before those that pass go on.
const KEPT_MAX: usize = 64;

/// Takes items apart.
pub struct Flat<C> {
    pub(crate) before: C,
    pub(crate) label: Label,
}

impl<In: ?Sized, C: Chain<In>> Chain<In> for Flat<C>
where
    C::Out: Flatten + Debug,
{
    type Out = <C::Out as Flatten>::Item;

    #[inline]
    fn process<A: Attempt>(&self, attempt: &A, item: &In, out: &mut impl FnMut(&Self::Out)) {
        self.before.process(attempt, item, &mut |item: &C::Out| {
            attempt.call(&self.label, item, || {
                item.for_each_item(&mut *out);
            });
        });
    }

    /// Collects the parts that pass without a branch on the condition, and passes them on together: the processor
    /// would often mispredict the branch, which goes either way at random, and that would cost more than all other
    /// work on an item.
    #[inline]
    fn process_if<A: Attempt>(
        &self,
        attempt: &A,
        item: &In,
        label: &Label,
        keep: &impl Fn(&Self::Out) -> bool,
        out: &mut impl FnMut(&Self::Out),
    ) where
        Self::Out: Debug,
    {
        self.before.process(attempt, item, &mut |whole: &C::Out| {
            attempt.call(&self.label, whole, || {
                let mut kept = [None; KEPT_MAX];
                let mut len = 0;
                whole.for_each_item(|item| {
                    kept[len] = Some(item);
                    let is_kept = attempt.call(label, item, || keep(item)) == Some(true);
                    len += usize::from(is_kept);
                    if len == KEPT_MAX {
                        kept.iter().flatten().for_each(|item| out(item));
                        len = 0;
                    }
                });
                kept[..len].iter().flatten().for_each(|item| out(item));
            });
        });
    }
}

/// Looks up a row for each item.
pub struct Join<C, K, V, F, G, U> {
    pub(crate) before: C,
    pub(crate) table: Table<K, V>,
    pub(crate) key: F,
    pub(crate) function: G,
    pub(crate) label: Label,
    pub(crate) result: PhantomData<fn() -> U>,
}

impl<In: ?Sized, C: Chain<In>, K, V, F, G, U> Chain<In> for Join<C, K, V, F, G, U>
where
    C::Out: Debug,
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
    F: Fn(&C::Out) -> K + Send + Sync + 'static,
    G: Fn(&C::Out, &V) -> U + Send + Sync + 'static,
    U: 'static,
{
    type Out = U;

    #[inline]
    fn process<A: Attempt>(&self, attempt: &A, item: &In, out: &mut impl FnMut(&U)) {
        self.before.process(attempt, item, &mut |item: &C::Out| {
            let joined = attempt.call(&self.label, item, || {
                let key = (self.key)(item);
                self.table
                    .with(&key, |row| row.map(|row| (self.function)(item, row)))
            });
            if let Some(Some(result)) = joined {
                out(&result);
            }
        });
    }
}

/// Notes the event time of each item.
pub struct SeeTime<C, F> {
    pub(crate) before: C,
    pub(crate) function: F,
    pub(crate) label: Label,
}

impl<In: ?Sized, C: Chain<In>, F> Chain<In> for SeeTime<C, F>
where
    C::Out: Debug,
    F: Fn(&C::Out) -> Timestamp + Send + Sync + 'static,
{
    type Out = C::Out;

    #[inline]
    fn process<A: Attempt>(&self, attempt: &A, item: &In, out: &mut impl FnMut(&C::Out)) {
        let SeeTime {
            function, label, ..
        } = self;
        self.before.process(attempt, item, &mut |item: &C::Out| {
            let Some(time) = attempt.call(label, item, || function(item)) else {
                return;
            };
            match attempt.time().see(time) {
                true => out(item),
                false => attempt.reject(label, item, too_far_ahead(time, attempt)),
            }
        });
    }
}

#[cold]
fn too_far_ahead<A: Attempt>(Timestamp(time): Timestamp, attempt: &A) -> BoxError {
    let ahead_max = attempt.time().ahead_max();
    format!(
        "its time, {time} ms since 1970, is more than {ahead_max:?} ahead of the clock; see Watermarks::ahead_max"
    )
    .into()
}

/// The function to which a `flat_map` passes its results.
pub type Emit<'a, U> = dyn FnMut(&U) + 'a;

pub struct FlatMap<C, F, U: ?Sized> {
    pub(crate) before: C,
    pub(crate) function: F,
    pub(crate) label: Label,
    pub(crate) result: PhantomData<fn(&U)>,
}

impl<In: ?Sized, C: Chain<In>, F, U> Chain<In> for FlatMap<C, F, U>
where
    C::Out: Debug,
    F: Fn(&C::Out, &mut Emit<'_, U>) + Send + Sync + 'static,
    U: ?Sized + 'static,
{
    type Out = U;

    #[inline]
    fn process<A: Attempt>(&self, attempt: &A, item: &In, out: &mut impl FnMut(&U)) {
        self.before.process(attempt, item, &mut |item: &C::Out| {
            attempt.call(&self.label, item, || (self.function)(item, &mut *out));
        });
    }
}

pub struct Each<C, F, U: ?Sized> {
    pub(crate) before: C,
    pub(crate) function: F,
    pub(crate) label: Label,
    pub(crate) result: PhantomData<fn(&U)>,
}

impl<In: ?Sized, C: Chain<In>, F, U> Chain<In> for Each<C, F, U>
where
    C::Out: Parts + Debug,
    F: Fn(&<C::Out as Parts>::Part<'_>, &mut Emit<'_, U>) -> Result<(), BoxError>
        + Send
        + Sync
        + 'static,
    U: ?Sized + 'static,
{
    type Out = U;

    #[inline]
    fn process<A: Attempt>(&self, attempt: &A, item: &In, out: &mut impl FnMut(&U)) {
        let Each {
            function, label, ..
        } = self;
        self.before.process(attempt, item, &mut |item: &C::Out| {
            // Taking an item apart may panic as well.
            attempt.call(label, item, || {
                item.for_each_part(|part| {
                    let shown = Shown::<C::Out>(part);
                    let result = attempt.call(label, &shown, || function(part, &mut *out));
                    if let Some(Err(error)) = result {
                        attempt.reject(label, &shown, error);
                    }
                    attempt.settle(|| item.origin(part));
                });
            });
        });
    }
}
