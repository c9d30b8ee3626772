//! Stateless operators in a row, fused at compile time: each hands its results straight to the
//! next, by reference, so that an item may be a slice of a larger one (a word of a block of text).

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;

/// A series of fused operators.
pub trait Chain<In: ?Sized>: Send + Sync + 'static {
    /// What comes out at the end.
    type Out: ?Sized;

    /// Hands every result of `item` to `out`.
    fn process(&self, item: &In, out: &mut impl FnMut(&Self::Out));
}

/// No operator at all.
pub struct Same;

impl<T: ?Sized> Chain<T> for Same {
    type Out = T;

    #[inline]
    fn process(&self, item: &T, out: &mut impl FnMut(&T)) {
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
    F: Fn(&C::Out) -> U + Send + Sync + 'static,
    U: 'static,
{
    type Out = U;

    #[inline]
    fn process(&self, item: &In, out: &mut impl FnMut(&U)) {
        self.before.process(item, &mut |item: &C::Out| {
            out(&self.label.run(|| (self.function)(item)));
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
    F: Fn(&C::Out) -> bool + Send + Sync + 'static,
{
    type Out = C::Out;

    #[inline]
    fn process(&self, item: &In, out: &mut impl FnMut(&C::Out)) {
        self.before.process(item, &mut |item: &C::Out| {
            if self.label.run(|| (self.function)(item)) {
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
    F: Fn(&C::Out, &mut Emit<'_, U>) + Send + Sync + 'static,
    U: ?Sized + 'static,
{
    type Out = U;

    #[inline]
    fn process(&self, item: &In, out: &mut impl FnMut(&U)) {
        self.before.process(item, &mut |item: &C::Out| {
            self.label.run(|| (self.function)(item, &mut *out));
        });
    }
}

/// The name of an operator, to say whose code panicked.
#[derive(Clone)]
pub struct Label(pub(crate) Arc<str>);

thread_local! {
    /// The innermost operator whose code panicked on this thread.
    static PANICKED: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

impl Label {
    /// Runs code of the user. Costs nothing unless that panics: then the label is remembered
    /// while the stack unwinds.
    #[inline(always)]
    pub(crate) fn run<R>(&self, code: impl FnOnce() -> R) -> R {
        struct Unwinding<'a>(&'a Arc<str>);
        impl Drop for Unwinding<'_> {
            #[cold]
            fn drop(&mut self) {
                PANICKED.with_borrow_mut(|first| {
                    first.get_or_insert_with(|| Arc::clone(self.0));
                });
            }
        }
        let unwinding = Unwinding(&self.0);
        let result = code();
        mem::forget(unwinding);
        result
    }

    /// Whose code panicked last on this thread; asked once per panic.
    pub(crate) fn take_panicked() -> Option<Arc<str>> {
        PANICKED.take()
    }
}
