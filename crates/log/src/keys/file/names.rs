//! Header and footer of a key file.

use millstream_base::{Offset, Timestamp, crc32c};

use super::{Horizons, KeyCounts};
use crate::ids::GroupName;
use crate::keys::kind::KeyKind;

const MAGIC: [u8; 8] = *b"MSKEYS01";
const END_MAGIC: [u8; 8] = *b"MSKEYEND";

pub const HEADER_BYTES: usize = 64;
pub const FOOTER_BYTES: usize = 96;

const HEADER_CRC: usize = HEADER_BYTES - 4;
const FOOTER_CRC: usize = FOOTER_BYTES - 12;

pub fn encode_header(name: &GroupName, kind: &KeyKind) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let fields: [&[u8]; 8] = [
        &MAGIC,
        &name.lane.stream.0.to_le_bytes(),
        &name.id.0.to_le_bytes(),
        &name.first_offset.0.to_le_bytes(),
        &name.lane.streamlet.0.to_le_bytes(),
        &name.lane.lane.0.to_le_bytes(),
        &name.generation.0.to_le_bytes(),
        &kind.id().to_le_bytes(),
    ];
    put(&mut header, &fields);
    let crc = crc32c(&header[..HEADER_CRC]);
    header[HEADER_CRC..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// The end of a key file: where its parts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footer {
    pub counts: KeyCounts,
    /// The position of the filters, which is the end of the blocks.
    pub filters: u64,
    /// The position of the block list.
    pub blocks: u64,
    /// The offset behind the group.
    pub end: Offset,
}

impl Footer {
    pub fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut footer = [0; FOOTER_BYTES];
        let counts = &self.counts;
        let [tombstones, markers] = encode_horizons(counts.horizons);
        let horizons = counts.horizons.unwrap_or_default();
        let values = horizons.values.map_or(0, |at| at.0.max(1));
        let fields: [&[u8]; 11] = [
            &counts.keys.to_le_bytes(),
            &counts.tombstones.to_le_bytes(),
            &counts.without_key.to_le_bytes(),
            &counts.misplaced.to_le_bytes(),
            &self.filters.to_le_bytes(),
            &self.blocks.to_le_bytes(),
            &self.end.0.to_le_bytes(),
            &tombstones.to_le_bytes(),
            &markers.to_le_bytes(),
            &values.to_le_bytes(),
            &u32::from(horizons.has_endless).to_le_bytes(),
        ];
        put(&mut footer, &fields);
        let crc = crc32c(&footer[..FOOTER_CRC]);
        footer[FOOTER_CRC..][..4].copy_from_slice(&crc.to_le_bytes());
        footer[FOOTER_CRC + 4..].copy_from_slice(&END_MAGIC);
        footer
    }

    /// Reads a footer; `None` if it is not whole.
    pub fn decode(bytes: &[u8; FOOTER_BYTES]) -> Option<Footer> {
        let number = |index: usize| {
            let field = bytes[8 * index..].first_chunk().copied();
            field.map(u64::from_le_bytes)
        };
        let horizons = decode_horizons([number(7)? as i64, number(8)? as i64]);
        let values = number(9)? as i64;
        let footer = Footer {
            counts: KeyCounts {
                keys: number(0)?,
                tombstones: number(1)?,
                without_key: number(2)?,
                misplaced: number(3)?,
                horizons: horizons.map(|horizons| Horizons {
                    values: (values > 0).then_some(Timestamp(values)),
                    has_endless: bytes[FOOTER_CRC - 4] == 1,
                    ..horizons
                }),
                file_bytes: 0,
            },
            filters: number(4)?,
            blocks: number(5)?,
            end: Offset(number(6)?),
        };
        (footer.encode() == *bytes).then_some(footer)
    }
}

fn encode_horizons(horizons: Option<Horizons>) -> [i64; 2] {
    let encode = |horizon: Option<Timestamp>| horizon.map_or(-1, |at| at.0.max(1));
    horizons.map_or([0; 2], |horizons| {
        [horizons.tombstones, horizons.markers].map(encode)
    })
}

fn decode_horizons(encoded: [i64; 2]) -> Option<Horizons> {
    let [tombstones, markers] = encoded.map(|at| (at != -1).then_some(Timestamp(at)));
    (encoded != [0; 2]).then_some(Horizons {
        tombstones,
        markers,
        ..Horizons::default()
    })
}

/// Writes fields one after another.
fn put(to: &mut [u8], fields: &[&[u8]]) {
    let mut at = 0;
    for field in fields {
        to[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    }
}
