//! Stateless operators in a row, fused at compile time: each hands its results straight to the
//! next, by reference, so that an item may be a slice of a larger one (a word of a block of text).

use std::fmt::Debug;
use std::marker::PhantomData;

use crate::attempt::{Attempt, Label};
use crate::error::BoxError;
use crate::parts::Parts;

/// A series of fused operators.
pub trait Chain<In: ?Sized>: Send + Sync + 'static {
    /// What comes out at the end.
    type Out: ?Sized;

    /// Hands every result of `item` to `out`.
    fn process<A: Attempt>(&self, attempt: &A, item: &In, out: &mut impl FnMut(&Self::Out));
}

/// No operator at all.
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
        self.before.process(attempt, item, &mut |item: &C::Out| {
            if let Some(true) = attempt.call(&self.label, item, || (self.function)(item)) {
                out(item);
            }
        });
    }
}

/// Where a `flat_map` hands its results to.
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
                    let result = attempt.call(label, part, || function(part, &mut *out));
                    if let Some(Err(error)) = result {
                        attempt.reject(label, part, error);
                    }
                });
            });
        });
    }
}
