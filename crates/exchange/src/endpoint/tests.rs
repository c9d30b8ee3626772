use std::task::Wake;

use super::*;

/// Records the parcels that are posted, to rank 1 and others.
#[derive(Default)]
struct Recorder {
    posted: Mutex<Vec<(u32, Parcel)>>,
}

impl Transport for Recorder {
    fn post(&self, to: u32, parcel: Parcel) {
        self.posted.lock().push((to, parcel));
    }

    fn finish(&self) {}
}

/// Rank 0 of 3.
fn endpoint() -> (Arc<Recorder>, Arc<Endpoint>) {
    let recorder = Arc::new(Recorder::default());
    (recorder.clone(), Arc::new(Endpoint::new(0, 3, recorder)))
}

const CHANNEL: ChannelId = ChannelId {
    source: 1,
    target: 2,
};

/// Checks that a violation by rank 1 counts as its failure, and that all ranks receive it.
#[track_caller]
fn check_blamed(parcels: Vec<Parcel>, expected: &str) {
    let (recorder, endpoint) = endpoint();
    endpoint.outlet(1, CHANNEL, 1000);
    for parcel in parcels {
        endpoint.deliver(1, parcel);
    }
    let failure = endpoint.fate.failure().expect("it was no lie").clone();
    assert_eq!(failure.rank, 1);
    assert_eq!(*failure.message, format!("{expected} (found by rank 0)"));
    let reports = [1, 2].map(|to| (to, Parcel::Failure(failure.clone())));
    assert_eq!(*recorder.posted.lock(), reports);
}

#[test]
fn a_protocol_violation_fails_the_sending_rank() {
    let unknown = ChannelId {
        source: 2,
        target: 1,
    };
    let what = "it used the channel from operator 2 to operator 1, which does not exist";
    check_blamed(
        vec![Parcel::Message {
            channel: unknown,
            bytes: "x".into(),
        }],
        what,
    );
    check_blamed(
        vec![Parcel::Credit {
            channel: unknown,
            bytes: 1,
        }],
        what,
    );
    let what = "it gave back 1 bytes of credit on the channel from operator 1 to operator 2, where 0 were taken";
    check_blamed(
        vec![Parcel::Credit {
            channel: CHANNEL,
            bytes: 1,
        }],
        what,
    );
    let hello = Parcel::Hello(Hello::new(3, 1, Fingerprint::default()));
    check_blamed(vec![hello; 3], "it began too many agreements");
    let what = "it reported a failure of rank 3, which does not exist";
    check_blamed(vec![Parcel::Failure(Failure::new(3, "a lie"))], what);
}

/// Leaves as soon as it learns of a failure.
struct Hasty(Arc<Endpoint>);

impl Wake for Hasty {
    fn wake(self: Arc<Self>) {
        self.0.begin_to_leave();
    }
}

#[test]
fn a_rank_announces_a_failure_before_it_leaves() {
    let (recorder, endpoint) = endpoint();
    endpoint.watch(Arc::new(Hasty(endpoint.clone())).into());
    endpoint.fail(0, "it is late");
    let posted = recorder.posted.lock();
    let is_failure = |posted: &(u32, Parcel)| matches!(posted.1, Parcel::Failure(_));
    assert_eq!(
        posted.iter().map(is_failure).collect::<Vec<_>>(),
        [true, true, false, false]
    );
}
