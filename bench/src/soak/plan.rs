//! How many clients of each kind make up the connections, and how much memory the server has.

use anyhow::{Result, ensure};
use rustix::process::{Resource, getrlimit, setrlimit};

/// The connections of a client: a consumer fetches on a connection of its own, and a member's heartbeats have another.
const CONNECTIONS_OF_READER: usize = 2;
const CONNECTIONS_OF_MEMBER: usize = 3;
const CONNECTIONS_OF_PROBE: usize = 3;

/// Connections beyond those asked for, since some clients are always about to come back, and others come back only when
/// they need to.
const AWAY_PERCENT: usize = 18;

/// This program's own files, beside connections.
const FILES_MAX: usize = 200;

/// The server's memory for segments: little, so that it is full soon.
pub const POOL_MIB: f64 = 128.0;

/// Clients by kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Open at once.
    pub connections: usize,
    pub partitions: usize,
    pub writers: usize,
    /// Producers whose connections are cut.
    pub cutters: usize,
    pub readers_per_partition: usize,
    pub groups: usize,
    pub members_per_group: usize,
    pub silent: usize,
    /// They ask and never read.
    pub greedy: usize,
    /// They send garbage.
    pub garbled: usize,
}

impl Plan {
    pub fn of(connections: usize) -> Plan {
        let readers_per_partition = 2;
        let partitions = connections / 40;
        let groups = 3.min(connections / 20);
        let members_per_group = (connections * 18 / 100 / CONNECTIONS_OF_MEMBER / groups).max(1);
        let mut plan = Plan {
            connections,
            partitions,
            writers: connections * 40 / 100,
            cutters: connections * 10 / 100,
            readers_per_partition,
            groups,
            members_per_group,
            silent: 0,
            greedy: connections * 5 / 100,
            garbled: connections * 5 / 100,
        };
        let needed = connections + connections * AWAY_PERCENT / 100;
        plan.silent = needed.saturating_sub(plan.clients_connections());
        plan
    }

    /// Connections of all clients together. Some of them come and go.
    fn clients_connections(&self) -> usize {
        let readers = self.partitions * self.readers_per_partition;
        CONNECTIONS_OF_PROBE
            + readers * CONNECTIONS_OF_READER
            + self.groups * self.members_per_group * CONNECTIONS_OF_MEMBER
            + [
                self.writers,
                self.cutters,
                self.silent,
                self.greedy,
                self.garbled,
            ]
            .iter()
            .sum::<usize>()
    }

    /// Lets this process open as many files as it needs.
    ///
    /// # Errors
    /// When it may not.
    pub fn raise_open_files(&self) -> Result<()> {
        let needed = (self.clients_connections() + FILES_MAX) as u64;
        let mut limit = getrlimit(Resource::Nofile);
        let may_have = limit.maximum.unwrap_or(u64::MAX);
        ensure!(
            may_have >= needed,
            "{} connections take {needed} open files, and {may_have} are allowed: raise the limit \
             (ulimit -Hn), or ask for fewer with --connections",
            self.connections
        );
        limit.current = limit.maximum;
        Ok(setrlimit(Resource::Nofile, limit)?)
    }
}

#[cfg(test)]
mod tests {
    use super::Plan;

    #[test]
    fn a_plan_has_the_requested_connections_plus_the_short_lived_ones() {
        for connections in [40, 60, 100, 999, 1000, 10_000] {
            let plan = Plan::of(connections);
            assert_eq!(
                plan.clients_connections(),
                connections * 118 / 100,
                "{plan:?}"
            );
            assert!(
                plan.greedy > 0 && plan.garbled > 0 && plan.silent > 0,
                "{plan:?}"
            );
        }
    }
}
