//! Objects, by native requests.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
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

/// An upload of an object, in parts that follow each other on one connection. If it is dropped
/// before [`finish`](Self::finish), the object does not exist.
#[derive(Debug)]
pub struct ObjectUpload {
    connection: Arc<Connection>,
    name: String,
    next: u64,
    pending: VecDeque<Pending<PutObjectRequest>>,
}

impl ObjectUpload {
    /// Sends a part.
    ///
    /// # Errors
    /// When the server refuses the object, or the connection is lost.
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
        let answer = pending.wait().await?;
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
