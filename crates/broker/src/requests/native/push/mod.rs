//! Subscriptions: LocalSocket, Subscribe, Receive, Unsubscribe, and WatchKeys in a file of its own.

mod watch;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::Offset;
use millstream_log::{SOCKET, STREAM_PARTITIONS_MAX, StreamPartition, Subscription};
use millstream_record::Filter;
use millstream_wire::native::{
    LocalSocketRequest, LocalSocketResponse, ReceiveRequest, ReceiveResponse, SharedMemory,
    SubscribeRequest, SubscribeResponse, SubscribedSharedGroup, SubscribedSource,
    UnsubscribeRequest, UnsubscribeResponse,
};
use millstream_wire::{ResponseError, StrBytes};
use tokio::time::Instant;

use crate::broker::Broker;
use crate::client::Client;
use crate::native::refused::{Refused, answered};
use crate::native::stream_named;
use crate::push::on_request::OnRequest;
use crate::push::outlet::Outlet;
use crate::push::shared::{MayShare, SharedSubscription, Terms};
use crate::push::subscriptions::{Kind, Open, Reads};
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext, nested};
use crate::requests::handle::{Handle, Refusal, errors, refuse_with_message, tell_throttle};
use crate::requests::rights::{Check, Checked, need_group, need_topic};
use crate::security::{Operation, Traffic};

/// The most sources of one subscription.
const SOURCES_MAX: usize = 64;

/// The most partitions of one subscription, and of all subscriptions of one connection together: as
/// many as a stream has.
const SUBSCRIBED_LANES_MAX: usize = STREAM_PARTITIONS_MAX as usize;

/// The most subscriptions of one connection.
const SUBSCRIPTIONS_MAX: usize = 64;

/// The most bytes that are handed out at once, unless a chunk is larger.
const HANDED_BYTES_MAX: usize = 1 << 20;

/// The longest wait of a client with a quota for reading: until its answer the broker reads nothing
/// else from its connection, not even the end of it.
const LIMITED_WAIT_MAX: Duration = Duration::from_secs(10);

/// The longest name of a consumer.
const CONSUMER_BYTES_MAX: usize = 249;

/// Returns the path of the server's socket for clients on the same machine.
impl Handle for LocalSocketRequest {
    const CHECKS: &'static [Check] = &[];

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.plain()
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        local_socket(broker).into()
    }
}

/// Begins a subscription, which delivers chunks as they become durable.
impl Handle for SubscribeRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        self.sources.iter().try_for_each(|source| {
            if let Some(asked) = &source.shared_group {
                need_group(client, Operation::Read, &asked.name)?;
                need_topic(client, Operation::Read, &asked.stream)?;
            }
            let mut lanes = source.lanes.iter();
            lanes.try_for_each(|lane| need_topic(client, Operation::Read, &lane.stream))
        })
    }

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(nested(&self.sources, |source| source.lanes.len()))
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        subscribe(broker, client, self)
    }
}

/// Waits for the next chunks of a subscription.
impl Handle for ReceiveRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];
    const TRAFFIC: Option<Traffic> = Some(Traffic::Consumed);

    fn check(&self, client: &Client, _: i16) -> Checked {
        // The client's rights may have changed since it subscribed.
        let Some(reads) = client.subscriptions.reads(self.subscription) else {
            return Ok(());
        };
        let mut applications = reads.applications.iter();
        applications.try_for_each(|name| need_group(client, Operation::Read, name))?;
        let mut streams = reads.streams.iter();
        streams.try_for_each(|name| need_topic(client, Operation::Read, name))
    }

    refuse_with_message!();
    errors!(error_code, delivered.error_code);
    tell_throttle!();

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::Late
    }

    fn handle(self, _: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        receive(client, self)
    }
}

/// Ends a subscription.
impl Handle for UnsubscribeRequest {
    const CHECKS: &'static [Check] = &[];

    refuse_with_message!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.plain()
    }

    fn handle(self, _: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        unsubscribe(client, &self).into()
    }
}

/// Returns the socket for clients that run on this machine.
fn local_socket(broker: &Broker) -> LocalSocketResponse {
    let path = broker.config().local_socket.as_ref();
    let path = path.map(|dir| StrBytes::from_string(dir.join(SOCKET).display().to_string()));
    LocalSocketResponse {
        path,
        ..LocalSocketResponse::default()
    }
}

/// Begins a subscription.
fn subscribe(broker: &Arc<Broker>, client: &mut Client, request: SubscribeRequest) -> Reply {
    answered(begin(broker, client, &request)).into()
}

