//! The types of aggregates that look at one value of each item.

/// Makes the type of an aggregate of the values that a function returns for each item.
macro_rules! of_value {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name<F, V> {
            value: F,
            of: std::marker::PhantomData<fn() -> V>,
        }

        impl<F, V> $name<F, V> {
            /// Aggregates the values that `value` returns.
            pub fn of<T: ?Sized>(value: F) -> Self
            where
                F: Fn(&T) -> V,
            {
                Self { value, of: std::marker::PhantomData }
            }
        }
    };
}

pub(super) use of_value;
