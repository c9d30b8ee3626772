//! The head of a group's file, which identifies the file, and the chunks behind it.
//!
//! ```text
//! 0 "MSGROUP1" 8 | 8 identity of the stream 16 | 24 stream 8 | 32 group 8 | 40 first offset 8 | 48 streamlet 4 | 52 lane 4 |
//! 56 generation 4 | 60 leader epoch 4 | 64 last group replaced 8 | 72 end offset 8 | 80 end position 8 | 88 zero 4 |
//! 92 CRC of all before 4 | zero 4000
//! ```
//!
//! The head has a page, so chunks lie in the file as they lie in pages of memory. A group's positions count from behind it.
//! The files of format 2 have no head.

use std::io::{self, IoSlice};

use millstream_base::disk::Access;
use millstream_base::{
    DiskFile, GroupId, LaneIndex, Offset, Position, StreamId, StreamletIndex, crc32c,
};
use uuid::Uuid;

use crate::files::DataDir;
use crate::ids::{Generation, GroupName, LaneId};

const MAGIC: [u8; 8] = *b"MSGROUP1";

pub const HEAD_BYTES: u64 = 4096;

/// The bytes of the head that are not always 0.
pub const HEAD_USED: usize = 96;

const CRC_AT: usize = HEAD_USED - 4;

/// The identity of a group's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupHead {
    pub name: GroupName,
    /// The identity of the stream.
    pub identity: Uuid,
    /// The leader epoch of the group's first chunk.
    pub leader_epoch: i32,
    /// The last group that the file replaces; of a group's first file the group itself.
    pub replaced_to: GroupId,
    /// The end of a group that was rewritten; 0 in a group's first file.
    pub end: (Offset, Position),
}

impl GroupHead {
    /// Returns the head of a group's first file.
    pub fn of_first(name: GroupName, identity: Uuid, leader_epoch: i32) -> GroupHead {
        GroupHead {
            name,
            identity,
            leader_epoch,
            replaced_to: name.id,
            end: (Offset(0), Position(0)),
        }
    }

    pub fn encode(&self) -> [u8; HEAD_BYTES as usize] {
        let GroupName {
            lane,
            id,
            first_offset,
            generation,
        } = self.name;
        let mut bytes = [0; HEAD_BYTES as usize];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(self.identity.as_bytes());
        bytes[24..32].copy_from_slice(&lane.stream.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&id.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&first_offset.0.to_le_bytes());
        bytes[48..52].copy_from_slice(&lane.streamlet.0.to_le_bytes());
        bytes[52..56].copy_from_slice(&lane.lane.0.to_le_bytes());
        bytes[56..60].copy_from_slice(&generation.0.to_le_bytes());
        bytes[60..64].copy_from_slice(&self.leader_epoch.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.replaced_to.0.to_le_bytes());
        bytes[72..80].copy_from_slice(&self.end.0.0.to_le_bytes());
        bytes[80..88].copy_from_slice(&self.end.1.0.to_le_bytes());
        let crc = crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..HEAD_USED].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Returns the head of a file that begins with `bytes`, if it is whole.
    pub fn decode(bytes: &[u8]) -> Option<GroupHead> {
        let used = bytes.get(..HEAD_USED)?;
        let u64_at = |at: usize| Some(u64::from_le_bytes(*used.get(at..)?.first_chunk()?));
        let u32_at = |at: usize| Some(u32::from_le_bytes(*used.get(at..)?.first_chunk()?));
        let head = GroupHead {
            name: GroupName {
                lane: LaneId {
                    stream: StreamId(u64_at(24)?),
                    streamlet: StreamletIndex(u32_at(48)?),
                    lane: LaneIndex(u32_at(52)?),
                },
                id: GroupId(u64_at(32)?),
                first_offset: Offset(u64_at(40)?),
                generation: Generation(u32_at(56)?),
            },
            identity: Uuid::from_bytes(*used.get(8..)?.first_chunk()?),
            leader_epoch: u32_at(60)?.cast_signed(),
            replaced_to: GroupId(u64_at(64)?),
            end: (Offset(u64_at(72)?), Position(u64_at(80)?)),
        };
        (head.encode()[..HEAD_USED] == *used).then_some(head)
    }
}

impl DataDir {
    /// Opens a group's file: its chunks.
    pub fn open_group(&self, name: &GroupName, access: Access) -> io::Result<Box<dyn DiskFile>> {
        let file = self.disk.open(&self.group_path(name), access)?;
        Ok(chunks_of(file, name))
    }

    /// Opens a group's file, and reads its head; `None` if that is damaged, or the file has none.
    pub fn open_with_head(
        &self,
        name: &GroupName,
        access: Access,
    ) -> io::Result<(Box<dyn DiskFile>, Option<GroupHead>)> {
        let file = self.disk.open(&self.group_path(name), access)?;
        let mut bytes = [0; HEAD_USED];
        let head = match name.has_head() {
            // A full disk may end the file within the page.
            true if file.len()? < HEAD_BYTES => None,
            true => {
                let count = file.read_full_at(&mut bytes, 0)?;
                GroupHead::decode(&bytes[..count])
            }
            false => None,
        };
        Ok((chunks_of(file, name), head))
    }

