//! Tuples of state elements: the contents of one key in each of them, changed together.

use crate::state::element::Element;
use crate::state::lockable::Locked;
use crate::windows::Key;

/// Calls `change` of each element within that of the element before it, then the function with all contents.
macro_rules! change_each {
    ($call:ident, $tables:ident, $key:ident, $elements:ident, [] $($content:ident $name:ident)+) => {
        Some($call(($($name::shorten($content),)+)))
    };
    ($call:ident, $tables:ident, $key:ident, $elements:ident,
        [$content:ident $name:ident $index:tt $($rest:tt)*] $($done:tt)*) => {
        $elements.$index.change(&mut $tables.$index, $key, |$content| {
            change_each!($call, $tables, $key, $elements, [$($rest)*] $($done)* $content $name)
        }).flatten()
    };
}

macro_rules! element_tuple {
    ($($content:ident $name:ident $index:tt),+) => {
        impl<K: Key, $($name: Element<K>),+> Element<K> for ($($name,)+) {
            type Content<'a> = ($($name::Content<'a>,)+);
            type Partition = ($($name::Partition,)+);

            fn partitions(&self) -> Option<usize> {
                let counts = [$(self.$index.partitions()?),+];
                counts.iter().all(|count| *count == counts[0]).then_some(counts[0])
            }

            fn partition(&self, index: usize) -> Self::Partition {
                ($(self.$index.partition(index),)+)
            }

            fn is_known(tables: &Locked<'_, Self::Partition>, key: &K) -> bool {
                $($name::is_known(&tables.$index, key))&&+
            }

            fn want(tables: &mut Locked<'_, Self::Partition>, keys: Vec<K>) {
                $({
                    let unknown = keys.iter().filter(|key| !$name::is_known(&tables.$index, key));
                    let unknown = unknown.cloned().collect();
                    $name::want(&mut tables.$index, unknown);
                })+
            }

            fn change<R>(
                &self,
                tables: &mut Locked<'_, Self::Partition>,
                key: &K,
                change: impl FnOnce(Self::Content<'_>) -> R,
            ) -> Option<R> {
                // An element whose content is in memory would note a change, also if another element's is not.
                if !Self::is_known(tables, key) {
                    return None;
                }
                change_each!(change, tables, key, self, [$($content $name $index)+])
            }

            fn shorten<'short, 'long: 'short>(
                content: Self::Content<'long>,
            ) -> Self::Content<'short> {
                ($($name::shorten(content.$index),)+)
            }
        }
    };
}

element_tuple!(a A 0, b B 1);
element_tuple!(a A 0, b B 1, c C 2);
element_tuple!(a A 0, b B 1, c C 2, d D 3);
