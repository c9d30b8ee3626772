//! The servers of a cluster, and their disks.

use std::collections::BTreeMap;

use millstream_base::ByteSize;
use millstream_wire::messages::DescribeLogDirsRequest;

use crate::client::Client;
use crate::error::ClientError;

/// A data directory of a server, and its disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The number of the server.
    pub server: i32,
    /// The path of the data directory on the server.
    pub path: String,
    /// The size of the disk; `None` if the server does not report it.
    pub total: Option<ByteSize>,
    /// The bytes that the server can still write; `None` if the server does not report them.
    pub free: Option<ByteSize>,
}

impl Client {
    /// Returns the address of each server of the cluster, by its number.
    ///
    /// # Errors
    /// When no server answers.
    pub async fn servers(&self) -> Result<BTreeMap<i32, String>, ClientError> {
        self.refresh(&[]).await?;
        Ok(self.known_servers())
    }

    /// Returns the data directories of all servers.
    ///
    /// # Errors
    /// When a server does not answer, or the user may not describe the cluster.
    pub async fn disks(&self) -> Result<Vec<Disk>, ClientError> {
        let mut disks = Vec::new();
        for server in self.servers().await?.into_keys() {
            // The disks matter here, not the sizes of partitions.
            let request = DescribeLogDirsRequest::default().with_topics(Some(Vec::new()));
            let answer = self.server(server).await?.ask(request).await?;
            let what = "describing the data directory";
            ClientError::check(answer.error_code, None, what)?;
            for found in answer.results {
                ClientError::check(found.error_code, None, what)?;
                let size = |bytes| u64::try_from(bytes).ok().map(ByteSize);
                disks.push(Disk {
                    server,
                    path: found.log_dir.to_string(),
                    total: size(found.total_bytes),
                    free: size(found.usable_bytes),
                });
            }
        }
        Ok(disks)
    }
}
