//! The contract of a stream to write to, which a log and a server fulfil.

use std::pin::Pin;
use std::task::Waker;

use millstream_record::TransactionEnd;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::EncodedRecord;
use crate::flow_transactions::FlowTransactionId;

/// Ends when a call that has failed may succeed.
pub type Room = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A stream to write to. It makes producers, each of which writes the records of one transaction after the other, or
/// records outside of transactions. Only its start may wait.
pub trait Destination: Send + 'static {
    /// Writes the records of a slot.
    type Producer: Send;
    /// Names a transaction in a checkpoint.
    type Name: Clone + Send + Serialize + DeserializeOwned;
    /// The error of a stream that cannot be written to.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Returns a producer outside of transactions.
    fn plain(&mut self) -> Result<Self::Producer, Self::Error>;

    /// Returns the first of these transactions that was aborted by force, as far as the destination still knows.
    fn aborted(&self, names: &[Self::Name]) -> Result<Option<String>, Self::Error>;

    /// Decides the transactions that earlier runs of this rank, and of ranks that no longer exist, have left open:
    /// commits the named ones, and aborts all others. Returns the producers that it has made for the first slots.
    fn recover(
        &mut self,
        id: &FlowTransactionId,
        ranks: u32,
        names: Vec<Self::Name>,
    ) -> Result<Vec<Self::Producer>, Self::Error>;

    /// Returns the producer of a transactional id; `None` while it is being made.
    fn producer(
        &mut self,
        id: String,
        waker: &Waker,
    ) -> Result<Option<Self::Producer>, Self::Error>;

    /// Begins a transaction.
    fn begin(&self, producer: &Self::Producer) -> Result<(), Self::Error>;

    /// Returns whether the producer may take records now.
    fn has_room(
        &mut self,
        producer: &mut Self::Producer,
        waker: &Waker,
    ) -> Result<bool, Self::Error>;

    /// Takes a record. Returns whether there was room for it.
    fn offer(
        &mut self,
        producer: &mut Self::Producer,
        record: &EncodedRecord,
        waker: &Waker,
    ) -> Result<bool, Self::Error>;

    /// Sends the records that are held back. Returns whether all are stored.
    fn flush(&mut self, producer: &mut Self::Producer, waker: &Waker) -> Result<bool, Self::Error>;

    /// Names the open transaction, all of whose records are stored: one name for each part that is decided by itself,
    /// and none if it has no records.
    fn names(&self, producer: &Self::Producer) -> Result<Vec<Self::Name>, Self::Error>;

    /// Ends the transaction; an abort drops records that are not stored. Returns whether it has ended. After an error
    /// the next call tries again.
    fn end(
        &mut self,
        producer: &mut Self::Producer,
        end: TransactionEnd,
        waker: &Waker,
    ) -> Result<bool, Self::Error>;

    /// Returns a wait for the end of a full disk, if that is the error of a call that did nothing.
    fn room(&self, error: &Self::Error) -> Option<Room>;
}
