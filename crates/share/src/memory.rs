//! A subscription's shared file: the parts of the [`layout`](crate::layout), in their places.

#![allow(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};

use crate::file::{OpenError, SharedFile};
use crate::layout::{Constants, Header, MAGIC, Shape, SourceControl, VERSION};
use crate::sync::{Ordering, Slot};

/// A file whose size is that of its shape.
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
        // SAFETY: the file has room for a header, which is nothing but atomic integers, and begins at
        // the start of a page; it is mapped as long as `file` is there.
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
        // SAFETY: as in `open`; every shape's size has room for a header.
        unsafe { &*self.file.start().cast() }
    }

    /// # Panics
    /// When there is no such source.
    #[inline]
    pub fn source(&self, index: usize) -> &SourceControl {
        let start = self.shape.control_start(index);
        // SAFETY: the file has the size of the shape, so the control block lies in it, on a multiple of
        // its alignment; it is nothing but atomic integers, for which any bytes are valid.
        unsafe { &*self.file.start().add(start).cast() }
    }

    /// Returns the slot for the descriptor of this sequence.
    ///
    /// # Panics
    /// When there is no such source.
    #[inline]
    pub fn slot(&self, index: usize, sequence: u64) -> &Slot {
        let start = self.shape.slot_start(index, sequence);
        // SAFETY: as for `source`.
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
