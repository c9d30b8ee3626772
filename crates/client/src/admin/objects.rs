//! Objects, by native requests.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_wire::ApiKey;
use millstream_wire::native::{
    DeleteObjectRequest, GetObjectRequest, ListObjectsRequest, ObjectDescription, PutObjectRequest,
    PutObjectResponse,
};

use crate::client::{Client, text};
use crate::connection::{Connection, Pending};
use crate::error::ClientError;

/// The most objects in one answer.
const PAGE_MAX: u32 = 1000;

/// The most parts in flight at a time.
const PARTS_MAX: usize = 8;

/// The least time for the answer to a part: the last answer waits until the server has synced the whole object.
const ANSWER_TIME: Duration = Duration::from_secs(120);

/// An upload of an object, in parts that follow each other on one connection. If it is dropped
/// before [`finish`](Self::finish), the object does not exist.
#[derive(Debug)]
pub struct ObjectUpload {
    connection: Arc<Connection>,
    name: String,
    next: u64,
    pending: VecDeque<Pending<PutObjectRequest>>,
    /// The longest time for one answer.
    answer_time: Duration,
}

impl ObjectUpload {
    /// Sends a part.
    ///
    /// # Errors
    /// When the server refuses the object or does not answer, or the connection is lost.
    pub async fn part(&mut self, content: Bytes) -> Result<(), ClientError> {
        self.send(content, false).await?;
        if self.pending.len() >= PARTS_MAX {
            self.answer().await?;
        }
        Ok(())
    }

    /// Completes the object, which exists when this returns.
    ///
    /// # Errors
    /// As [`part`](Self::part).
    pub async fn finish(mut self) -> Result<ObjectDescription, ClientError> {
        self.send(Bytes::new(), true).await?;
        let mut object = None;
        while !self.pending.is_empty() {
            object = self.answer().await?.object;
        }
        object.ok_or_else(|| ClientError::Protocol {
            address: self.connection.address().to_string(),
            what: format!("it does not describe object {} after the upload", self.name),
        })
    }

    async fn send(&mut self, content: Bytes, is_last: bool) -> Result<(), ClientError> {
        let start = self.next;
        self.next += content.len() as u64;
        let request = PutObjectRequest {
            name: text(&self.name),
            start,
            content,
            is_last,
        };
        self.pending.push_back(self.connection.send(request).await?);
        Ok(())
    }

    async fn answer(&mut self) -> Result<PutObjectResponse, ClientError> {
        let Some(pending) = self.pending.pop_front() else {
            return Ok(PutObjectResponse::default());
        };
        let answer = pending.wait();
        let answer = self
            .connection
            .within(ApiKey::PutObject, self.answer_time, answer)
            .await?;
        let message = answer.error_message.as_deref();
        ClientError::check(answer.error_code, message, format!("object {}", self.name))
            .map_err(|error| error.needing("Write"))?;
        Ok(answer)
    }
}

impl Client {
    /// Begins the upload of an object, on a connection of its own.
    ///
    /// # Errors
    /// When no server can be reached.
    pub async fn put_object(&self, name: &str) -> Result<ObjectUpload, ClientError> {
        Ok(ObjectUpload {
            connection: self.separate().any().await?,
            name: name.to_owned(),
            next: 0,
            pending: VecDeque::new(),
            answer_time: self.config().request_timeout.max(ANSWER_TIME),
        })
    }

    /// Returns the description of an object, and its content from `start` on: at most `bytes_max`,
    /// fewer at the end of the object or at the server's limit for one answer.
    ///
    /// # Errors
    /// When there is none of this name, or it ends before `start`.
    pub async fn get_object(
        &self,
        name: &str,
        start: u64,
        bytes_max: u32,
    ) -> Result<(ObjectDescription, Vec<Bytes>), ClientError> {
        let request = GetObjectRequest {
            name: text(name),
            start,
            bytes_max,
        };
        let answer = self.ask(request).await?;
        let message = answer.error_message.as_deref();
        ClientError::check(answer.error_code, message, format!("object {name}"))
            .map_err(|error| error.needing("Read"))?;
        let object = answer.object.ok_or_else(|| ClientError::Protocol {
            address: self.config().servers.join(","),
            what: format!("it does not describe object {name}"),
        })?;
        Ok((object, answer.content.0))
    }

    /// Returns the objects whose names start with `prefix`, by name.
    ///
    /// # Errors
    /// When no server answers.
    pub async fn objects(&self, prefix: &str) -> Result<Vec<ObjectDescription>, ClientError> {
        let mut objects: Vec<ObjectDescription> = Vec::new();
        loop {
            let request = ListObjectsRequest {
                prefix: text(prefix),
                after: objects.last().map(|object| object.name.clone()),
                objects_max: PAGE_MAX,
            };
            let answer = self.ask(request).await?;
            let message = answer.error_message.as_deref();
            ClientError::check(answer.error_code, message, "listing objects")?;
            let has_more = answer.has_more && !answer.objects.is_empty();
            objects.extend(answer.objects);
            if !has_more {
                return Ok(objects);
            }
        }
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// When there is none of this name.
    pub async fn delete_object(&self, name: &str) -> Result<(), ClientError> {
        let answer = self.ask(DeleteObjectRequest { name: text(name) }).await?;
        let message = answer.error_message.as_deref();
        ClientError::check(answer.error_code, message, format!("object {name}"))
            .map_err(|error| error.needing("Delete"))
    }
}

#[cfg(test)]
mod tests {
    use millstream_wire::{api_versions, decode_request, encode_response};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, sink};
    use tokio::net::TcpListener;

    use super::*;
    use crate::config::ClientConfig;

    #[tokio::test]
    async fn an_upload_to_a_server_that_hangs_fails_and_may_be_retried() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // It greets the client, and then receives all requests without an answer.
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut frame = vec![0; stream.read_u32().await.unwrap() as usize];
            stream.read_exact(&mut frame).await.unwrap();
            let (header, _) = decode_request(frame.into()).unwrap();
            let mut answer = encode_response(&header, &api_versions().into()).unwrap();
            stream.write_all_buf(&mut answer).await.unwrap();
            copy(&mut stream, &mut sink()).await.unwrap();
        });
        let client = Client::new(ClientConfig::new(address.to_string()));
        let mut upload = client.put_object("shard").await.unwrap();
        upload.answer_time = Duration::from_millis(100);
        upload.part(Bytes::from_static(b"state")).await.unwrap();
        let connection = Arc::clone(&upload.connection);
        let error = upload.finish().await.unwrap_err();
        assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
        assert!(error.is_retriable());
        tokio::task::yield_now().await;
        assert!(!connection.is_open());
    }
}