fn begin(
    broker: &Arc<Broker>,
    client: &mut Client,
    request: &SubscribeRequest,
) -> Result<SubscribeResponse, Refused> {
    let partitions = check_size(request)?;
    check_room(client, partitions)?;
    let filter = request.filter.as_deref().map(Filter::parse).transpose();
    let filter =
        filter.map_err(|error| Refused::new(ResponseError::InvalidRequest, error.to_string()))?;
    let mut reads = Reads {
        partitions,
        ..Reads::default()
    };
    let mut outlets = Vec::new();
    for source in &request.sources {
        let mut subscription = subscription_of(broker, source, &mut reads)?;
        if let Some(filter) = &filter {
            subscription.set_filter(filter.clone());
        }
        outlets.push(Outlet::new(subscription));
    }
    let terms = Terms {
        layout: request.layout,
        handed_bytes: handed_bytes(request.bytes_max),
        ahead_bytes: request.ahead_bytes,
    };
    let begun = hand_out(broker, client, reads, outlets, terms)?;
    Ok(SubscribeResponse {
        subscription: begun.subscription,
        shared: begun.shared,
        not_shared: begun.not_shared,
        ..SubscribeResponse::default()
    })
}

/// A subscription that has begun, as its client learns of it.
struct Begun {
    subscription: u32,
    shared: Option<SharedMemory>,
    /// Why memory that the client asked for is not shared.
    not_shared: Option<StrBytes>,
}

/// Begins to hand out chunks: in shared memory if the client asks for it and may have it, else on request.
fn hand_out(
    broker: &Arc<Broker>,
    client: &mut Client,
    reads: Reads,
    mut outlets: Vec<Outlet>,
    terms: Terms,
) -> Result<Begun, Refused> {
    let reads = Arc::new(reads);
    let mut not_shared = None;
    if terms.layout != 0 {
        match sharing(client, &reads).and_then(|may_share| {
            SharedSubscription::begin(broker, client.access(), may_share, terms, &mut outlets)
        }) {
            Ok((subscription, files)) => {
                let kind = Kind::Shared(subscription);
                return Ok(Begun {
                    subscription: client.subscriptions.add(Open { reads, kind }),
                    shared: Some(files),
                    not_shared: None,
                });
            }
            Err(why) => not_shared = Some(why),
        }
    }
    let Ok([outlet]) = <[Outlet; 1]>::try_from(outlets) else {
        let why = not_shared.unwrap_or_default();
        let message = format!("without shared memory a subscription has one source; {why}");
        let message = message.trim_end_matches("; ");
        return Err(Refused::new(ResponseError::InvalidRequest, message));
    };
    let kind = Kind::OnRequest(Arc::new(OnRequest::new(outlet, terms.handed_bytes)));
    Ok(Begun {
        subscription: client.subscriptions.add(Open { reads, kind }),
        shared: None,
        not_shared: not_shared.map(StrBytes::from_string),
    })
}

/// Returns about how many bytes are handed out at once.
fn handed_bytes(asked: u32) -> usize {
    (asked as usize).clamp(1, HANDED_BYTES_MAX)
}

/// Checks that the connection may have one more subscription, to this many partitions.
fn check_room(client: &Client, partitions: usize) -> Result<(), Refused> {
    let subscriptions = &client.subscriptions;
    let message = if subscriptions.open.len() >= SUBSCRIPTIONS_MAX {
        format!("a connection has at most {SUBSCRIPTIONS_MAX} subscriptions")
    } else if subscriptions.partitions() + partitions > SUBSCRIBED_LANES_MAX {
        format!("a connection subscribes to at most {SUBSCRIBED_LANES_MAX} partitions")
    } else {
        return Ok(());
    };
    Err(Refused::new(
        ResponseError::ThrottlingQuotaExceeded,
        message,
    ))
}

/// Checks the size of a subscription; returns the number of its partitions.
fn check_size(request: &SubscribeRequest) -> Result<usize, Refused> {
    let lanes: usize = request
        .sources
        .iter()
        .map(|source| source.lanes.len())
        .sum();
    if lanes > SUBSCRIBED_LANES_MAX {
        return Err(Refused::too_many("lanes", SUBSCRIBED_LANES_MAX));
    }
    match request.sources.len() {
        1..=SOURCES_MAX => Ok(lanes),
        _ => Err(Refused::new(
            ResponseError::InvalidRequest,
            format!("a subscription has 1 to {SOURCES_MAX} sources"),
        )),
    }
}

