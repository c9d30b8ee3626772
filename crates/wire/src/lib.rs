//! Frames and messages of the Kafka protocol and of the native requests; no I/O.
