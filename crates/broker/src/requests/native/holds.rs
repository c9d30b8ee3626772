//! Holds of keyed streams: made, ended and listed.

use std::sync::Arc;
use std::time::Duration;

use millstream_log::{HOLDS_MAX, Hold, ListedHold, LogError, NewHold};
use millstream_wire::native::{
    self, ChangeHoldRequest, ChangeHoldResponse, ListHoldsRequest, ListHoldsResponse,
};
use millstream_wire::{ResponseError, StrBytes};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::keys::not_done;
use crate::broker::Broker;
use crate::client::Client;
use crate::error::response_error;
use crate::native::find::stream_named;
use crate::native::refused::{Refused, answered};
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext};
use crate::requests::handle::{Handle, Refusal, errors, refuse_with_message};
use crate::requests::rights::{Check, Checked, need_topic};
use crate::security::Operation;

/// How long a hold waits for the end of an open transaction that hides a part of a committed one.
const SPLIT_WAIT_MAX: Duration = Duration::from_secs(5);

/// The time between two attempts.
const SPLIT_RETRY_AFTER: Duration = Duration::from_millis(50);

/// A hold of a stream in an answer, without its offsets.
const HOLD_BYTES: usize = 4 << 10;

/// Makes a hold of a keyed stream, or ends one.
impl Handle for ChangeHoldRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_topic(client, Operation::Alter, &self.stream)
    }

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        let bytes = hold_bytes(context.client, &self.stream);
        context.list(1, bytes)
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        change(broker, client, self)
    }
}

/// Lists the holds of a stream.
impl Handle for ListHoldsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_topic(client, Operation::Describe, &self.stream)
    }

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        let bytes = hold_bytes(context.client, &self.stream);
        context.list(HOLDS_MAX, bytes)
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        list(broker, self)
    }
}

/// The most bytes of a hold of a stream in an answer: names, and an offset for each partition.
fn hold_bytes(client: &mut Client, stream: &str) -> usize {
    let stream = client.stream(stream).ok();
    stream.map_or(0, |stream| {
        HOLD_BYTES + stream.partition_count() as usize * size_of::<u64>()
    })
}

/// Makes a hold, or ends one.
fn change(broker: &Arc<Broker>, client: &Client, request: ChangeHoldRequest) -> Reply {
    let broker = Arc::clone(broker);
    match request.ends {
        true => Reply::blocking(move || answered(end(&broker, &request))),
        false => {
            let owner = client.access().principal().to_string();
            Reply::later(async move { answered(make(broker, request, owner).await) })
        }
    }
}

fn end(broker: &Broker, request: &ChangeHoldRequest) -> Result<ChangeHoldResponse, Refused> {
    let stream = stream_named(broker.log(), &request.stream)?;
    broker
        .log()
        .delete_hold(stream.name(), &request.name)
        .map_err(refused)?;
    Ok(ChangeHoldResponse::default())
}

async fn make(
    broker: Arc<Broker>,
    request: ChangeHoldRequest,
    owner: String,
) -> Result<ChangeHoldResponse, Refused> {
    let life = match request.life_ms.map(u64::try_from) {
        None => None,
        Some(Ok(ms)) => Some(Duration::from_millis(ms)),
        Some(Err(_)) => {
            let message = "a hold stays for a millisecond to 366 days";
            return Err(Refused::new(ResponseError::InvalidRequest, message));
        }
    };
    let (request, owner) = (Arc::new(request), Arc::new(owner));
    let until = Instant::now() + SPLIT_WAIT_MAX;
    loop {
        match make_now(&broker, &request, &owner, life).await {
            // The open transaction may end soon.
            Err(Unmade::Splits(_)) if Instant::now() < until => sleep(SPLIT_RETRY_AFTER).await,
            Err(Unmade::Splits(refused) | Unmade::Other(refused)) => return Err(refused),
            Ok(hold) => {
                return Ok(ChangeHoldResponse {
                    hold: Some(listed(&hold, true)),
                    ..ChangeHoldResponse::default()
                });
            }
        }
    }
}

/// Why a hold was not made.
enum Unmade {
    /// It would have a part of a transaction.
    Splits(Refused),
    Other(Refused),
}

impl From<LogError> for Unmade {
    fn from(error: LogError) -> Unmade {
        match error {
            LogError::HoldSplits { .. } => Unmade::Splits(error.into()),
            error => Unmade::Other(refused(error)),
        }
    }
}

async fn make_now(
    broker: &Arc<Broker>,
    request: &Arc<ChangeHoldRequest>,
    owner: &Arc<String>,
    life: Option<Duration>,
) -> Result<Arc<Hold>, Unmade> {
    let begin = {
        let (broker, request, owner) = (broker.clone(), request.clone(), owner.clone());
        move || {
            let stream = stream_named(broker.log(), &request.stream).map_err(Unmade::Other)?;
            let new = NewHold {
                name: &request.name,
                owner: &owner,
                life,
            };
            Ok(broker.log().begin_hold(stream.name(), &new)?)
        }
    };
    let mut begun = blocking(begin).await?;
    // Of a transaction, the hold sees the changes of all partitions or of none.
    let transactions = broker.transactions();
    let cut = transactions.between_commits(&request.stream, || begun.cut());
    if cut.await.is_none() {
        return Err(Unmade::Other(Refused::new(
            ResponseError::ConcurrentTransactions,
            "transactions of the stream were being committed all the time; ask again",
        )));
    }
    blocking(move || Ok(begun.keep()?)).await
}

/// Lists the holds of a stream.
fn list(broker: &Broker, request: ListHoldsRequest) -> Reply {
    let answer = stream_named(broker.log(), &request.stream).map(|stream| {
        let holds = stream.holds().into_iter();
        let holds = holds.map(|ListedHold { hold, is_whole }| listed(&hold, is_whole));
        ListHoldsResponse {
            holds: holds.collect(),
            ..ListHoldsResponse::default()
        }
    });
    answered(answer).into()
}

fn listed(hold: &Hold, is_whole: bool) -> native::ListedHold {
    native::ListedHold {
        name: StrBytes::from_string(hold.name.clone()),
        owner: StrBytes::from_string(hold.owner.clone()),
        created: hold.created,
        until: hold.until,
        is_whole,
        ends: (0..hold.partitions).map(|n| hold.end_of(n)).collect(),
    }
}

async fn blocking<R: Send + 'static>(
    work: impl FnOnce() -> Result<R, Unmade> + Send + 'static,
) -> Result<R, Unmade> {
    let done = spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Unmade::Other(not_done())))
}

fn refused(error: LogError) -> Refused {
    let code = match &error {
        LogError::Exists { .. } => ResponseError::DuplicateResource,
        LogError::BadName { .. }
        | LogError::BadSetting {
            setting: "until", ..
        } => ResponseError::InvalidRequest,
        error => response_error(error),
    };
    Refused::new(code, error.to_string())
}
