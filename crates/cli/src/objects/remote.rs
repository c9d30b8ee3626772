//! The objects of a server.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::ops::Range;

use anyhow::Context;
use bytes::{Buf, Bytes};
use millstream_base::checksum::crc32c_combine;
use millstream_base::crc32c;
use millstream_client::native::ObjectDescription;
use millstream_log::ObjectInfo;

use super::{Content, Objects};
use crate::input::Input;
use crate::remote::Remote;
use crate::values::ByteRange;

/// Bytes per part that is sent or requested.
const PART_BYTES: usize = 1 << 20;

impl Objects for Remote {
    fn put(&self, name: &str, content: &mut Input) -> anyhow::Result<ObjectInfo> {
        let mut upload = self.wait(self.client().put_object(name))?;
        loop {
            let mut part = Vec::new();
            let read = content.take(PART_BYTES as u64).read_to_end(&mut part);
            if read.context("cannot read the content")? == 0 {
                return self.wait(upload.finish()).map(info);
            }
            self.wait(upload.part(part.into()))?;
        }
    }

    fn get(&self, name: &str, range: Option<ByteRange>) -> anyhow::Result<Content<'_>> {
        let (object, _) = self.wait(self.client().get_object(name, 0, 0))?;
        let info = info(object);
        let range = match range {
            Some(range) => range.within(info.bytes),
            None => 0..info.bytes,
        };
        // A range that begins after the end is refused, although no part of it is requested.
        self.wait(self.client().get_object(name, range.start, 0))?;
        let bytes = Box::new(Reader {
            remote: self,
            crc32c: (range == (0..info.bytes)).then_some((0, info.crc32c)),
            name: name.to_owned(),
            range,
            pieces: VecDeque::new(),
        });
        Ok(Content { info, bytes })
    }

    fn list(&self, prefix: &str) -> anyhow::Result<Vec<ObjectInfo>> {
        let objects = self.wait(self.client().objects(prefix))?;
        Ok(objects.into_iter().map(info).collect())
    }

    fn delete(&self, name: &str) -> anyhow::Result<ObjectInfo> {
        let (object, _) = self.wait(self.client().get_object(name, 0, 0))?;
        self.wait(self.client().delete_object(name))?;
        Ok(info(object))
    }
}

fn info(object: ObjectDescription) -> ObjectInfo {
    ObjectInfo {
        name: object.name.to_string(),
        bytes: object.bytes.0,
        crc32c: object.crc32c,
        created: object.created,
        stream: object.stream,
    }
}

/// Reads a range of an object, part by part.
struct Reader<'a> {
    remote: &'a Remote,
    name: String,
    /// The range that is not requested yet.
    range: Range<u64>,
    /// The received bytes that are not read yet.
    pieces: VecDeque<Bytes>,
    /// For a whole object: the checksum so far, and the expected one at the end.
    crc32c: Option<(u32, u32)>,
}

impl Reader<'_> {
    fn fetch(&mut self) -> io::Result<()> {
        let left = self.range.end - self.range.start;
        let bytes_max = left.min(PART_BYTES as u64) as u32;
        let client = self.remote.client();
        let part = client.get_object(&self.name, self.range.start, bytes_max);
        let (_, pieces) = self.remote.wait(part).map_err(io::Error::other)?;
        let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if bytes == 0 || bytes > left {
            return Err(io::Error::other(
                "the server sends other bytes than were asked for",
            ));
        }
        self.range.start += bytes;
        for piece in &pieces {
            if let Some((so_far, _)) = &mut self.crc32c {
                *so_far = crc32c_combine(*so_far, crc32c(piece), piece.len());
            }
        }
        self.pieces.extend(pieces);
        match self.crc32c {
            Some((found, expected)) if self.range.is_empty() && found != expected => Err(
                io::Error::other(format!("the content of object {} is damaged", self.name)),
            ),
            _ => Ok(()),
        }
    }
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.pieces.is_empty() && !self.range.is_empty() {
            self.fetch()?;
        }
        let Some(piece) = self.pieces.front_mut() else {
            return Ok(0);
        };
        let count = piece.len().min(buffer.len());
        piece.copy_to_slice(&mut buffer[..count]);
        if piece.is_empty() {
            self.pieces.pop_front();
        }
        Ok(count)
    }
}
