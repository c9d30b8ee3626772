//! The work of count windows for each item.

use super::records::{BLOCK, CountHead, CountRecord, Known, Stacks};
use super::{CountSizes, CountWindow};
use crate::stage::chain::Emit;
use crate::state::maps::MapOf;
use crate::windows::{Aggregate, Combine, Key};

/// The records of a key.
type Records<'a, K, S> = MapOf<'a, K, Option<u64>, CountRecord<S>>;

/// The function of count windows: see [`Keyed::count_windows`](crate::Keyed::count_windows).
pub struct CountStep<A> {
    sizes: CountSizes,
    aggregate: A,
}

/// Work that an item leaves to do.
struct Left<S, O> {
    /// A block that is whole, with its number.
    block: Option<(u64, Vec<S>)>,
    due: Due<S, O>,
    /// The head that an earlier program has left, with other sizes.
    former: Option<CountHead<S>>,
}

/// The window that ends at an item.
enum Due<S, O> {
    None,
    /// Its result.
    Result(O),
    /// The stacks have to be made anew, of the fragments from `first` on. The newest of them are here.
    Fragments {
        first: u64,
        tail: Vec<S>,
    },
}

impl<A: Combine> CountStep<A> {
    /// Returns the function for windows of these sizes.
    pub fn new(sizes: CountSizes, aggregate: A) -> Self {
        CountStep { sizes, aggregate }
    }

    /// Adds an item to the windows of its key, and emits the window that ends with it.
    pub fn apply<K, T>(
        &self,
        key: &K,
        records: &mut Records<'_, K, A::State>,
        item: &T,
        emit: &mut Emit<'_, CountWindow<K, A::Out>>,
    ) where
        K: Key,
        T: ?Sized,
        A: Aggregate<T>,
    {
        let (left, items) = records.update(&None, |present| {
            let mut former = None;
            let head = match present {
                Some(CountRecord::Head(head)) if head.sizes == self.sizes => head,
                other => {
                    let head = CountHead::new(&self.aggregate, self.sizes);
                    if let Some(CountRecord::Head(head)) = other.replace(CountRecord::Head(head)) {
                        former = Some(head);
                    }
                    head_of(other)
                }
            };
            let (block, due) = self.add(head, item);
            let left = Left { block, due, former };
            (left, head.items)
        });
        let Left { block, due, former } = left;
        if let Some(former) = former {
            let blocks = former.tail_first() / BLOCK;
            for field in former.sizes.fields_before(blocks) {
                records.remove(&field);
            }
        }
        if let Some((number, block)) = block {
            records.insert(&self.sizes.field_of(number), CountRecord::Block(block));
        }
        let value = match due {
            Due::None => return,
            Due::Result(value) => value,
            Due::Fragments { first, tail } => self.turn_over(records, items, first, &tail),
        };
        emit(&CountWindow {
            key: key.clone(),
            value,
            events: self.sizes.events(items),
            last: items,
        });
    }

    /// Adds an item to the head. Returns the block that is whole then, and the window that ends there.
    #[expect(clippy::type_complexity, reason = "both parts are taken apart at once")]
    fn add<T: ?Sized>(
        &self,
        head: &mut CountHead<A::State>,
        item: &T,
    ) -> (Option<(u64, Vec<A::State>)>, Due<A::State, A::Out>)
    where
        A: Aggregate<T>,
    {
        let Self { sizes, aggregate } = self;
        let fragments = head.fragments();
        if !sizes.are_apart() || sizes.has_next(head.items) {
            aggregate.add(&mut head.open, item);
        }
        head.items += 1;
        let is_due = sizes.ends_at(head.items);
        if sizes.are_apart() {
            if !is_due {
                return (None, Due::None);
            }
            let window = std::mem::replace(&mut head.open, aggregate.empty());
            return (None, Due::Result(self.result(&window, head.items)));
        }
        if head.fragments() > fragments {
            let fragment = std::mem::replace(&mut head.open, aggregate.empty());
            if let Stacks(Some(stacks)) = &mut head.stacks {
                stacks.push(aggregate, &fragment);
            }
            head.tail.push(fragment);
        }
        let due = match (is_due, &mut head.stacks) {
            (false, _) => Due::None,
            (true, Stacks(stacks)) => {
                let first = sizes.first_fragment(head.items);
                let total = stacks
                    .as_mut()
                    .and_then(|it| it.total_from(aggregate, first));
                match total {
                    Some(total) => Due::Result(self.result(&total, head.items)),
                    None => Due::Fragments {
                        first,
                        tail: head.tail.clone(),
                    },
                }
            }
        };
        let is_whole = head.tail.len() as u64 == BLOCK;
        let block = is_whole.then(|| {
            let number = head.fragments() / BLOCK - 1;
            (number, std::mem::take(&mut head.tail))
        });
        (block, due)
    }

    /// Makes the stacks of the window that ends behind `items` items. Returns the window's result.
    fn turn_over<K: Key>(
        &self,
        records: &mut Records<'_, K, A::State>,
        items: u64,
        first: u64,
        tail: &[A::State],
    ) -> A::Out {
        let fragments = self.sizes.fragments(items);
        let tail_first = fragments - tail.len() as u64;
        let mut front: Vec<A::State> = Vec::with_capacity((fragments - first) as usize);
        let mut push = |fragment: &A::State| {
            let mut all = fragment.clone();
            if let Some(newer) = front.last() {
                self.aggregate.merge(&mut all, newer);
            }
            front.push(all);
        };
        let in_tail = first.saturating_sub(tail_first) as usize;
        tail[in_tail..].iter().rev().for_each(&mut push);
        let mut end = tail_first;
        while end > first {
            let block = (end - 1) / BLOCK;
            let Some(CountRecord::Block(whole)) = records.get(&self.sizes.field_of(block)) else {
                unreachable!("a block is there until no window needs it");
            };
            let begin = first.max(block * BLOCK);
            let places = (begin % BLOCK) as usize..(end - block * BLOCK) as usize;
            whole[places].iter().rev().for_each(&mut push);
            end = begin;
        }
        let oldest = front.last();
        let value = match oldest {
            Some(total) => self.result(total, items),
            None => self.result(&self.aggregate.empty(), items),
        };
        records.update(&None, |present| {
            head_of(present).stacks = Stacks(Some(Known::new(front, fragments)));
        });
        value
    }

    fn result(&self, window: &A::State, items: u64) -> A::Out {
        self.aggregate.result(window, self.sizes.events(items))
    }
}

fn head_of<S>(record: &mut Option<CountRecord<S>>) -> &mut CountHead<S> {
    match record {
        Some(CountRecord::Head(head)) => head,
        _ => unreachable!("the field has the head"),
    }
}
