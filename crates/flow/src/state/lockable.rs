//! The tables of one partition of a state element, or of several elements, and their locks.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

/// One table with a lock, or several, each with a lock of its own.
///
/// A caller that waits for a lock here holds none of the others. So two operators may lock the same tables in different
/// orders, and readers may lock all tables of one element.
pub trait Lockable: Clone + Send + 'static {
    /// The locked tables.
    type Locked<'a>
    where
        Self: 'a;

    /// Locks all tables. Waits until each is free.
    fn lock_all(&self) -> Self::Locked<'_>;

    /// Locks all tables, unless one of them is locked.
    fn try_lock_all(&self) -> Option<Self::Locked<'_>>;

    /// Adds the address of each table.
    fn addresses(&self, addresses: &mut Vec<usize>);
}

/// The locked tables of a partition.
pub type Locked<'a, P> = <P as Lockable>::Locked<'a>;

impl<T: Send + 'static> Lockable for Arc<Mutex<T>> {
    type Locked<'a> = MutexGuard<'a, T>;

    #[inline]
    fn lock_all(&self) -> MutexGuard<'_, T> {
        self.lock()
    }

    fn try_lock_all(&self) -> Option<MutexGuard<'_, T>> {
        self.try_lock()
    }

    fn addresses(&self, addresses: &mut Vec<usize>) {
        addresses.push(Arc::as_ptr(self).addr());
    }
}

/// Whether all tables differ. A table that is there twice could never be locked.
pub fn are_different(partition: &impl Lockable) -> bool {
    let mut addresses = Vec::new();
    partition.addresses(&mut addresses);
    addresses.sort_unstable();
    addresses.windows(2).all(|pair| pair[0] != pair[1])
}

/// Implements [`Lockable`] for tuples. The algorithm is that of `std::lock` in C++: wait for one lock, try the others, and
/// where one of these is taken, release all and wait for that one.
macro_rules! lock_tuple {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Lockable),+> Lockable for ($($name,)+) {
            type Locked<'a> = ($(Locked<'a, $name>,)+);

            fn lock_all(&self) -> Self::Locked<'_> {
                let mut awaited = 0;
                loop {
                    let mut locked = ($(None::<Locked<'_, $name>>,)+);
                    $(if awaited == $index {
                        locked.$index = Some(self.$index.lock_all());
                    })+
                    let mut taken = None;
                    $(if taken.is_none() && locked.$index.is_none() {
                        locked.$index = self.$index.try_lock_all();
                        taken = locked.$index.is_none().then_some($index);
                    })+
                    match (locked, taken) {
                        (_, Some(index)) => awaited = index,
                        (locked, None) => {
                            return ($(locked.$index.expect("it was locked"),)+);
                        }
                    }
                }
            }

            fn try_lock_all(&self) -> Option<Self::Locked<'_>> {
                Some(($(self.$index.try_lock_all()?,)+))
            }

            fn addresses(&self, addresses: &mut Vec<usize>) {
                $(self.$index.addresses(addresses);)+
            }
        }
    };
}

lock_tuple!(A 0, B 1);
lock_tuple!(A 0, B 1, C 2);
lock_tuple!(A 0, B 1, C 2, D 3);

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn threads_that_lock_tables_in_different_orders_all_get_them() {
        let [a, b, c, d] = [0, 1, 2, 3].map(|_| Arc::new(Mutex::new(0_u32)));
        let orders = [
            [&a, &b, &c, &d],
            [&d, &c, &b, &a],
            [&b, &d, &a, &c],
            [&c, &a, &d, &b],
        ];
        thread::scope(|scope| {
            for [first, second, third, fourth] in orders.map(|order| order.map(Arc::clone)) {
                scope.spawn(move || {
                    let all = (first, second, third, fourth);
                    for _ in 0..20_000 {
                        let mut tables = all.lock_all();
                        *tables.0 += 1;
                        *tables.1 += 1;
                        *tables.2 += 1;
                        *tables.3 += 1;
                    }
                });
            }
        });
        let sums = [a, b, c, d].map(|table| *table.lock());
        assert_eq!(sums, [80_000; 4]);
    }

    #[test]
    fn a_table_that_is_there_twice_is_noticed() {
        let [a, b] = [0, 1].map(|_| Arc::new(Mutex::new(0_u32)));
        assert!(are_different(&a));
        assert!(are_different(&(a.clone(), b.clone())));
        assert!(!are_different(&(a.clone(), b.clone(), a.clone())));
        assert!(!are_different(&(b.clone(), (a, b))));
    }
}