    /// Creates or truncates a group's file, with a head if its name has a generation. Neither name nor head are
    /// durable then.
    pub fn create_group(&self, head: &GroupHead) -> io::Result<Box<dyn DiskFile>> {
        let file = self
            .disk
            .open(&self.group_path(&head.name), Access::Create)?;
        if head.name.has_head() {
            file.write_at(&head.encode(), 0)?;
        }
        Ok(chunks_of(file, &head.name))
    }

    /// Makes the file of a rewritten group, or begins it again, without its head.
    pub fn begin_rewritten(&self, name: &GroupName) -> io::Result<Box<dyn DiskFile>> {
        let file = self.disk.open(&self.group_path(name), Access::Create)?;
        file.set_len(0)?;
        Ok(chunks_of(file, name))
    }

    /// Writes the head of a rewritten group, whose chunks are there.
    pub fn write_head(&self, head: &GroupHead) -> io::Result<()> {
        let path = self.group_path(&head.name);
        let file = self.disk.open(&path, Access::Write)?;
        file.write_at(&head.encode(), 0)
    }

    /// Writes the head of an unlisted file again: if a sync failed before the last run ended, the head may be in the page cache
    /// and not on the medium.
    pub fn write_head_again(&self, name: &GroupName) -> io::Result<()> {
        let (_, head) = self.open_with_head(name, Access::Read)?;
        match head {
            Some(head) => {
                let file = self.disk.open(&self.group_path(name), Access::Write)?;
                file.write_at(&head.encode(), 0)
            }
            None => Ok(()),
        }
    }

    /// Returns the identity of a stream that is on each node: another directory's has another one.
    pub fn identity_of(&self, stream: StreamId) -> Uuid {
        identity_of(self.manifest().directory(), stream)
    }
}

/// Derives the identity of a node's own stream from the directory's identity. Applied to the stream's identity, it returns
/// the directory's.
pub fn identity_of(mut directory: [u8; 16], stream: StreamId) -> Uuid {
    let number = stream.0.to_le_bytes();
    for (byte, of_stream) in directory.iter_mut().zip(number) {
        *byte ^= of_stream;
    }
    Uuid::from_bytes(directory)
}

fn chunks_of(file: Box<dyn DiskFile>, name: &GroupName) -> Box<dyn DiskFile> {
    match name.has_head() {
        true => Box::new(BehindHead(file)),
        false => file,
    }
}

/// A file without its head.
struct BehindHead(Box<dyn DiskFile>);

impl DiskFile for BehindHead {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, HEAD_BYTES + offset)
    }

    fn read_past_cache_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_past_cache_at(buffer, HEAD_BYTES + offset)
    }

    fn read_once_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_once_at(buffer, HEAD_BYTES + offset)
    }

    fn write_all_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.0.write_all_at(parts, HEAD_BYTES + offset)
    }

    fn write_past_cache_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.0.write_past_cache_at(parts, HEAD_BYTES + offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len()?.saturating_sub(HEAD_BYTES))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(HEAD_BYTES + len)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.0.reserve(HEAD_BYTES + len)
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.0.try_lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> GroupHead {
        GroupHead {
            name: GroupName {
                lane: LaneId {
                    stream: StreamId(0x11),
                    streamlet: StreamletIndex(0x22),
                    lane: LaneIndex(0x33),
                },
                id: GroupId(0x44),
                first_offset: Offset(0x55),
                generation: Generation(0x66),
            },
            identity: Uuid::from_bytes([0xab; 16]),
            leader_epoch: 0x77,
            replaced_to: GroupId(0x88),
            end: (Offset(0x99), Position(0xaa)),
        }
    }

    #[test]
    fn golden_bytes() {
        let bytes = head().encode();
        let hex =
            |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
        let fields = "4d5347524f555031 abababababababababababababababab 1100000000000000 4400000000000000 5500000000000000 \
                      22000000 33000000 66000000 77000000 8800000000000000 9900000000000000 aa00000000000000 00000000";
        let fields: String = fields.split_whitespace().collect();
        assert_eq!(hex(&bytes[..CRC_AT]), fields);
        assert_eq!(
            bytes[CRC_AT..HEAD_USED],
            crc32c(&bytes[..CRC_AT]).to_le_bytes()
        );
        assert!(bytes[HEAD_USED..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_group_head_round_trips_and_other_bytes_are_refused() {
        let bytes = head().encode();
        assert_eq!(GroupHead::decode(&bytes), Some(head()));
        for len in 0..HEAD_USED {
            assert_eq!(GroupHead::decode(&bytes[..len]), None);
        }
        for bit in 0..8 * HEAD_USED {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(GroupHead::decode(&flipped), None, "bit {bit}");
        }
        assert_eq!(GroupHead::decode(&[0; HEAD_USED]), None);
    }

    #[test]
    fn a_streams_identity_depends_on_the_directory_and_leads_back_to_it() {
        let directory = [7; 16];
        let all = [0, 1, 256].map(|id| identity_of(directory, StreamId(id)));
        assert_eq!(*all[0].as_bytes(), directory);
        assert!(all[0] != all[1] && all[1] != all[2]);
        for (id, identity) in [0, 1, 256].into_iter().zip(all) {
            let back = identity_of(*identity.as_bytes(), StreamId(id));
            assert_eq!(*back.as_bytes(), directory);
        }
    }
}
