//! Reads and writes past the system's cache (`O_DIRECT`). Their memory, offset and length are aligned.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::OnceLock;

use rustix::fs::OFlags;

use crate::disk::PARTS_MAX;

/// The alignment of offsets, lengths and memory, in bytes: the largest that disks and file systems require.
pub const PAGE_BYTES: usize = 4096;

/// The most bytes to copy before a write: the size at which disks reach their full rate.
const COPIED_BYTES: usize = 4 << 20;

/// Smaller writes cost less through the cache: one write there, up to three here.
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
        // Allocated late, since a writer of little data needs no buffer.
        self.bytes.resize(COPIED_BYTES + PAGE_BYTES, 0);
        let start = self.bytes.as_ptr().align_offset(PAGE_BYTES);
        &mut self.bytes[start..start + COPIED_BYTES]
    }
}

/// A second handle of a file, opened when it is first needed; for reads or for writes.
#[derive(Default)]
pub struct DirectHandle {
    /// `None` where the file system cannot go past the cache.
    file: OnceLock<Option<File>>,
}

impl DirectHandle {
    /// Reads at `offset` of `file` past the cache. `None` when the memory, the offset or the length is not
    /// aligned, or when the read fails. A cached read then returns the bytes, or the error if the file
    /// itself cannot be read.
    pub fn read_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> Option<usize> {
        let is_aligned = buffer.as_ptr().align_offset(PAGE_BYTES) == 0
            && buffer.len().is_multiple_of(PAGE_BYTES)
            && offset.is_multiple_of(PAGE_BYTES as u64);
        if !is_aligned {
            return None;
        }
        let opened = self.file.get_or_init(|| {
            let mut options = OpenOptions::new();
            reopen(file, options.read(true)).ok()
        });
        opened.as_ref()?.read_at(buffer, offset).ok()
    }

    /// Writes all of `parts` at `offset` of `file`, whole pages past the cache. Bytes before the first whole
    /// page and behind the last one go through the cache, since later writes continue in these pages. A page
    /// whose memory is aligned is written in place; others are copied first. `false` when nothing was
    /// written, since there are too few bytes or the file system has no direct writes.
    pub fn write_all_at(
        &self,
        file: &File,
        parts: &[IoSlice<'_>],
        offset: u64,
    ) -> io::Result<bool> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len < DIRECT_BYTES_MIN {
            return Ok(false);
        }
        let direct = self.file.get_or_init(|| {
            let mut options = OpenOptions::new();
            reopen(file, options.write(true)).ok()
        });
        let Some(direct) = direct else {
            return Ok(false);
        };
        COPIES.with_borrow_mut(|copies| {
            let mut rest = Rest::new(parts, len);
            let mut write = Write {
                file,
                direct,
                at: offset,
                copies: copies.bytes(),
            };
            let before = (offset.next_multiple_of(PAGE_BYTES as u64) - offset) as usize;
            write.through_cache(&mut rest, before)?;
            while rest.len >= PAGE_BYTES {
                write.pages(&mut rest)?;
            }
            let behind = rest.len;
            write.through_cache(&mut rest, behind)?;
            Ok(true)
        })
    }
}

/// The parts that are still to be written.
struct Rest<'p> {
    parts: &'p [IoSlice<'p>],
    /// Bytes of the first part that are taken.
    taken: usize,
    /// Bytes that are left, in all parts.
    len: usize,
}

impl<'p> Rest<'p> {
    fn new(parts: &'p [IoSlice<'p>], len: usize) -> Rest<'p> {
        Rest {
            parts,
            taken: 0,
            len,
        }
    }

    /// Returns the rest of the first part that is not empty.
    fn first(&mut self) -> &'p [u8] {
        while let Some((first, others)) = self.parts.split_first() {
            if self.taken < first.len() {
                return &first[self.taken..];
            }
            (self.parts, self.taken) = (others, 0);
        }
        &[]
    }

    fn skip(&mut self, count: usize) {
        self.taken += count;
        self.len -= count;
    }

    /// Takes the next whole pages in aligned memory; empty when the next page has to be copied.
    fn pages_in_place(&mut self) -> &'p [u8] {
        let first = self.first();
        let is_aligned = first.as_ptr().align_offset(PAGE_BYTES) == 0;
        let count = first.len() - first.len() % PAGE_BYTES;
        let pages = &first[..if is_aligned { count } else { 0 }];
        self.skip(pages.len());
        pages
    }

    /// Fills `copy` with the next bytes.
    fn copy_into(&mut self, copy: &mut [u8]) {
        let mut filled = 0;
        while filled < copy.len() {
            let first = self.first();
            let count = first.len().min(copy.len() - filled);
            copy[filled..filled + count].copy_from_slice(&first[..count]);
            filled += count;
            self.skip(count);
        }
    }
}

