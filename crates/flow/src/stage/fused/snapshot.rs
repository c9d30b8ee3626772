//! A fused stage as a checkpoint sees it.

use std::time::Duration;

use millstream_base::Timestamp;
use parking_lot::MutexGuard;

use crate::error::{BoxError, Failure};
use crate::stage::chain::Chain;
use crate::stage::contract::{Held, Rest, Snapshot};
use crate::stage::fused::instance::{Instance, Slot};
use crate::stage::fused::stage::FusedStage;
use crate::stage::input::Input;
use crate::stage::saved::{Saved, source_element, time_element, watermark_element};
use crate::stage::terminal::{End, Terminal};

impl<I, C, T> Snapshot for FusedStage<I, C, T>
where
    I: Input,
    C: Chain<I::Item>,
    T: Terminal<C::Out>,
{
    fn hold(&self) -> Result<Box<dyn Held + '_>, Rest> {
        let instances: Vec<_> = self.instances.iter().map_while(Slot::enter).collect();
        let is_whole = instances.len() == self.instances.len();
        let stage = self;
        let held = Box::new(HeldStage { stage, instances });
        match is_whole {
            true => Ok(held),
            false if held.let_go() => Err(Rest::Missed),
            false => Err(Rest::Busy),
        }
    }

    fn save(&self, saved: &mut Saved) -> Result<(), Failure> {
        for (index, slot) in self.instances.iter().enumerate() {
            let mut instance = slot.instance.lock();
            if let Some(bytes) = instance.input.save()? {
                saved.put(source_element(&self.name, index), bytes);
                saved.put(time_element(&self.name, index), instance.time.save());
            }
            if let Some(watermark) = instance.terminal.watermark() {
                // A plain number is always encoded.
                let bytes = postcard::to_stdvec(&watermark).unwrap_or_default();
                saved.put(watermark_element(&self.name, index), bytes);
            }
        }
        Ok(())
    }

    fn is_saved(&self) -> bool {
        self.is_source() && !self.instances.is_empty()
    }

    fn check(&self, saved: &Saved) -> Result<(), BoxError> {
        match self.is_saved() {
            true => self.saved_sources(saved).map(drop),
            false => Ok(()),
        }
    }

    /// As many instances as before continue at their watermarks. More or fewer all continue at the greatest (F36).
    fn restore(&self, saved: &Saved, now: Duration) -> Result<(), BoxError> {
        let watermarks = self.saved_watermarks(saved)?;
        let greatest = watermarks.iter().max();
        let is_source = self.is_source();
        let sources = match is_source {
            true => self.saved_sources(saved)?,
            false => 0,
        };
        for (index, slot) in self.instances.iter().enumerate() {
            let mut instance = slot.instance.lock();
            if is_source {
                let from = index % sources;
                let source = saved.get(&source_element(&self.name, from))?;
                instance.input.restore(source)?;
                let time = saved.get(&time_element(&self.name, from))?;
                instance.time.restore(time, now)?;
            }
            let own = watermarks.get(index);
            let own = own.filter(|_| watermarks.len() == self.instances.len());
            if let Some(watermark) = own.or(greatest) {
                instance.terminal.resume_at(*watermark);
            }
        }
        Ok(())
    }

    fn wants_commits(&self) -> bool {
        let mut instances = self.instances.iter();
        instances.any(|slot| slot.instance.lock().input.wants_commits())
    }

    fn commit(&self) -> Result<(), Failure> {
        let mut instances = self.instances.iter();
        instances.try_for_each(|slot| slot.instance.lock().input.commit())
    }
}

/// The first instances of a stage: no worker is in them, nor can come into them.
struct HeldStage<'s, I, C, T> {
    stage: &'s FusedStage<I, C, T>,
    instances: Vec<MutexGuard<'s, Instance<I, T>>>,
}

impl<I: Input, C, T: End> Held for HeldStage<'_, I, C, T> {
    fn is_at_rest(&self, number: u64) -> bool {
        let input = self.stage.input.as_ref();
        input.is_none_or(|input| input.is_empty())
            && self.instances.iter().all(|it| it.is_at_rest(number))
    }

    fn let_go(self: Box<Self>) -> bool {
        let slots = &self.stage.instances[..self.instances.len()];
        drop(self.instances);
        // All of them: each forgets that it was missed.
        let missed = slots.iter().filter(|slot| slot.was_missed());
        missed.count() > 0
    }
}

impl<I, C, T> FusedStage<I, C, T>
where
    I: Input,
    C: Chain<I::Item>,
    T: Terminal<C::Out>,
{
    /// Returns the watermarks that the instances had come to: none for most stages, and in a checkpoint of an earlier build.
    fn saved_watermarks(&self, saved: &Saved) -> Result<Vec<Timestamp>, BoxError> {
        let bytes = (0..).map_while(|index| saved.get(&watermark_element(&self.name, index)).ok());
        let watermarks = bytes.map(postcard::from_bytes);
        Ok(watermarks.collect::<Result<_, postcard::Error>>()?)
    }

    /// Returns how many sources were saved, if the present ones can resume from them.
    fn saved_sources(&self, saved: &Saved) -> Result<usize, BoxError> {
        let is_saved = |index: &usize| saved.get(&source_element(&self.name, *index)).is_ok();
        let count = (0..).take_while(is_saved).count();
        let mut instances = self.instances.iter();
        let share = |slot: &Slot<I, T>| slot.instance.lock().input.shares_position();
        match count == self.instances.len() || (count > 0 && instances.all(share)) {
            true => Ok(count),
            false => Err(format!(
                "there were {count} sources and there are {} now, which cannot resume from the positions of others; start it with as many instances as before",
                self.instances.len()
            )
            .into()),
        }
    }
}
