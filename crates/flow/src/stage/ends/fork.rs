//! Branches of a stage: each result continues in one of several branches, within the stage.

use std::convert::Infallible;
use std::fmt::Debug;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use millstream_base::Timestamp;
use parking_lot::Mutex;

use crate::error::Failure;
use crate::ranks::outlets::Outlets;
use crate::stage::attempt::Attempt;
use crate::stage::chain::Chain;
use crate::stage::ends::to_rings::Route;
use crate::stage::item_loop::{BatchProgress, ItemLoop};
use crate::stage::rejected::Rejected;
use crate::stage::row::RowStart;
use crate::stage::terminal::{End, InputEnd, Slice, Terminal};
use crate::time::control_event::ControlEvent;
use crate::time::stage_time::StageTime;

/// Memory of the items that a branch gets at a time, about, and how many they are: all work on them is
/// done while they are in a core's cache, and one call for each costs little.
const BATCH_BYTES: usize = 8 << 10;
const BATCH_ITEMS_MAX: usize = 256;

/// The start of the operators of a branch.
pub struct Branch<T> {
    /// The place for the arm that the operators become.
    pub(crate) arms: Arms<T>,
}

/// The arms of a branch, one for each instance that the stage may have.
pub type Arms<T> = Arc<Mutex<Vec<Box<dyn Arm<T>>>>>;

/// Makes the entries of a branch, and the place for its arms when they are built.
pub fn branch<T>(instances: usize) -> (Vec<Branch<T>>, Arms<T>) {
    let arms = Arms::default();
    let entry = |_| Branch {
        arms: Arc::clone(&arms),
    };
    ((0..instances).map(entry).collect(), arms)
}

impl<T: Send + 'static> RowStart for Branch<T> {
    type Item = T;

    /// Like the stage that it is in.
    const IS_SHARED: bool = false;

    const BEGINS_STAGE: bool = false;
}

/// Makes the arms of one row of operators, one for each of its instances.
pub fn arms<T: 'static, C: Chain<T>, E: Terminal<C::Out>>(
    name: String,
    chain: C,
    terminals: impl IntoIterator<Item = E>,
) -> impl Iterator<Item = Box<dyn Arm<T>>> {
    let (name, chain) = (Arc::<str>::from(name), Arc::new(chain));
    terminals
        .into_iter()
        .map(move |terminal| -> Box<dyn Arm<T>> {
            Box::new(FusedArm {
                name: Arc::clone(&name),
                chain: Arc::clone(&chain),
                terminal,
                time: StageTime::new(None, None),
                progress: BatchProgress::default(),
            })
        })
}

/// An item, and how far event time had come where it was.
pub struct Timed<T> {
    item: T,
    watermark: Timestamp,
}

/// A branch as one instance of the stage has it.
pub trait Arm<T>: Send {
    /// Processes items and drops them; returns those that are rejected.
    fn work(&mut self, items: &mut Vec<Timed<T>>) -> Vec<Rejected>;

    fn end(&self) -> &dyn End;

    fn end_mut(&mut self) -> &mut dyn End;
}

struct FusedArm<C, E> {
    name: Arc<str>,
    chain: Arc<C>,
    terminal: E,
    /// The event time at the current item.
    time: StageTime,
    progress: BatchProgress,
}

impl<T, C: Chain<T>, E: Terminal<C::Out>> Arm<T> for FusedArm<C, E> {
    fn work(&mut self, items: &mut Vec<Timed<T>>) -> Vec<Rejected> {
        let mut all = Vec::new();
        let time = &self.time;
        let item_loop = ItemLoop {
            name: &self.name,
            chain: &*self.chain,
            terminal: &mut self.terminal,
            time,
            progress: &mut self.progress,
        };
        let Ok(()) = item_loop.run(
            [items.as_slice(), &[]],
            |timed| {
                time.stand_at(timed.watermark);
                &timed.item
            },
            || {},
            |rejected| -> Result<(), Infallible> {
                all.extend(rejected);
                Ok(())
            },
        );
        self.progress = BatchProgress::default();
        // The items are processed, even if dropping them panics.
        if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(|| items.clear())) {
            all.push(Rejected::unseen(&self.name, &*panic));
        }
        all
    }

    fn end(&self) -> &dyn End {
        &self.terminal
    }

    fn end_mut(&mut self) -> &mut dyn End {
        &mut self.terminal
    }
}

/// The end in the branches of the stage.
pub struct ToFork<T, F> {
    branches: Vec<Feed<T>>,
    route: Route<F>,
}

/// A branch, and the items on their way to it.
struct Feed<T> {
    arm: Box<dyn Arm<T>>,
    batch: Vec<Timed<T>>,
    /// The number of results that its end gave, once that is finished.
    finished: Option<usize>,
}

impl<T, F> ToFork<T, F> {
    const BATCH_ITEMS: usize = {
        let items = BATCH_BYTES / size_of::<Timed<T>>();
        match items {
            0 => 1,
            1..BATCH_ITEMS_MAX => items,
            _ => BATCH_ITEMS_MAX,
        }
    };