/// Pages of one gathered write.
enum Piece<'p> {
    InPlace(&'p [u8]),
    /// This many bytes, behind the bytes copied before.
    Copied(usize),
}

struct Write<'f> {
    file: &'f File,
    direct: &'f File,
    /// The offset of the next byte.
    at: u64,
    copies: &'f mut [u8],
}

impl Write<'_> {
    /// Writes the next `count` bytes, less than a page, through the cache.
    fn through_cache(&mut self, rest: &mut Rest<'_>, count: usize) -> io::Result<()> {
        let copy = &mut self.copies[..count];
        rest.copy_into(copy);
        self.file.write_all_at(copy, self.at)?;
        self.at += count as u64;
        Ok(())
    }

    /// Writes as many of the next whole pages as one gathered write takes.
    fn pages(&mut self, rest: &mut Rest<'_>) -> io::Result<()> {
        let mut pieces = Vec::new();
        let mut copied = 0;
        while rest.len >= PAGE_BYTES && copied < COPIED_BYTES && pieces.len() < PARTS_MAX {
            let in_place = rest.pages_in_place();
            if !in_place.is_empty() {
                pieces.push(Piece::InPlace(in_place));
                continue;
            }
            rest.copy_into(&mut self.copies[copied..copied + PAGE_BYTES]);
            copied += PAGE_BYTES;
            match pieces.last_mut() {
                Some(Piece::Copied(bytes)) => *bytes += PAGE_BYTES,
                _ => pieces.push(Piece::Copied(PAGE_BYTES)),
            }
        }
        let mut copies = &*self.copies;
        let slices = pieces.iter().map(|piece| match piece {
            Piece::InPlace(pages) => IoSlice::new(pages),
            Piece::Copied(bytes) => {
                let (copy, others) = copies.split_at(*bytes);
                copies = others;
                IoSlice::new(copy)
            }
        });
        let mut slices: Vec<IoSlice<'_>> = slices.collect();
        let mut left = slices.as_mut_slice();
        while !left.is_empty() {
            let count = match rustix::io::pwritev(self.direct, left, self.at) {
                Ok(count) if count > 0 && count % PAGE_BYTES == 0 => count,
                // A cached write succeeds where only direct writes fail, and reports any other error.
                _ => {
                    self.file.write_all_at(&left[0], self.at)?;
                    left[0].len()
                }
            };
            self.at += count as u64;
            IoSlice::advance_slices(&mut left, count);
        }
        Ok(())
    }
}

