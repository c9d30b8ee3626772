//! The files that have a state element at a checkpoint, as the shard names them.

use millstream_flow::BoxError;
use serde::{Deserialize, Serialize};

use super::blocks::Extent;

/// Version of the format of a chain.
const VERSION: u8 = 1;

/// A file, as far as a checkpoint needs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    pub is_base: bool,
    pub run: u64,
    pub number: u64,
    pub content: Extent,
}

/// Files in the order in which a restore reads them. Only the first one can be a base.
pub type Chain = Vec<Link>;

pub fn bytes(chain: &[Link]) -> u64 {
    chain.iter().map(|link| link.content.bytes).sum()
}

/// Returns the bytes of the changes since the base.
pub fn changes(chain: &[Link]) -> u64 {
    let changes = chain.iter().filter(|link| !link.is_base);
    changes.map(|link| link.content.bytes).sum()
}

/// `VERSION`, then the links as postcard writes them.
pub fn encode(chain: &Chain) -> Result<Vec<u8>, BoxError> {
    Ok(postcard::to_io(chain, vec![VERSION])?)
}

pub fn decode(bytes: &[u8]) -> Result<Chain, BoxError> {
    let chain: Chain = match bytes {
        [VERSION, chain @ ..] => postcard::from_bytes(chain)?,
        _ => return Err("the checkpoint names its files in another format".into()),
    };
    match chain.iter().skip(1).any(|link| link.is_base) {
        true => Err("the checkpoint names a base behind other files".into()),
        false => Ok(chain),
    }
}
