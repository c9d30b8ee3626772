//! Finds the local socket of a server on this machine, and checks that it belongs to the server.

use std::path::PathBuf;

use millstream_wire::StrBytes;
use millstream_wire::messages::DescribeClusterRequest;
use millstream_wire::native::LocalSocketRequest;

use crate::config::ClientConfig;
use crate::connection::Connection;
use crate::error::ClientError;

/// Selects the brokers in DescribeCluster, not the controllers.
const BROKERS: i8 = 1;

/// Connects over the server's socket for clients on its machine.
///
/// # Errors
/// When the server has no socket, is on another machine, or runs as another user.
pub(crate) async fn connect(
    server: &Connection,
    config: &ClientConfig,
) -> Result<Connection, ClientError> {
    let answer = server.ask(LocalSocketRequest {}).await?;
    let message = answer.error_message.as_deref();
    ClientError::check(answer.error_code, message, "asking for the local socket")?;
    let not_shared = |why| ClientError::NotShared {
        address: server.address().to_string(),
        why,
    };
    let path = answer.path.map(|path| PathBuf::from(path.as_str()));
    let Some(path) = path.filter(|path| path.is_absolute()) else {
        let why = "it has no socket for clients on its machine";
        return Err(not_shared(why.to_owned()));
    };
    let local = Connection::open_local(&path, config).await?;
    // Another machine may use the same folder name: the socket there would then belong to another
    // server.
    match cluster(&local).await? == cluster(server).await? {
        true => Ok(local),
        false => Err(not_shared(format!(
            "{} is another server's: this one is on another machine",
            path.display()
        ))),
    }
}

/// Returns the cluster id, which is unique to the server's data.
async fn cluster(connection: &Connection) -> Result<StrBytes, ClientError> {
    let request = DescribeClusterRequest::default().with_endpoint_type(BROKERS);
    let answer = connection.ask(request).await?;
    let message = answer.error_message.as_deref();
    let what = format!("asking {} for its cluster id", connection.address());
    ClientError::check(answer.error_code, message, what)?;
    Ok(answer.cluster_id)
}
