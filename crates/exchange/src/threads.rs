//! Ranks that are threads of one process: the posting thread delivers.

use std::sync::{Arc, OnceLock, Weak};

use crate::endpoint::Endpoint;
use crate::parcel::{Parcel, Transport};

/// The endpoints of all ranks. They hold it, so it does not hold them.
type Hall = OnceLock<Box<[Weak<Endpoint>]>>;

struct Threads {
    rank: u32,
    hall: Arc<Hall>,
}

impl Transport for Threads {
    fn post(&self, to: u32, parcel: Parcel) {
        let endpoint = self
            .hall
            .get()
            .and_then(|endpoints| endpoints[to as usize].upgrade());
        // An endpoint that is gone has left, or has announced its failure.
        if let Some(endpoint) = endpoint {
            endpoint.deliver(self.rank, parcel);
        }
    }

    fn finish(&self) {}
}

/// Returns `count` endpoints, in their order.
pub fn endpoints(count: u32) -> Vec<Arc<Endpoint>> {
    let hall = Arc::new(Hall::new());
    let endpoints: Vec<_> = (0..count)
        .map(|rank| {
            let threads = Threads {
                rank,
                hall: hall.clone(),
            };
            Arc::new(Endpoint::new(rank, count, Arc::new(threads)))
        })
        .collect();
    hall.get_or_init(|| endpoints.iter().map(Arc::downgrade).collect());
    endpoints
}
