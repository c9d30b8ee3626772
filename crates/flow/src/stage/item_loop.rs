//! The loop over the items in hand: each is processed as it is, and again when user code panics.

use std::mem;
use std::panic::{self, AssertUnwindSafe};

use crate::stage::activation::Killed;
use crate::stage::attempt::{FirstAttempt, Outlasting, SecondAttempt};
use crate::stage::chain::Chain;
use crate::stage::rejected::Rejected;
use crate::stage::terminal::{Slice, Terminal};
use crate::stage::user_code::{Label, is_state_broken};
use crate::time::stage_time::StageTime;

/// The number of items after which a worker checks whether it must die, as some tests demand.
const MORTAL_ITEMS: usize = 64;

/// The progress with the items in hand.
#[derive(Default, Clone, Copy)]
pub struct BatchProgress {
    /// Items that are finished.
    pub items: usize,
    /// Results that were passed on of the item behind them.
    pub results: usize,
}

/// Counts the results of an item where that costs nothing, and notes them when the item panics.
struct PassedOn<'p> {
    progress: &'p mut BatchProgress,
    results: usize,
}

impl<'p> PassedOn<'p> {
    fn of(progress: &'p mut BatchProgress) -> PassedOn<'p> {
        let results = progress.results;
        PassedOn { progress, results }
    }
}

impl Drop for PassedOn<'_> {
    fn drop(&mut self) {
        self.progress.results = self.results;
    }
}

/// Operators in a row, and how far they have come with the items in hand.
pub struct ItemLoop<'w, C, T> {
    /// The name of the operators together.
    pub name: &'w str,
    pub chain: &'w C,
    pub terminal: &'w mut T,
    pub time: &'w StageTime,
    pub progress: &'w mut BatchProgress,
}

impl<C, T> ItemLoop<'_, C, T> {
    /// Processes the rest of the items in hand, or those up to one at which the terminal stops. `enter` notes an item and
    /// returns the value to process, `breathe` may unwind between items, and `keep` gets the rejected ones. Unwinds as well
    /// when code that changes state panics.
    pub fn run<In, Item, E>(
        mut self,
        in_hand: [&[In]; 2],
        enter: impl Fn(&In) -> &Item,
        breathe: impl Fn(),
        mut keep: impl FnMut(Vec<Rejected>) -> Result<(), E>,
    ) -> Result<(), E>
    where
        C: Chain<Item>,
        T: Terminal<C::Out>,
    {
        let outlasting = Outlasting::default();
        loop {
            let first =
                AssertUnwindSafe(|| self.first_attempt(&outlasting, in_hand, &enter, &breathe));
            let (mut all, mut has_ended) = (Vec::new(), true);
            match panic::catch_unwind(first) {
                // User code caught the panic of code that it called by passing something on.
                Ok(_) if is_state_broken() => {
                    panic::resume_unwind(Box::new("its state is half changed"))
                }
                Ok(rejected) => all.extend(rejected),
                Err(panic) if panic.is::<Killed>() || is_state_broken() => {
                    panic::resume_unwind(panic)
                }
                Err(panic) => {
                    let [first, second] = in_hand;
                    let mut items = first.iter().chain(second).skip(self.progress.items);
                    let Some(item) = items.next() else {
                        panic::resume_unwind(panic);
                    };
                    all.extend(self.second_attempt(&outlasting, enter(item)));
                    has_ended = false;
                }
            }
            all.extend(outlasting.take());
            if all.is_empty() && has_ended {
                return Ok(());
            }
            keep(all)?;
        }
    }

    /// Goes on with the items in hand, up to one of which something is rejected; unwinds where code
    /// of the user panics.
    fn first_attempt<In, Item>(
        &mut self,
        outlasting: &Outlasting,
        in_hand: [&[In]; 2],
        enter: &impl Fn(&In) -> &Item,
        breathe: &impl Fn(),
    ) -> Vec<Rejected>
    where
        C: Chain<Item>,
        T: Terminal<C::Out>,
    {
        let progress = &mut *self.progress;
        let first = FirstAttempt::new(self.time, outlasting);
        let mut slice = self.terminal.begin();
        let mut before = progress.items;
        for part in in_hand {
            let done = before.min(part.len());
            before -= done;
            for items in part[done..].chunks(MORTAL_ITEMS) {
                breathe();
                for item in items {
                    let mut passed_on = PassedOn::of(progress);
                    self.chain.process(&first, enter(item), &mut |result| {
                        slice.take(&first, result);
                        passed_on.results += 1;
                    });
                    mem::forget(passed_on);
                    if slice.is_stopped() {
                        continue;
                    }
                    progress.items += 1;
                    if first.has_rejected() {
                        return first.rejected.into_inner();
                    }
                }
            }
        }
        slice.end(&first);
        first.rejected.into_inner()
    }

    /// Processes the item again that user code panicked on.
    #[cold]
    fn second_attempt<Item>(&mut self, outlasting: &Outlasting, item: &Item) -> Vec<Rejected>
    where
        C: Chain<Item>,
        T: Terminal<C::Out>,
    {
        Label::take_panicked();
        let again = SecondAttempt(FirstAttempt::new(self.time, outlasting));
        let mut passed_on = self.progress.results;
        let mut slice = self.terminal.begin();
        let process = AssertUnwindSafe(|| {
            self.chain.process(&again, item, &mut |result| {
                if passed_on > 0 {
                    passed_on -= 1;
                    if passed_on == 0 {
                        again.0.resume_late();
                    }
                } else {
                    slice.take(&again, result);
                }
            });
        });
        // User code that runs outside of an operator's function: `Clone`, `Hash` or `Drop` of a result.
        if let Err(panic) = panic::catch_unwind(process) {
            if is_state_broken() {
                panic::resume_unwind(panic);
            }
            again.0.reject_unseen(self.name, &*panic);
        }
        assert!(!slice.is_stopped(), "no operator is before it");
        drop(slice);
        self.progress.items += 1;
        self.progress.results = 0;
        again.0.rejected.into_inner()
    }
}
