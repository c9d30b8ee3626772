//! Random messages for tests. The generated decoders decode them from a stream of plausible numbers.

use bytes::{Buf, BufMut, Bytes, BytesMut, TryGetError};
use kafka_protocol::messages::TopicName;
use kafka_protocol::protocol::buf::{ByteBuf, NotEnoughBytesError};
use kafka_protocol::protocol::{Decodable, StrBytes};
use uuid::Uuid;

use crate::api::ApiKey;
use crate::message::{request_layout, response_layout};
use crate::request::{Request, Response, forged};

/// After this many numbers all others are 0, so that a message ends.
const NUMBERS_MAX: usize = 400;

/// The number of attempts to forge a valid message; many have a null that is not allowed.
const ATTEMPTS_MAX: u64 = 2000;

/// Returns a random request of a supported version; `None` if no attempt succeeds.
pub fn any_request(api: ApiKey, version: i16, seed: u64) -> Option<Request> {
    if (api, version) == (ApiKey::InitProducerId, 6) {
        let Some(Request::InitProducerId(mut init)) = any_request(api, 5, seed) else {
            return None;
        };
        init.unknown_tagged_fields.clear();
        init.enable_2_pc = seed & 1 == 1;
        init.keep_prepared_txn = seed & 2 == 2;
        return Some(init.into());
    }
    if let (ApiKey::OffsetCommit | ApiKey::OffsetFetch, 10) = (api, version) {
        return any_request(api, 9, seed).map(|request| with_topic_ids(request, seed));
    }
    (0..ATTEMPTS_MAX).find_map(|attempt| {
        forged::request(
            api,
            request_layout(api, version),
            &mut Forge::new(seed.wrapping_add(attempt << 32)),
        )
    })
}

/// Replaces the names of topics by ids, and removes fields that the encoders of topic ids do not write.
fn with_topic_ids(mut request: Request, seed: u64) -> Request {
    let mut forge = Forge::new(seed);
    match &mut request {
        Request::OffsetCommit(commit) => {
            commit.unknown_tagged_fields.clear();
            for topic in &mut commit.topics {
                (topic.name, topic.topic_id) = (TopicName::default(), forge.uuid());
                topic.unknown_tagged_fields.clear();
                for partition in &mut topic.partitions {
                    partition.unknown_tagged_fields.clear();
                }
            }
        }
        Request::OffsetFetch(fetch) => {
            fetch.unknown_tagged_fields.clear();
            for group in &mut fetch.groups {
                group.unknown_tagged_fields.clear();
                for topic in group.topics.iter_mut().flatten() {
                    (topic.name, topic.topic_id) = (TopicName::default(), forge.uuid());
                    topic.unknown_tagged_fields.clear();
                }
            }
        }
        _ => {}
    }
    request
}

/// Returns a random response to a request of a supported version; `None` if no attempt succeeds.
pub fn any_response(api: ApiKey, version: i16, seed: u64) -> Option<Response> {
    (0..ATTEMPTS_MAX).find_map(|attempt| {
        forged::response(
            api,
            response_layout(api, version),
            &mut Forge::new(seed.wrapping_add(attempt << 32)),
        )
    })
}

/// Returns random numbers that can be lengths, tags, booleans or values, and records them as the bytes of
/// the message.
#[derive(Debug)]
pub(crate) struct Forge {
    random: u64,
    numbers_left: usize,
    bytes: BytesMut,
    /// The version of a native message.
    version: i16,
}

/// A message with random values.
pub(crate) trait Forged: Sized {
    fn forge(forge: &mut Forge, version: i16) -> Option<Self>;
}

impl<T: Decodable> Forged for T {
    fn forge(forge: &mut Forge, version: i16) -> Option<T> {
        T::decode(forge, version).ok()
    }
}

impl Forge {
    pub(crate) fn new(seed: u64) -> Forge {
        Forge {
            random: seed,
            numbers_left: NUMBERS_MAX,
            bytes: BytesMut::new(),
            version: 0,
        }
    }

    pub(crate) fn version(&self) -> i16 {
        self.version
    }

    pub(crate) fn set_version(&mut self, version: i16) {
        self.version = version;
    }

    /// Returns a random number below `end` (splitmix64).
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn small(&mut self) -> u8 {
        match self.numbers_left.checked_sub(1) {
            Some(left) => {
                self.numbers_left = left;
                self.below(4) as u8
            }
            None => 0,
        }
    }
}