/// Opens the file behind `file` again, even if it was renamed.
fn reopen(file: &File, options: &mut OpenOptions) -> io::Result<File> {
    options
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::disk::{Access, Disk as _, DiskFile, SystemDisk};

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|n| (n % 251) as u8).collect()
    }

    /// Memory with `content` at the same distance from a page's start as offset `at` of a file.
    fn in_place(content: &[u8], at: usize) -> (Vec<u8>, std::ops::Range<usize>) {
        let mut memory = vec![0; content.len() + 2 * PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES) + at % PAGE_BYTES;
        let range = start..start + content.len();
        memory[range.clone()].copy_from_slice(content);
        (memory, range)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// Each write continues where the last one ended, as a log's do. Some parts are aligned in memory
        /// as in the file, others are not.
        #[test]
        fn files_hold_the_written_bytes_for_all_alignments_and_lengths(
            writes in proptest::collection::vec(
                proptest::collection::vec((0_usize..3_000_000, any::<bool>()), 0..5),
                1..4,
            ),
            shift in 0_usize..8192,
        ) {
            let file = tempfile::tempfile_in(".").unwrap();
            let handle = DirectHandle::default();
            let total: usize = writes.iter().flatten().map(|(len, _)| len).sum();
            let expected = bytes(shift + total);
            let mut at = shift;
            for parts in writes {
                let mut end = at;
                let memory: Vec<_> = parts
                    .iter()
                    .map(|(len, is_in_place)| {
                        let content = &expected[end..end + len];
                        let aligned_as = if *is_in_place { end } else { end + 1 };
                        end += len;
                        in_place(content, aligned_as)
                    })
                    .collect();
                let mut parts: Vec<IoSlice<'_>> = memory
                    .iter()
                    .map(|(memory, range)| IoSlice::new(&memory[range.clone()]))
                    .collect();
                parts.insert(0, IoSlice::new(b""));
                if !handle.write_all_at(&file, &parts, at as u64).unwrap() {
                    file.write_all_at(&expected[at..end], at as u64).unwrap();
                }
                at = end;
                // A cached read returns the new bytes.
                let mut read = vec![0; at - shift];
                file.read_exact_at(&mut read, shift as u64).unwrap();
                prop_assert!(read == expected[shift..at]);
                prop_assert!(at == shift || file.metadata().unwrap().len() == at as u64);
            }
        }
    }

    /// Reads into memory that begins `shift` bytes behind the start of a page.
    fn read_past_cache(file: &dyn DiskFile, at: u64, len: usize, shift: usize) -> Vec<u8> {
        let mut memory = vec![0; len + 2 * PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES) + shift;
        let buffer = &mut memory[start..start + len];
        let count = file.read_full_past_cache_at(buffer, at).unwrap();
        buffer[..count].to_vec()
    }

    /// The file systems of the build folder and of `/dev/shm`, which has no disk below it.
    #[test]
    fn all_kinds_of_reads_return_the_same_bytes() {
        for folder in [Path::new("."), Path::new("/dev/shm")] {
            let Ok(dir) = tempfile::tempdir_in(folder) else {
                continue;
            };
            let file = SystemDisk
                .open(&dir.path().join("file"), Access::Create)
                .unwrap();
            let content = bytes(5 * PAGE_BYTES + 100);
            file.write_at(&content, 0).unwrap();
            for (page, pages) in [(0, 2), (0, 6), (3, 1), (4, 9), (5, 1), (6, 1)] {
                for (shift_at, shift_memory) in [(0, 0), (0, 1), (7, 0)] {
                    let at = page * PAGE_BYTES + shift_at;
                    let end = content.len().min(at + pages * PAGE_BYTES);
                    let read = read_past_cache(&*file, at as u64, pages * PAGE_BYTES, shift_memory);
                    assert!(read == content[at.min(end)..end], "{at} {pages}");
                    let mut read = vec![0; pages * PAGE_BYTES];
                    let count = file.read_full_once_at(&mut read, at as u64).unwrap();
                    assert!(read[..count] == content[at.min(end)..end], "{at} {pages}");
                }
            }
        }
    }

    #[test]
    fn unaligned_and_failing_direct_reads_fall_back_to_cached_reads() {
        let file = tempfile::tempfile_in(".").unwrap();
        file.write_all_at(&bytes(2 * PAGE_BYTES), 0).unwrap();
        let mut memory = vec![0; 3 * PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES);
        let handle = DirectHandle::default();
        let buffer = &mut memory[start..start + PAGE_BYTES];
        assert_eq!(handle.read_at(&file, buffer, 1), None);
        assert_eq!(handle.read_at(&file, &mut buffer[1..], 0), None);
        assert_eq!(handle.read_at(&file, &mut buffer[..10], 0), None);
        let folder = File::open(".").unwrap();
        assert_eq!(DirectHandle::default().read_at(&folder, buffer, 0), None);
    }

    #[test]
    fn aligned_pages_are_not_copied() {
        let content = bytes(5 * PAGE_BYTES);
        let (memory, range) = in_place(&content, 10);
        let parts = [IoSlice::new(&memory[range])];
        let mut rest = Rest::new(&parts, content.len());
        assert!(rest.pages_in_place().is_empty());
        rest.copy_into(&mut [0; PAGE_BYTES - 10]);
        assert_eq!(rest.pages_in_place().len(), 4 * PAGE_BYTES);
        assert_eq!(rest.len, 10);
    }

    #[test]
    fn a_direct_write_that_fails_falls_back_to_a_cached_write_and_its_error() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let content = bytes(DIRECT_BYTES_MIN);
        let mut parts = [IoSlice::new(&content)];
        let handle = DirectHandle::default();
        assert!(!handle.write_all_at(&full, &parts, 0).unwrap());

        let full = SystemDisk
            .open(Path::new("/dev/full"), Access::Write)
            .unwrap();
        let error = full.write_past_cache_at(&mut parts, 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
