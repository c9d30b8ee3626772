//! Uploads of objects, each by the parts that one connection sends.
//!
//! When a part's request is read, the part goes to the thread that writes the object, so parts stay
//! in their order; it is answered when it was copied, and until then its request holds its memory.
//! When the connection ends, or begins another object, an unfinished upload is aborted.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use millstream_base::ByteSize;
use millstream_log::{Log, LogError, ObjectInfo};
use millstream_wire::native::{ObjectDescription, PutObjectRequest, PutObjectResponse};
use millstream_wire::{ResponseError, StrBytes};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::refused::{Refused, answered};
use crate::reply::Reply;

/// The most uploads at once: each takes a thread.
const UPLOADS_MAX: usize = 64;

/// The most unanswered parts of one object.
const PARTS_MAX: usize = 64;

/// An upload is aborted when its next part does not come for this long.
const PART_WAIT_MAX: Duration = Duration::from_secs(60);

/// The room for uploads.
pub struct Uploads {
    room: Arc<Semaphore>,
}

impl Default for Uploads {
    fn default() -> Uploads {
        Uploads {
            room: Arc::new(Semaphore::new(UPLOADS_MAX)),
        }
    }
}

/// The outcome of an upload.
type Outcome = Result<ObjectInfo, LogError>;

/// The upload of a connection.
pub struct Upload {
    name: String,
    /// The position of the next part.
    next: u64,
    parts: mpsc::Sender<Part>,
    outcome: watch::Receiver<Option<Outcome>>,
}

/// A part of an object, on its way to the thread that writes it.
struct Part {
    content: Bytes,
    is_last: bool,
    /// Notified when all of it was copied.
    copied: oneshot::Sender<()>,
}

/// Accepts a part of an object into `upload`, the current one of the connection.
pub fn put(
    upload: &mut Option<Upload>,
    uploads: &Uploads,
    log: &Log,
    request: PutObjectRequest,
) -> Reply {
    match take(upload, uploads, log, request) {
        Ok(taken) => Reply::later(async move { answered(taken.answer().await) }),
        Err(refused) => {
            *upload = None;
            refused.answer::<PutObjectResponse>().into()
        }
    }
}

/// An accepted part.
struct Taken {
    is_last: bool,
    /// `None` when the upload has failed.
    copied: Option<oneshot::Receiver<()>>,
    outcome: watch::Receiver<Option<Outcome>>,
}

fn take(
    current: &mut Option<Upload>,
    uploads: &Uploads,
    log: &Log,
    request: PutObjectRequest,
) -> Result<Taken, Refused> {
    let refuse = |why: &str| Refused::new(ResponseError::InvalidRequest, why);
    if request.start == 0 {
        *current = Some(Upload::begin(uploads, log, &request.name)?);
    }
    let Some(upload) = current else {
        return Err(refuse(
            "the part does not begin an object, and none is begun",
        ));
    };
    if *request.name != *upload.name || request.start != upload.next {
        return Err(refuse("the part does not follow the one before"));
    }
    let end = upload.next.checked_add(request.content.len() as u64);
    upload.next = end.ok_or_else(|| refuse("the object is too large"))?;
    let (copied, when_copied) = oneshot::channel();
    let part = Part {
        content: request.content,
        is_last: request.is_last,
        copied,
    };
    let copied = match upload.parts.try_send(part) {
        Ok(()) => Some(when_copied),
        Err(mpsc::error::TrySendError::Closed(_)) => None,
        Err(mpsc::error::TrySendError::Full(_)) => {
            return Err(refuse("too many parts that are not answered"));
        }
    };
    let outcome = upload.outcome.clone();
    if request.is_last {
        *current = None;
    }
    Ok(Taken {
        is_last: request.is_last,
        copied,
        outcome,
    })
}

impl Upload {
    fn begin(uploads: &Uploads, log: &Log, name: &str) -> Result<Upload, Refused> {
        let room = Arc::clone(&uploads.room).try_acquire_owned();
        let room = room.map_err(|_| {
            Refused::new(
                ResponseError::ThrottlingQuotaExceeded,
                format!("{UPLOADS_MAX} objects are being put already; try again"),
            )
        })?;
        let (parts, received) = mpsc::channel(PARTS_MAX);
        let (outcome_sender, outcome) = watch::channel(None);
        let log = log.clone();
        let content = Content::new(received, PART_WAIT_MAX);
        let object = name.to_owned();
        spawn_blocking(move || write(&log, &object, content, room, &outcome_sender));
        Ok(Upload {
            name: name.to_owned(),
            next: 0,
            parts,
            outcome,
        })
    }
}

fn write(
    log: &Log,
    name: &str,
    mut content: Content,
    room: OwnedSemaphorePermit,
    outcome_sender: &watch::Sender<Option<Outcome>>,
) {
    let outcome = log.put_object(name, &mut content);
    drop(room);
    outcome_sender.send_replace(Some(outcome));
    // Dropped only now: a sender that finds the channel closed looks for the outcome.
    drop(content);
}