/// Returns the subscription of one source, and adds the names of its streams to `reads`.
fn subscription_of(
    broker: &Broker,
    source: &SubscribedSource,
    reads: &mut Reads,
) -> Result<Subscription, Refused> {
    match (&source.shared_group, source.lanes.as_slice()) {
        (Some(asked), []) => {
            reads.streams.insert(asked.stream.to_string());
            reads.applications.insert(asked.name.to_string());
            of_application(broker, asked)
        }
        (None, [_, ..]) => {
            let mut lanes: Vec<(StreamPartition, Offset)> = Vec::new();
            let mut places = HashSet::new();
            for lane in &source.lanes {
                let stream = stream_named(broker.log(), &lane.stream)?;
                // Every append to the partition has to check each watcher, so a partition is
                // watched once.
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
            // Offsets that do not exist are reported with the handed-out chunks.
            Ok(Subscription::of_partitions(lanes))
        }
        _ => Err(Refused::new(
            ResponseError::InvalidRequest,
            "a source has either lanes or a shared group",
        )),
    }
}

fn of_application(broker: &Broker, asked: &SubscribedSharedGroup) -> Result<Subscription, Refused> {
    if !(1..=CONSUMER_BYTES_MAX).contains(&asked.consumer.len()) {
        let message = format!("a consumer's name has 1 to {CONSUMER_BYTES_MAX} bytes");
        return Err(Refused::new(ResponseError::InvalidRequest, message));
    }
    let log = broker.log();
    let stream = stream_named(log, &asked.stream)?;
    // So that the groups of this shared group can be committed, too.
    let applications = &broker.native.applications;
    applications.open(log, &stream, &asked.name)?;
    let consumer = asked.consumer.to_string();
    Ok(Subscription::of_shared_group(
        log,
        &stream,
        &asked.name,
        consumer,
    )?)
}

/// Returns a check of whether the client may see all of the pool; it can be repeated later. A
/// consumer that has mapped the pool can read every stream, and no quota counts its reads.
fn sharing(client: &Client, reads: &Arc<Reads>) -> Result<MayShare, String> {
    if !client.peer().is_same_user {
        return Err("only a client on the local socket may share memory".to_owned());
    }
    let (may_share, access, reads) = (client.sharing(), client.access().clone(), Arc::clone(reads));
    may_share()?;
    Ok(Box::new(move || match reads.are_allowed(&access) {
        true => may_share(),
        false => Err("the client may no longer read the streams of its subscription".to_owned()),
    }))
}

/// Answers with the next chunks of a subscription.
fn receive(client: &Client, request: ReceiveRequest) -> Reply {
    let Some(open) = client.subscriptions.open.get(&request.subscription) else {
        return unknown(request.subscription)
            .answer::<ReceiveResponse>()
            .into();
    };
    let ending = client.ending();
    match &open.kind {
        Kind::OnRequest(on_request) => {
            let bytes_max = (request.bytes_max as usize).min(client.answer_bytes_max());
            let (on_request, reads) = (Arc::clone(on_request), Arc::clone(&open.reads));
            let access = client.access().clone();
            let wait_max = match client.limit(Traffic::Consumed) {
                Some(_) => client.idle_max().min(LIMITED_WAIT_MAX),
                None => client.idle_max(),
            };
            let until = Instant::now() + wait_max;
            let answers = Arc::clone(client.answers());
            Reply::Later(Box::pin(async move {
                let received = on_request.receive(bytes_max.max(1), until, ending, &answers);
                let (received, room) = received.await;
                // The request may have waited for long, and the rules may have changed.
                if !reads.are_allowed(&access) {
                    on_request.end();
                    let message = "the client may no longer read the streams of its subscription";
                    let refused = Refused::new(ResponseError::TopicAuthorizationFailed, message);
                    return refused.answer::<ReceiveResponse>().into();
                }
                match room {
                    Some(room) => Reply::Counted(Box::new(received.into()), room),
                    None => received.into(),
                }
            }))
        }
        Kind::Shared(shared) => {
            let source = (request.bytes_max > 0).then_some(request.source as usize);
            let until = Instant::now() + client.idle_max();
            match shared.wait(source, until, ending) {
                Ok(answer) => Reply::later(answer),
                Err(refused) => refused.answer::<ReceiveResponse>().into(),
            }
        }
    }
}

/// Ends a subscription.
fn unsubscribe(client: &mut Client, request: &UnsubscribeRequest) -> UnsubscribeResponse {
    match client.subscriptions.open.remove(&request.subscription) {
        Some(open) => {
            open.end();
            UnsubscribeResponse::default()
        }
        None => unknown(request.subscription).answer(),
    }
}

fn unknown(subscription: u32) -> Refused {
    Refused::new(
        ResponseError::ResourceNotFound,
        format!("this connection has no subscription {subscription}, or has it no more"),
    )
}
