//! Durability levels, as the benchmarks of the broker name them.

/// When a producer is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// When the records are in the broker's memory.
    Async,
    /// When the broker has handed them to the system, which is Kafka's default.
    Written,
    /// When the records are on disk.
    Fdatasync,
}

impl Durability {
    pub fn name(self) -> &'static str {
        match self {
            Durability::Async => "async",
            Durability::Written => "written",
            Durability::Fdatasync => "fdatasync",
        }
    }
}
