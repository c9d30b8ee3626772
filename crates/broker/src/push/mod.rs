//! Subscriptions: chunks are pushed to clients as they become durable.
//!
//! Who comes in over the socket for clients on this machine, as the same user, gets them through shared
//! memory ([`shared`]): it maps the log's pool, and is told where in it chunks lie. Everybody else asks for what
//! comes next before it is there ([`asked`]); each such request is the credit for one answer.

mod asked;
mod outlet;
mod pins;
mod shared;
mod subscriptions;
mod thread;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::Offset;
use millstream_log::{LANES_MAX, Lane, SOCKET, Subscription};
use millstream_record::Filter;
use millstream_wire::native::{
    LocalSocketResponse, ReceiveRequest, ReceiveResponse, SubscribeRequest, SubscribeResponse,
    SubscribedApplication, SubscribedSource, UnsubscribeRequest, UnsubscribeResponse,
};
use millstream_wire::{ResponseError, StrBytes};
use tokio::time::Instant;

use self::asked::Asked;
use self::outlet::Outlet;
pub use self::pins::Pins;
use self::shared::{MayShare, SharedSubscription, Terms};
pub use self::subscriptions::Subscriptions;
use self::subscriptions::{Kind, Open, Reads};
use crate::broker::Broker;
use crate::client::Client;
use crate::native::refused::{Refused, answered};
use crate::native::stream_named;
use crate::reply::Reply;
use crate::security::Traffic;

/// The most sources of one subscription.
const SOURCES_MAX: usize = 64;

/// The most lanes of one subscription: as many as a stream has.
const SUBSCRIBED_LANES_MAX: usize = LANES_MAX as usize;

/// The most subscriptions of one connection.
const SUBSCRIPTIONS_MAX: usize = 64;

/// The most that is handed out at once, unless a chunk is larger.
const HANDED_BYTES_MAX: usize = 1 << 20;

/// Who has a quota for reading is answered after so long in any case: until then nothing else is read from its
/// connection, not even that it has ended.
const LIMITED_WAIT_MAX: Duration = Duration::from_secs(10);

/// The longest name of a consumer.
const CONSUMER_BYTES_MAX: usize = 249;

/// Where clients come in that run on this machine.
pub fn local_socket(broker: &Broker) -> LocalSocketResponse {
    let path = broker.config().local_socket.as_ref();
    let path = path.map(|dir| StrBytes::from_string(dir.join(SOCKET).display().to_string()));
    LocalSocketResponse {
        path,
        ..LocalSocketResponse::default()
    }
}

/// Begins a subscription.
pub fn subscribe(broker: &Arc<Broker>, client: &mut Client, request: SubscribeRequest) -> Reply {
    answered(begin(broker, client, &request)).into()
}

fn begin(
    broker: &Arc<Broker>,
    client: &mut Client,
    request: &SubscribeRequest,
) -> Result<SubscribeResponse, Refused> {
    if client.subscriptions.open.len() >= SUBSCRIPTIONS_MAX {
        let message = format!("a connection has at most {SUBSCRIPTIONS_MAX} subscriptions");
        return Err(Refused::new(
            ResponseError::ThrottlingQuotaExceeded,
            message,
        ));
    }
    check_size(request)?;
    let filter = request.filter.as_deref().map(Filter::parse).transpose();
    let filter =
        filter.map_err(|error| Refused::new(ResponseError::InvalidRequest, error.to_string()))?;
    let mut reads = Reads::default();
    let mut outlets = Vec::new();
    for source in &request.sources {
        let mut subscription = subscription_of(broker, source, &mut reads)?;
        if let Some(filter) = &filter {
            subscription.set_filter(filter.clone());
        }
        outlets.push(Outlet::new(subscription));
    }
    let reads = Arc::new(reads);
    let handed_bytes = (request.bytes_max as usize).clamp(1, HANDED_BYTES_MAX);
    let mut response = SubscribeResponse::default();
    if request.layout != 0 {
        let terms = Terms {
            layout: request.layout,
            handed_bytes,
            ahead_bytes: request.ahead_bytes,
        };
        match sharing(client, &reads).and_then(|may_share| {
            SharedSubscription::begin(broker, client.access(), may_share, terms, &mut outlets)
        }) {
            Ok((subscription, files)) => {
                let kind = Kind::Shared(subscription);
                response.subscription = client.subscriptions.add(Open { reads, kind });
                response.shared = Some(files);
                return Ok(response);
            }
            Err(why) => response.not_shared = Some(StrBytes::from_string(why)),
        }
    }
    let Ok([outlet]) = <[Outlet; 1]>::try_from(outlets) else {
        let why = response.not_shared.unwrap_or_default();
        let message = format!("without shared memory a subscription has one source; {why}");
        let message = message.trim_end_matches("; ");
        return Err(Refused::new(ResponseError::InvalidRequest, message));
    };
    let kind = Kind::Asked(Arc::new(Asked::new(outlet, handed_bytes)));
    response.subscription = client.subscriptions.add(Open { reads, kind });
    Ok(response)
}