impl Taken {
    /// Answers the part when it was copied, and the last one when the object is stored.
    async fn answer(mut self) -> Result<PutObjectResponse, Refused> {
        if let Some(copied) = self.copied
            && copied.await.is_ok()
            && !self.is_last
        {
            return Ok(PutObjectResponse::default());
        }
        let outcome = self.outcome.wait_for(Option::is_some).await;
        let outcome = outcome.ok().and_then(|outcome| outcome.clone());
        match outcome {
            Some(Ok(object)) => Ok(PutObjectResponse {
                object: Some(describe_object(object)),
                ..PutObjectResponse::default()
            }),
            Some(Err(error)) => Err(refused_object(error)),
            // The writing thread panicked, or the runtime is going down.
            None => Err(Refused::new(
                ResponseError::UnknownServerError,
                "the object was not stored",
            )),
        }
    }
}

pub fn describe_object(object: ObjectInfo) -> ObjectDescription {
    ObjectDescription {
        name: StrBytes::from_string(object.name),
        bytes: ByteSize(object.bytes),
        crc32c: object.crc32c,
        created: object.created,
        stream: object.stream,
    }
}

fn refused_object(error: LogError) -> Refused {
    match &error {
        LogError::Exists { .. } => {
            Refused::new(ResponseError::DuplicateResource, error.to_string())
        }
        LogError::Io { error, .. } if error.kind() == io::ErrorKind::TimedOut => {
            Refused::new(ResponseError::RequestTimedOut, error.to_string())
        }
        _ => error.into(),
    }
}

/// The content of an object, as its parts arrive; read on a thread that may wait for them.
struct Content {
    parts: mpsc::Receiver<Part>,
    wait_max: Duration,
    /// The part that is being copied.
    part: Option<Part>,
    is_at_end: bool,
}

impl Content {
    fn new(parts: mpsc::Receiver<Part>, wait_max: Duration) -> Content {
        Content {
            parts,
            wait_max,
            part: None,
            is_at_end: false,
        }
    }

    fn next_part(&mut self) -> io::Result<Part> {
        let next =
            Handle::current().block_on(async { timeout(self.wait_max, self.parts.recv()).await });
        match next {
            Ok(Some(part)) => Ok(part),
            Ok(None) => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the object was given up before its last part",
            )),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no part came for {} s", self.wait_max.as_secs()),
            )),
        }
    }
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !buffer.is_empty() && !self.is_at_end {
            let mut part = match self.part.take() {
                Some(part) => part,
                None => self.next_part()?,
            };
            let count = part.content.len().min(buffer.len());
            part.content.copy_to_slice(&mut buffer[..count]);
            if part.content.has_remaining() {
                self.part = Some(part);
            } else {
                self.is_at_end = part.is_last;
                // The sending connection may be gone.
                let _ = part.copied.send(());
            }
            if count > 0 {
                return Ok(count);
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns content that waits for up to `wait_max` for a part, and the channel to send it
    /// parts.
    fn content(wait_max: Duration) -> (mpsc::Sender<Part>, Content) {
        let (parts, received) = mpsc::channel(PARTS_MAX);
        (parts, Content::new(received, wait_max))
    }

    fn send(
        parts: &mpsc::Sender<Part>,
        bytes: &'static [u8],
        is_last: bool,
    ) -> oneshot::Receiver<()> {
        let (copied, when_copied) = oneshot::channel();
        let part = Part {
            content: Bytes::from_static(bytes),
            is_last,
            copied,
        };
        assert!(parts.try_send(part).is_ok());
        when_copied
    }

    async fn on_a_thread<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
        spawn_blocking(work).await.expect("it does not panic")
    }

    #[tokio::test]
    async fn parts_are_read_in_order_and_each_sender_learns_when_its_part_is_copied() {
        let (parts, mut content) = content(PART_WAIT_MAX);
        let mut first = send(&parts, b"one", false);
        let empty = send(&parts, b"", false);
        let last = send(&parts, b"two", true);
        let (read, mut content) = on_a_thread(move || {
            let mut some = [0; 2];
            content.read_exact(&mut some).expect("there is some");
            (some, content)
        })
        .await;
        assert_eq!(read, *b"on");
        assert!(first.try_recv().is_err(), "one byte is not copied");
        let rest = on_a_thread(move || {
            let mut rest = Vec::new();
            content.read_to_end(&mut rest).map(|_| rest)
        });
        assert_eq!(rest.await.expect("it has an end"), b"etwo");
        for copied in [first, empty, last] {
            copied.await.expect("it was copied");
        }
    }

    #[tokio::test]
    async fn content_without_a_last_part_is_an_error() {
        let (parts, mut content) = content(PART_WAIT_MAX);
        let _copied = send(&parts, b"one", false);
        drop(parts);
        let read = on_a_thread(move || content.read_to_end(&mut Vec::new()));
        let error = read.await.expect_err("it has no end");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn waiting_for_a_missing_part_times_out() {
        let (parts, mut content) = content(Duration::from_millis(10));
        let _copied = send(&parts, b"one", false);
        let read = on_a_thread(move || content.read_to_end(&mut Vec::new()));
        let error = read.await.expect_err("nothing more comes");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let refused = refused_object(LogError::Io {
            action: "read",
            path: "content".into(),
            error: Arc::new(error),
        });
        assert_eq!(refused.code(), ResponseError::RequestTimedOut.code());
        drop(parts);
    }
}
