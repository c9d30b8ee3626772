//! Commits of earlier checkpoints while a writer uses the changelog, or waits for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::task::Wake;
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::sinks::sink::Sink;
use crate::state::changelog_reader::RestoreChange;
use crate::state::logged::WriteChanges;
use crate::state::watched::ShownChange;

const TIME_MAX: Duration = Duration::from_secs(60);

fn wait_until(condition: impl Fn() -> bool) {
    let started_at = Instant::now();
    while !condition() {
        assert!(started_at.elapsed() < TIME_MAX);
        thread::yield_now();
    }
}

/// A state that reports the same change each time.
#[derive(Default)]
struct OneChange {
    value: Option<Vec<u8>>,
    /// The number of changed keys that it reports.
    changed_keys: usize,
}

impl LoggedState for OneChange {
    fn note_changes(&self) {}

    fn restore_change(&self, _: &[u8], _: Option<&[u8]>) -> Result<(), BoxError> {
        Ok(())
    }

    fn note_changed(&self, _: &[u8]) -> Result<(), BoxError> {
        Ok(())
    }

    fn sample(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        None
    }

    fn has(&self, _: &[u8]) -> Result<bool, BoxError> {
        Ok(true)
    }

    fn has_plain_keys(&self) -> bool {
        true
    }

    fn show(&self, _: &[u8], _: Option<&[u8]>) -> Result<ShownChange, BoxError> {
        Err("it has no readers".into())
    }

    fn check_sample(&self, _: &[u8], _: &[u8]) -> Result<(), BoxError> {
        Ok(())
    }

    fn changed_keys(&self) -> usize {
        self.changed_keys
    }

    fn cut(&self, _: u64) {}

    fn write(&self, checkpoint: u64, write: &mut WriteChanges<'_>) -> Result<(), BoxError> {
        let change = Change {
            key: vec![1],
            value: self.value.clone(),
            checkpoint,
            expires: None,
        };
        write(&mut std::iter::once(Ok(change)))
    }

    fn written(&self, _: u64) {}

    fn sweep(&self) {}
}

/// Answers each push as the test says.
struct Told {
    asked: SyncSender<Waker>,
    answers: Receiver<usize>,
}

impl Sink<Change> for Told {
    fn push(&mut self, _: &[Change], waker: &Waker) -> Result<usize, BoxError> {
        self.asked.send(waker.clone())?;
        Ok(self.answers.recv()?)
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }

    fn prepare(&mut self, checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        Ok(vec![checkpoint as u8])
    }
}

impl Changelog for Told {
    fn restore<'a>(
        &mut self,
        _: Option<u64>,
        _: &'a mut RestoreChange<'a>,
    ) -> Result<(), BoxError> {
        Ok(())
    }
}

#[derive(Default)]
struct Wakes(AtomicU64);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_commit_does_not_wait_for_a_push_or_for_room() {
    let (asked, asks) = sync_channel(1);
    let (answer, answers) = sync_channel(1);
    let element = Arc::new(LoggedElement::new("counts", Arc::<OneChange>::default()));
    element.open(Box::new(Told { asked, answers }), None);
    let wakes = Arc::new(Wakes::default());
    let commit_waker = Waker::from(Arc::clone(&wakes));
    let commit = || element.commit(1, &commit_waker).ok();
    let bell = Arc::new(WriterBell::default());
    let write = element.cut_changes(2);
    let writer = thread::spawn({
        let bell = Arc::clone(&bell);
        move || {
            write.write(&bell)?;
            write.prepare()
        }
    });
    // 1. The writer is in a push.
    let room = asks.recv_timeout(TIME_MAX).unwrap();
    assert_eq!(commit(), Some(false));
    assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
    // 2. The push took nothing, and the writer waits for room.
    answer.send(0).unwrap();
    wait_until(|| commit() == Some(true));
    wait_until(|| wakes.0.load(Ordering::SeqCst) > 0);
    assert!(asks.try_recv().is_err(), "the writer waits for the waker");
    // 3. There is room.
    room.wake();
    asks.recv_timeout(TIME_MAX).unwrap();
    answer.send(1).unwrap();
    let (name, written) = writer.join().unwrap().unwrap();
    assert_eq!((&name[..], written.changes), (&[2][..], 1));
}

#[test]
fn a_flow_that_ends_early_ends_its_wait_for_room() {
    let (asked, asks) = sync_channel(1);
    let (answer, answers) = sync_channel(1);
    let element = Arc::new(LoggedElement::new("counts", Arc::<OneChange>::default()));
    element.open(Box::new(Told { asked, answers }), None);
    let bell = Arc::new(WriterBell::default());
    let write = element.cut_changes(2);
    answer.send(0).unwrap();
    let writer = thread::spawn({
        let bell = Arc::clone(&bell);
        move || write.write(&bell)
    });
    asks.recv_timeout(TIME_MAX).unwrap();
    bell.cancel();
    assert_eq!(
        writer.join().unwrap().unwrap_err().to_string(),
        "the changelog of state \"counts\": the flow has ended before the changelog took all changes"
    );
}

#[test]
fn few_changes_of_large_values_make_an_early_checkpoint_due() {
    let (asked, _asks) = sync_channel(1);
    let (answer, answers) = sync_channel(1);
    let state = OneChange {
        value: Some(vec![0; 1 << 20]),
        changed_keys: 300,
    };
    let element = Arc::new(LoggedElement::new("counts", Arc::new(state)));
    element.open(Box::new(Told { asked, answers }), None);
    // The size of values is unknown before the first checkpoint.
    assert!(!element.has_many_changes());
    answer.send(1).unwrap();
    let write = element.cut_changes(1);
    write.write(&Arc::new(WriterBell::default())).unwrap();
    assert!(element.has_many_changes());
}
