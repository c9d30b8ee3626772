//! The client: producer, consumer, admin.
