//! Joins a base and the files of changes since into a new base, beside the flow.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::thread::{self, JoinHandle};

use millstream_flow::BoxError;
use parking_lot::Mutex;

use super::blocks::{BUCKETS, BlockReader, BlockWriter, Extent, Record};
use super::error::CheckpointDirError;
use super::files::Files;

/// Bytes that are read at once, at least: little, since most blocks of another bucket are skipped.
const READ_BYTES: usize = 4 << 10;

/// The files to join, and the new base.
pub struct Join {
    pub files: Files,
    pub base: Option<(PathBuf, Extent)>,
    /// In their order.
    pub changes: Vec<(PathBuf, Extent)>,
    pub output: PathBuf,
    /// The event time that a complete checkpoint has passed: changes that expire by then are left out.
    pub passed: Option<i64>,
}

/// A join on a thread of its own. It is given up when this is dropped.
pub struct Joining {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<Extent, BoxError>>>,
}

#[derive(Default)]
struct Shared {
    /// Set by the owner, read by the thread.
    is_cancelled: AtomicBool,
    /// Set by the thread before it takes the waker.
    is_over: AtomicBool,
    /// Waits for the end.
    waker: Mutex<Option<Waker>>,
}

impl Joining {
    /// # Errors
    /// When there is no thread.
    pub fn start(join: Join) -> Result<Joining, BoxError> {
        let shared = Arc::<Shared>::default();
        let end = End(Arc::clone(&shared));
        let thread = thread::Builder::new()
            .name("checkpoint-join".into())
            .spawn(move || run(&join, &end));
        let thread = thread.map_err(|error| format!("there is no thread for it: {error}"))?;
        Ok(Joining {
            shared,
            thread: Some(thread),
        })
    }

    pub fn is_over(&self) -> bool {
        self.shared.is_over.load(Ordering::SeqCst)
    }

    /// Wakes `waker` at the end, unless it is over. Returns whether it will.
    pub fn wake(&self, waker: &Waker) -> bool {
        *self.shared.waker.lock() = Some(waker.clone());
        // Second: the thread may have looked for the waker before.
        !self.is_over()
    }

    /// Waits for the end. Returns the content of the new base.
    pub fn finish(mut self) -> Result<Extent, BoxError> {
        let thread = self.thread.take().expect("it is finished once");
        thread
            .join()
            .unwrap_or_else(|_| Err("the thread panicked".into()))
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        self.shared.is_cancelled.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It removes its file.
            let _ = thread.join();
        }
    }
}

/// Announces the end of the thread, also if it panics.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
        if let Some(waker) = self.0.waker.lock().take() {
            waker.wake();
        }
    }
}

fn run(join: &Join, end: &End) -> Result<Extent, BoxError> {
    join.run(&end.0.is_cancelled)
}

/// The newest change of a key.
struct Newest {
    value: Option<Vec<u8>>,
    expires: Option<i64>,
}

impl Join {
    /// Writes the new base, and makes it durable. Returns its content. After an error nothing is left of it.
    pub fn run(&self, is_cancelled: &AtomicBool) -> Result<Extent, BoxError> {
        let written = self.write(is_cancelled);
        if written.is_err() {
            // It takes up space. If it stays, the next run removes it.
            let _ = self.files.remove(&self.output);
        }
        written
    }

    fn write(&self, is_cancelled: &AtomicBool) -> Result<Extent, BoxError> {
        let mut base = self.base.as_ref().map(|file| self.open(file)).transpose()?;
        let changes = self.changes.iter().map(|file| self.open(file));
        let mut changes = changes.collect::<Result<Vec<_>, _>>()?;
        let mut writer = BlockWriter::new(&self.output, self.files.create(&self.output)?);
        for bucket in 0..BUCKETS {
            let mut newest = HashMap::new();
            for file in &mut changes {
                file.rewind();
                while let Some(found) = file.peek()? {
                    if is_cancelled.load(Ordering::Relaxed) {
                        return Err("the flow has ended".into());
                    }
                    match found == bucket {
                        true => read_newest(file, &mut newest)?,
                        false => file.skip()?,
                    }
                }
            }
            if let Some(base) = &mut base {
                self.copy(base, bucket, &newest, &mut writer, is_cancelled)?;
            }
            for (key, Newest { value, expires }) in &newest {
                let (key, value, expires) = (&key[..], value.as_deref(), *expires);
                self.put(
                    &Record {
                        key,
                        value,
                        expires,
                    },
                    &mut writer,
                )?;
            }
            // A block of a base never comes behind one of a later bucket.
            writer.flush()?;
        }
        if let Some(base) = &base {
            // Also if its blocks have not come in the order of their buckets.
            base.check()?;
        }
        writer.sync()?;
        self.files.sync()?;
        Ok(writer.written())
    }

    /// Copies the entries of a bucket that have not changed.
    fn copy(
        &self,
        base: &mut BlockReader,
        bucket: u8,
        newest: &HashMap<Vec<u8>, Newest>,
        writer: &mut BlockWriter,
        is_cancelled: &AtomicBool,
    ) -> Result<(), BoxError> {
        while base.peek()? == Some(bucket) {
            if is_cancelled.load(Ordering::Relaxed) {
                return Err("the flow has ended".into());
            }
            let Some(block) = base.next()? else {
                break;
            };
            block.each(|record| match newest.contains_key(record.key) {
                true => Ok(()),
                false => self.put(&record, writer),
            })?;
        }
        Ok(())
    }

    /// Writes an entry, unless the key has no value or no run needs it any more.
    fn put(&self, record: &Record<'_>, writer: &mut BlockWriter) -> Result<(), CheckpointDirError> {
        let is_over =
            matches!((record.expires, self.passed), (Some(end), Some(time)) if end <= time);
        match record.value.is_some() && !is_over {
            true => writer.push(record),
            false => Ok(()),
        }
    }

    fn open(&self, (path, content): &(PathBuf, Extent)) -> Result<BlockReader, CheckpointDirError> {
        BlockReader::new(path, self.files.open(path)?, *content, READ_BYTES)
    }
}

fn read_newest(
    file: &mut BlockReader,
    newest: &mut HashMap<Vec<u8>, Newest>,
) -> Result<(), CheckpointDirError> {
    let Some(block) = file.next()? else {
        return Ok(());
    };
    block.each(|record| {
        let change = Newest {
            value: record.value.map(<[u8]>::to_vec),
            expires: record.expires,
        };
        newest.insert(record.key.to_vec(), change);
        Ok(())
    })
}
