//! A subscription's shared file, with access to the parts of its [`layout`](crate::layout).

#![allow(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};

use crate::file::{OpenError, SharedFile};
use crate::layout::{Constants, Header, MAGIC, Shape, SourceControl, VERSION};
use crate::sync::{Ordering, Slot};

/// A file with the size of its shape.
#[derive(Debug)]
pub struct Memory {
    file: SharedFile,
    /// This process's own copy: the file's content may change.
    shape: Shape,
}

impl Memory {
    pub fn create(shape: Shape, identity: u64) -> io::Result<Memory> {
        let file = SharedFile::create("millstream-subscription", shape.bytes())?;
        let memory = Memory { file, shape };
        let constants = &memory.header().constants;
        let sources = shape.sources() as u32;
        constants.magic.store(MAGIC, Ordering::Relaxed);
        constants.version.store(VERSION, Ordering::Relaxed);
        constants.sources.store(sources, Ordering::Relaxed);
        constants.entries.store(shape.entries(), Ordering::Relaxed);
        constants.identity.store(identity, Ordering::Relaxed);
        Ok(memory)
    }

    pub fn open(path: &Path, identity: u64) -> Result<Memory, OpenError> {
        let file = SharedFile::open(path)?;
        let foreign = || OpenError::Foreign {
            path: path.to_owned(),
        };
        if file.bytes() < size_of::<Header>() {
            return Err(foreign());
        }
        // SAFETY: the file has room for a header, and begins at the start of a page. A header has only
        // atomic integers, for which any bytes are valid. The borrow ends before `file` is dropped or moved
        // away, and moving it does not move the mapping.
        let header = unsafe { &*file.start().cast::<Header>() };
        let constants = &header.constants;
        if constants.magic.load(Ordering::Relaxed) != MAGIC {
            return Err(foreign());
        }
        let shape = check(path, constants, identity)?;
        if file.bytes() != shape.bytes() {
            return Err(OpenError::Size {
                path: path.to_owned(),
                bytes: file.bytes() as u64,
                expected: shape.bytes() as u64,
            });
        }
        Ok(Memory { file, shape })
    }

    pub fn path(&self) -> PathBuf {
        self.file.path()
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    pub fn header(&self) -> &Header {
        // SAFETY: every shape has room for a header, whose fields are atomic integers, valid with any
        // bytes. `self` owns the mapping for as long as the result is borrowed.
        unsafe { &*self.file.start().cast() }
    }

    /// # Panics
    /// When there is no such source.
    #[inline]
    pub fn source(&self, index: usize) -> &SourceControl {
        let start = self.shape.control_start(index);
        // SAFETY: the file has the size of the shape, and `control_start` checks the index, so the control
        // block lies in the file, on a multiple of its alignment. It has only atomic integers, for which
        // any bytes are valid. `self` owns the mapping for as long as the result is borrowed.
        unsafe { &*self.file.start().add(start).cast() }
    }

    /// Returns the slot for the descriptor of this sequence.
    ///
    /// # Panics
    /// When there is no such source.
    #[inline]
    pub fn slot(&self, index: usize, sequence: u64) -> &Slot {
        let start = self.shape.slot_start(index, sequence);
        // SAFETY: the file has the size of the shape, and `slot_start` checks the index and wraps the
        // sequence, so the slot lies in the file, on a multiple of its alignment. It has only atomic
        // integers, for which any bytes are valid. `self` owns the mapping while the result is borrowed.
        unsafe { &*self.file.start().add(start).cast() }
    }
}

fn check(path: &Path, constants: &Constants, identity: u64) -> Result<Shape, OpenError> {
    let path = path.to_owned();
    let found = constants.version.load(Ordering::Relaxed);
    if found != VERSION {
        return Err(OpenError::Version { path, found });
    }
    let found = constants.identity.load(Ordering::Relaxed);
    if found != identity {
        return Err(OpenError::Identity {
            path,
            found,
            expected: identity,
        });
    }
    let sources = constants.sources.load(Ordering::Relaxed);
    let entries = constants.entries.load(Ordering::Relaxed);
    Shape::new(sources, entries).map_err(|error| OpenError::Shape { path, error })
}