    pub fn new(arms: impl Iterator<Item = Box<dyn Arm<T>>>, route: Route<F>) -> Self {
        let branches = arms.map(|arm| Feed {
            arm,
            batch: Vec::with_capacity(Self::BATCH_ITEMS),
            finished: None,
        });
        ToFork {
            branches: branches.collect(),
            route,
        }
    }

    /// Reserves room for `results` results in every branch; or else returns the branch without room.
    fn try_reserve(&mut self, results: usize) -> Result<Result<usize, usize>, Failure> {
        let mut room_min = usize::MAX;
        for number in 0..self.branches.len() {
            let Some(room) = self.branches[number].arm.end_mut().reserve(results)? else {
                // From the last to the first: they may have reserved in one ring.
                for branch in self.branches[..number].iter_mut().rev() {
                    branch.arm.end_mut().cancel();
                }
                return Ok(Err(number));
            };
            room_min = room_min.min(room);
        }
        Ok(Ok(room_min))
    }

    fn ends(&self) -> impl Iterator<Item = &dyn End> {
        self.branches.iter().map(|branch| branch.arm.end())
    }

    fn ends_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut dyn End> {
        self.branches.iter_mut().map(|branch| branch.arm.end_mut())
    }
}

impl<T> Feed<T> {
    fn work<A: Attempt>(&mut self, attempt: &A) {
        attempt.reject_all(self.arm.work(&mut self.batch));
    }
}

impl<T: Send + 'static, F: Send + Sync + 'static> End for ToFork<T, F> {
    fn closes_by_time(&self) -> bool {
        self.ends().any(|end| end.closes_by_time())
    }

    fn takes_any(&self) -> bool {
        self.ends().all(|end| end.takes_any())
    }

    /// All results may go to one branch. Where branches write to one ring, the first must not take the room of the others:
    /// then a smaller share is tried.
    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        let mut share = results.max(1);
        loop {
            match self.try_reserve(share)? {
                Ok(room) => return Ok(Some(room)),
                Err(0) => return Ok(None),
                Err(_) if share == 1 => return Ok(None),
                Err(_) => share /= 2,
            }
        }
    }

    fn cancel(&mut self) {
        self.ends_mut().rev().for_each(|end| end.cancel());
    }

    fn commit(&mut self, stamp: u64, event: Option<ControlEvent>) -> Result<usize, Failure> {
        self.ends_mut().map(|end| end.commit(stamp, event)).sum()
    }

    fn pause(&mut self) -> Result<bool, Failure> {
        let mut are_done = true;
        for end in self.ends_mut() {
            are_done &= end.pause()?;
        }
        Ok(are_done)
    }

    fn take_sent(&mut self) -> usize {
        self.ends_mut().map(|end| end.take_sent()).sum()
    }

    fn has_more(&self) -> bool {
        self.ends().any(|end| end.has_more())
    }

    fn take_progress(&mut self) -> bool {
        let mut has_progress = false;
        for end in self.ends_mut() {
            has_progress |= end.take_progress();
        }
        has_progress
    }

    fn waits_outside(&self) -> bool {
        self.ends().any(|end| end.waits_outside())
    }

    fn is_at_rest(&self) -> bool {
        self.ends().all(|end| end.is_at_rest())
    }

    fn outlets(&self) -> Vec<Arc<Outlets>> {
        self.ends().flat_map(|end| end.outlets()).collect()
    }

    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure> {
        for Feed { arm, finished, .. } in &mut self.branches {
            if finished.is_none() {
                *finished = arm.end_mut().finish(end)?;
            }
        }
        Ok(self.branches.iter().map(|branch| branch.finished).sum())
    }
}

impl<T, F> Terminal<T> for ToFork<T, F>
where
    T: Clone + Debug + Send + 'static,
    F: Fn(&T) -> usize + Send + Sync + 'static,
{
    type Slice<'a> = &'a mut Self;

    fn begin(&mut self) -> &mut Self {
        self
    }
}

impl<T, F> Slice<T> for &mut ToFork<T, F>
where
    T: Clone + Debug,
    F: Fn(&T) -> usize,
{
    #[inline]
    fn take<A: Attempt>(&mut self, attempt: &A, item: &T) {
        let count = self.branches.len();
        let Some(number) = self.route.output(attempt, item, count) else {
            return;
        };
        let branch = &mut self.branches[number];
        branch.batch.push(Timed {
            item: item.clone(),
            watermark: attempt.time().watermark(),
        });
        if branch.batch.len() >= ToFork::<T, F>::BATCH_ITEMS {
            branch.work(attempt);
        }
    }

    fn end<A: Attempt>(&mut self, attempt: &A) {
        let begun = self.branches.iter_mut();
        begun
            .filter(|branch| !branch.batch.is_empty())
            .for_each(|branch| branch.work(attempt));
    }
}
