//! Writes past the system's cache (`O_DIRECT`): for these, memory, place and length are aligned.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::OnceLock;

use rustix::fs::OFlags;

/// To what everything is aligned: what disks and file systems ask for at most.
const PAGE_BYTES: usize = 4096;

/// How much is copied, and written, at a time.
const COPIED_BYTES: usize = 4 << 20;

/// Below this a write costs less through the cache: there it is one, here up to three.
const DIRECT_BYTES_MIN: usize = 64 << 10;

thread_local! {
    static COPIES: RefCell<Aligned> = RefCell::new(Aligned::default());
}

/// Memory that begins at a multiple of [`PAGE_BYTES`].
#[derive(Default)]
struct Aligned {
    bytes: Vec<u8>,
}

impl Aligned {
    fn bytes(&mut self) -> &mut [u8] {
        // Whoever writes only a little needs none.
        self.bytes.resize(COPIED_BYTES + PAGE_BYTES, 0);
        let start = self.bytes.as_ptr().align_offset(PAGE_BYTES);
        &mut self.bytes[start..start + COPIED_BYTES]
    }
}

/// A second handle of a file, opened when it is first needed.
#[derive(Default)]
pub struct DirectHandle {
    /// `None` where the file system has no such writes.
    file: OnceLock<Option<File>>,
}

impl DirectHandle {
    /// Writes all of `parts` at `offset` of `file`, whole pages past the cache. What lies before the
    /// first and behind the last of them goes through it: the next write goes on there. `false` when
    /// nothing was written, since it is too little or the file system has no such writes.
    pub fn write_all_at(
        &self,
        file: &File,
        mut parts: &mut [IoSlice<'_>],
        offset: u64,
    ) -> io::Result<bool> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len < DIRECT_BYTES_MIN {
            return Ok(false);
        }
        let Some(direct) = self.file.get_or_init(|| reopen(file).ok()) else {
            return Ok(false);
        };
        COPIES.with_borrow_mut(|copies| {
            let copies = copies.bytes();
            let mut written = 0;
            while written < len {
                let at = offset + written as u64;
                let step = Step::new(at, len - written);
                let copy = &mut copies[..step.bytes];
                take(&mut parts, copy);
                let done = step.whole_pages && direct.write_all_at(copy, at).is_ok();
                if !done {
                    // An error that is not one of such writes alone comes back here.
                    file.write_all_at(copy, at)?;
                }
                written += step.bytes;
            }
            Ok(true)
        })
    }
}

/// What is written at once.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    bytes: usize,
    whole_pages: bool,
}

impl Step {
    /// The first of `len` bytes that are to be written at `at`.
    fn new(at: u64, len: usize) -> Step {
        let to_border = (at.next_multiple_of(PAGE_BYTES as u64) - at) as usize;
        let whole = len - len % PAGE_BYTES;
        match (to_border, whole) {
            (0, 0) => Step {
                bytes: len,
                whole_pages: false,
            },
            (0, _) => Step {
                bytes: whole.min(COPIED_BYTES),
                whole_pages: true,
            },
            (_, _) => Step {
                bytes: to_border.min(len),
                whole_pages: false,
            },
        }
    }
}

/// Opens what `file` has open once more, whatever its name is by now.
fn reopen(file: &File) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Fills `copy` with what comes first in `parts`, which holds as much, and takes it out of there.
fn take(parts: &mut &mut [IoSlice<'_>], copy: &mut [u8]) {
    let mut filled = 0;
    while filled < copy.len() {
        let part = &parts[0];
        let count = part.len().min(copy.len() - filled);
        copy[filled..filled + count].copy_from_slice(&part[..count]);
        filled += count;
        IoSlice::advance_slices(parts, count);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::disk::{Access, Disk as _, SystemDisk};

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n % 251) as u8).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// Writes go on where the last one ended, as a log's do.
        #[test]
        fn files_hold_what_was_written_whatever_the_places_and_lengths(
            lens in proptest::collection::vec(0_usize..5 * COPIED_BYTES / 4, 1..4),
            cut in 1_usize..200_000,
        ) {
            let file = tempfile::tempfile_in(".").unwrap();
            let handle = DirectHandle::default();
            let expected = bytes(lens.iter().sum());
            let mut at = 0;
            for len in lens {
                let content = &expected[at..at + len];
                let mut parts: Vec<IoSlice<'_>> = content.chunks(cut).map(IoSlice::new).collect();
                parts.insert(0, IoSlice::new(b""));
                if !handle.write_all_at(&file, &mut parts, at as u64).unwrap() {
                    file.write_all_at(content, at as u64).unwrap();
                }
                at += len;
                prop_assert_eq!(file.metadata().unwrap().len(), at as u64);
                // What is in the cache is no older.
                let mut read = vec![0; at];
                file.read_exact_at(&mut read, 0).unwrap();
                prop_assert!(read == expected[..at]);
            }
        }
    }

    #[test]
    fn only_whole_pages_go_past_the_cache() {
        let page = PAGE_BYTES;
        for (at, len, bytes, whole_pages) in [
            (0, 10, 10, false),
            (0, page, page, true),
            (0, 2 * page + 1, 2 * page, true),
            (1, 2 * page, page - 1, false),
            (1, 5, 5, false),
            (0, 2 * COPIED_BYTES, COPIED_BYTES, true),
        ] {
            assert_eq!(
                Step::new(at, len),
                Step { bytes, whole_pages },
                "{at} {len}"
            );
        }
    }

    #[test]
    fn what_has_no_such_writes_is_left_to_the_cache_and_its_errors() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let content = bytes(DIRECT_BYTES_MIN);
        let mut parts = [IoSlice::new(&content)];
        let handle = DirectHandle::default();
        assert!(!handle.write_all_at(&full, &mut parts, 0).unwrap());

        let full = SystemDisk
            .open(Path::new("/dev/full"), Access::Write)
            .unwrap();
        let error = full.write_past_cache_at(&mut parts, 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