fn check_size(request: &SubscribeRequest) -> Result<(), Refused> {
    let lanes: usize = request
        .sources
        .iter()
        .map(|source| source.lanes.len())
        .sum();
    if lanes > SUBSCRIBED_LANES_MAX {
        return Err(Refused::too_many("lanes", SUBSCRIBED_LANES_MAX));
    }
    match request.sources.len() {
        1..=SOURCES_MAX => Ok(()),
        _ => Err(Refused::new(
            ResponseError::InvalidRequest,
            format!("a subscription has 1 to {SOURCES_MAX} sources"),
        )),
    }
}

/// What one source reads. Adds the names.
fn subscription_of(
    broker: &Broker,
    source: &SubscribedSource,
    reads: &mut Reads,
) -> Result<Subscription, Refused> {
    match (&source.application, source.lanes.as_slice()) {
        (Some(asked), []) => {
            reads.streams.insert(asked.stream.to_string());
            reads.applications.insert(asked.application.to_string());
            of_application(broker, asked)
        }
        (None, [_, ..]) => {
            let mut lanes: Vec<(Lane, Offset)> = Vec::new();
            let mut places = HashSet::new();
            for lane in &source.lanes {
                let stream = stream_named(broker.log(), &lane.stream)?;
                // Each is a watcher that whoever appends to the lane has to look at.
                if !places.insert((stream.id(), lane.partition)) {
                    let (stream, partition) = (&lane.stream, lane.partition);
                    let message = format!("a source reads partition {partition} of {stream} twice");
                    return Err(Refused::new(ResponseError::InvalidRequest, message));
                }
                lanes.push((stream.partition(lane.partition)?, lane.offset));
                if !reads.streams.contains(&*lane.stream) {
                    reads.streams.insert(lane.stream.to_string());
                }
            }
            // An offset that is not there is told of with what is handed out.
            Ok(Subscription::of_lanes(lanes))
        }
        _ => Err(Refused::new(
            ResponseError::InvalidRequest,
            "a source has lanes, or an application",
        )),
    }
}

fn of_application(broker: &Broker, asked: &SubscribedApplication) -> Result<Subscription, Refused> {
    if !(1..=CONSUMER_BYTES_MAX).contains(&asked.consumer.len()) {
        let message = format!("a consumer's name has 1 to {CONSUMER_BYTES_MAX} bytes");
        return Err(Refused::new(ResponseError::InvalidRequest, message));
    }
    let log = broker.log();
    let stream = stream_named(log, &asked.stream)?;
    // So that its groups can be committed, too.
    let applications = &broker.native.applications;
    applications.open(log, &stream, &asked.application)?;
    let consumer = asked.consumer.to_string();
    Ok(Subscription::of_application(
        log,
        &stream,
        &asked.application,
        consumer,
    )?)
}

/// Says whether the client may see all of the pool, also later: a consumer that has it mapped can read every stream,
/// and nobody counts what it reads.
fn sharing(client: &Client, reads: &Arc<Reads>) -> Result<MayShare, String> {
    if !client.peer().is_same_user {
        return Err("only who comes in over the local socket may share memory".to_owned());
    }
    let (may_share, access, reads) = (client.sharing(), client.access().clone(), Arc::clone(reads));
    may_share()?;
    Ok(Box::new(move || match reads.are_allowed(&access) {
        true => may_share(),
        false => Err("it may not read any more what it has subscribed to".to_owned()),
    }))
}

/// Answers with what comes next.
pub fn receive(client: &Client, request: ReceiveRequest) -> Reply {
    let Some(open) = client.subscriptions.open.get(&request.subscription) else {
        return ReceiveResponse::from(unknown(request.subscription)).into();
    };
    let ending = client.ending();
    match &open.kind {
        Kind::Asked(asked) => {
            let bytes_max = (request.bytes_max as usize).min(client.answer_bytes_max());
            let (asked, reads) = (Arc::clone(asked), Arc::clone(&open.reads));
            let access = client.access().clone();
            let wait_max = match client.limit(Traffic::Consumed) {
                Some(_) => client.idle_max().min(LIMITED_WAIT_MAX),
                None => client.idle_max(),
            };
            let until = Instant::now() + wait_max;
            Reply::later(async move {
                let received = asked.receive(bytes_max.max(1), until, ending).await;
                // It may have waited for long.
                if reads.are_allowed(&access) {
                    return received;
                }
                asked.end();
                let message = "it may not read any more what it has subscribed to";
                Refused::new(ResponseError::TopicAuthorizationFailed, message).into()
            })
        }
        Kind::Shared(shared) => {
            let source = (request.bytes_max > 0).then_some(request.source as usize);
            match shared.wait(source, ending) {
                Ok(answer) => Reply::later(answer),
                Err(refused) => ReceiveResponse::from(refused).into(),
            }
        }
    }
}

/// Ends a subscription.
pub fn unsubscribe(client: &mut Client, request: &UnsubscribeRequest) -> UnsubscribeResponse {
    match client.subscriptions.open.remove(&request.subscription) {
        Some(open) => {
            open.end();
            UnsubscribeResponse::default()
        }
        None => unknown(request.subscription).into(),
    }
}

fn unknown(subscription: u32) -> Refused {
    Refused::new(
        ResponseError::ResourceNotFound,
        format!("this connection has no subscription {subscription}, or has it no more"),
    )
}