/// Random values of the primitive types of native messages.
impl Forge {
    pub(crate) fn boolean(&mut self) -> bool {
        self.below(2) == 1
    }

    pub(crate) fn int16(&mut self) -> i16 {
        self.uint64() as i16
    }

    pub(crate) fn int8(&mut self) -> i8 {
        self.uint64() as i8
    }

    pub(crate) fn uint16(&mut self) -> u16 {
        self.uint64() as u16
    }

    pub(crate) fn int32(&mut self) -> i32 {
        self.uint64() as i32
    }

    pub(crate) fn uint32(&mut self) -> u32 {
        self.uint64() as u32
    }

    pub(crate) fn int64(&mut self) -> i64 {
        self.uint64() as i64
    }

    pub(crate) fn uint64(&mut self) -> u64 {
        self.below(u64::MAX)
    }

    pub(crate) fn uuid(&mut self) -> Uuid {
        Uuid::from_u64_pair(self.uint64(), self.uint64())
    }

    pub(crate) fn string(&mut self) -> StrBytes {
        let letter = char::from(b'a' + self.below(26) as u8);
        // Some lengths take two bytes.
        let length = self.below(20) * self.below(20);
        StrBytes::from_string(letter.to_string().repeat(length as usize))
    }

    pub(crate) fn nullable_string(&mut self) -> Option<StrBytes> {
        self.boolean().then(|| self.string())
    }

    pub(crate) fn bytes(&mut self) -> Bytes {
        // Some are separate pieces.
        let length = self.below(60) * self.below(60);
        vec![self.below(256) as u8; length as usize].into()
    }

    pub(crate) fn nullable_bytes(&mut self) -> Option<Bytes> {
        self.boolean().then(|| self.bytes())
    }
}

impl Buf for Forge {
    fn remaining(&self) -> usize {
        usize::MAX
    }

    fn chunk(&self) -> &[u8] {
        &[]
    }

    fn advance(&mut self, _: usize) {
        unreachable!("the decoders use the methods below");
    }

    fn try_get_u8(&mut self) -> Result<u8, TryGetError> {
        let value = self.small();
        self.bytes.put_u8(value);
        Ok(value)
    }

    fn try_get_i8(&mut self) -> Result<i8, TryGetError> {
        let value = self.small() as i8 - 1;
        self.bytes.put_i8(value);
        Ok(value)
    }

    fn try_get_i16(&mut self) -> Result<i16, TryGetError> {
        let value = self.small().into();
        self.bytes.put_i16(value);
        Ok(value)
    }

    fn try_get_u16(&mut self) -> Result<u16, TryGetError> {
        let value = self.small().into();
        self.bytes.put_u16(value);
        Ok(value)
    }

    fn try_get_i32(&mut self) -> Result<i32, TryGetError> {
        let value = self.small().into();
        self.bytes.put_i32(value);
        Ok(value)
    }

    fn try_get_u32(&mut self) -> Result<u32, TryGetError> {
        let value = self.small().into();
        self.bytes.put_u32(value);
        Ok(value)
    }

    fn try_get_i64(&mut self) -> Result<i64, TryGetError> {
        let value = i64::from(self.small()) << 40;
        self.bytes.put_i64(value);
        Ok(value)
    }

    fn try_get_f64(&mut self) -> Result<f64, TryGetError> {
        let value = self.small().into();
        self.bytes.put_f64(value);
        Ok(value)
    }

    fn try_copy_to_slice(&mut self, target: &mut [u8]) -> Result<(), TryGetError> {
        target.fill(self.small());
        self.bytes.put_slice(target);
        Ok(())
    }
}

impl ByteBuf for Forge {
    fn peek_bytes(&mut self, _: std::ops::Range<usize>) -> Bytes {
        unreachable!("the decoders do not peek")
    }

    fn get_bytes(&mut self, size: usize) -> Bytes {
        let letter = b'a' + self.below(26) as u8;
        let bytes = vec![letter; size];
        self.bytes.put_slice(&bytes);
        bytes.into()
    }

    fn try_get_bytes(&mut self, size: usize) -> Result<Bytes, NotEnoughBytesError> {
        Ok(self.get_bytes(size))
    }
}
