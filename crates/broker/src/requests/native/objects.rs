//! Objects: read, listed, deleted.

use std::sync::Arc;

use bytes::Bytes;
use millstream_base::Offset;
use millstream_log::{AtLeast, Log, LogError, OBJECT_RECORD_BYTES, ObjectInfo};
use millstream_record::{Chunk, Chunks, Compression, Decompressor};
use millstream_wire::ResponseError;
use millstream_wire::native::{
    DeleteObjectRequest, DeleteObjectResponse, GetObjectRequest, GetObjectResponse,
    ListObjectsRequest, ListObjectsResponse, Payload, PutObjectRequest,
};

use super::blocking;
use crate::access::Access;
use crate::broker::Broker;
use crate::client::Client;
use crate::native::refused::Refused;
use crate::native::upload;
use crate::native::upload::describe_object;
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext, PAGE_MAX, TOPIC_BYTES};
use crate::requests::handle::{Handle, Refusal, errors, refuse_with_message};
use crate::requests::rights::{Check, Checked, need_topic};
use crate::security::{Operation, Traffic, answer_bytes_max};

/// The most bytes of an object in one answer: they may come from disk, for which there is little
/// memory.
const CONTENT_BYTES_MAX: u64 = 4 << 20;

/// The most objects in one answer.
const OBJECTS_MAX: usize = 1000;

// Objects need the same rights as topics of their names.

/// Writes a part of an object.
impl Handle for PutObjectRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];
    const TRAFFIC: Option<Traffic> = Some(Traffic::Produced);

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_topic(client, Operation::Write, &self.name)
    }

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(1)
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        let uploads = &broker.native.uploads;
        upload::put(&mut client.upload, uploads, broker.log(), self)
    }
}

/// Reads a range of an object.
impl Handle for GetObjectRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];
    const TRAFFIC: Option<Traffic> = Some(Traffic::Consumed);

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_topic(client, Operation::Read, &self.name)
    }

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        // The content of an object is sent from where it lies.
        context.told(1)
    }

    fn handle(mut self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        if let Some(rate) = client.limit(Traffic::Consumed) {
            let bytes_max = u32::try_from(answer_bytes_max(rate)).unwrap_or(u32::MAX);
            self.bytes_max = self.bytes_max.min(bytes_max);
        }
        blocking(broker, self, get_object)
    }
}

/// Lists the objects.
impl Handle for ListObjectsRequest {
    const CHECKS: &'static [Check] = &[Check::Handler];

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        let count = PAGE_MAX.min(self.objects_max as usize);
        context.list(count, TOPIC_BYTES)
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        blocking(broker, (self, client.access().clone()), list_objects)
    }
}

/// Deletes an object.
impl Handle for DeleteObjectRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_topic(client, Operation::Delete, &self.name)
    }

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(1)
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        blocking(broker, self, delete_object)
    }
}

/// Reads a range of an object.
fn get_object(broker: &Broker, request: GetObjectRequest) -> Result<GetObjectResponse, Refused> {
    let object = broker.log().object(&request.name)?;
    if request.start > object.bytes {
        return Err(Refused::new(
            ResponseError::OffsetOutOfRange,
            format!("the object has {} bytes", object.bytes),
        ));
    }
    let count = u64::from(request.bytes_max).min(CONTENT_BYTES_MAX);
    let end = request.start.saturating_add(count).min(object.bytes);
    let content =
        content(broker.log(), &object, request.start, end).map_err(|error| match error {
            // The object was deleted meanwhile.
            LogError::UnknownStream { .. } => unknown_object(object.name.clone()),
            LogError::ReadBudget => {
                Refused::new(ResponseError::ThrottlingQuotaExceeded, error.to_string())
            }
            error => error.into(),
        })?;
    Ok(GetObjectResponse {
        content,
        object: Some(describe_object(object)),
        ..GetObjectResponse::default()
    })
}

fn unknown_object(name: String) -> Refused {
    LogError::UnknownObject { name }.into()
}

/// Returns the bytes of an object from `start` up to `end`, or up to where no more can be read now,
/// in place.
fn content(log: &Log, object: &ObjectInfo, start: u64, end: u64) -> Result<Payload, LogError> {
    let mut content = Payload::default();
    if start == end {
        return Ok(content);
    }
    let lane = log.stream_by_id(object.stream)?.partition(0)?;
    let record_bytes = OBJECT_RECORD_BYTES as u64;
    let from = Offset(start / record_bytes);
    let to = Offset(end.div_ceil(record_bytes));
    // Chunks end before `to`, so there are never many more than requested.
    let fetched = lane.fetch(from, to, usize::MAX, AtLeast::OneChunk)?;
    let mut at = start;
    for piece in fetched.into_bytes() {
        for chunk in Chunks::trusted(&piece) {
            let chunk = chunk?;
            let value = value_of(object, &piece, &chunk)?;
            let first = chunk.header().base_offset.0.saturating_mul(record_bytes);
            let skipped = usize::try_from(at.saturating_sub(first)).unwrap_or(usize::MAX);
            let wanted = usize::try_from(end.saturating_sub(first)).unwrap_or(usize::MAX);
            let wanted = wanted.min(value.len());
            if skipped >= wanted {
                return Err(damaged(object, at));
            }
            at += (wanted - skipped) as u64;
            content.0.push(value.slice(skipped..wanted));
        }
    }
    match content.0.is_empty() {
        true => Err(damaged(object, at)),
        false => Ok(content),
    }
}

/// Returns the value of the only record of a chunk, in place.
fn value_of(object: &ObjectInfo, piece: &Bytes, chunk: &Chunk<'_>) -> Result<Bytes, LogError> {
    let header = chunk.header();
    let missing = || damaged(object, header.base_offset.0 * OBJECT_RECORD_BYTES as u64);
    if header.attributes.compression() != Compression::None {
        return Err(missing());
    }
    let mut decompressor = Decompressor::default();
    let record = chunk.records(&mut decompressor)?.next().transpose()?;
    let value = record.and_then(|record| record.value);
    value
        .map(|value| piece.slice_ref(value))
        .ok_or_else(missing)
}

fn damaged(object: &ObjectInfo, position: u64) -> LogError {
    LogError::Corrupted {
        path: object.name.clone().into(),
        position,
        what: "the object's content ends here".to_owned(),
    }
}

/// Lists objects, a page at a time. Only objects that the client may know of count for the page, so no page is empty before the
/// last one.
fn list_objects(
    broker: &Broker,
    (request, access): (ListObjectsRequest, Access),
) -> Result<ListObjectsResponse, Refused> {
    let is_listed = |object: &ObjectInfo| {
        let after = request.after.as_ref();
        after.is_none_or(|after| *object.name > **after) && access.sees_topic(&object.name)
    };
    let objects = broker.log().objects(&request.prefix)?;
    let mut objects = objects.into_iter().filter(is_listed).map(describe_object);
    let objects_max = (request.objects_max as usize).min(OBJECTS_MAX);
    Ok(ListObjectsResponse {
        objects: objects.by_ref().take(objects_max).collect(),
        has_more: objects.next().is_some(),
        ..ListObjectsResponse::default()
    })
}

/// Deletes an object.
fn delete_object(
    broker: &Broker,
    request: DeleteObjectRequest,
) -> Result<DeleteObjectResponse, Refused> {
    broker.log().delete_object(&request.name)?;
    Ok(DeleteObjectResponse::default())
}
