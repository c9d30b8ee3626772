//! Metrics that clients report (KIP-714): GetTelemetrySubscriptions, PushTelemetry.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use millstream_base::partition_of_key;
use millstream_log::{Appended, LogError, StreamPartition};
use millstream_record::{ChunkBuilder, Compression, Header};
use millstream_wire::messages::{
    GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse, PushTelemetryRequest,
    PushTelemetryResponse,
};
use millstream_wire::{ResponseError, StrBytes, Uuid};

use super::bounds::{Bound, BoundContext, ECHOES};
use super::handle::{Handle, Refusal, errors, refuse_with_code, tell_throttle};
use super::rights::{Check, Checked, may_topic, need_topic};
use crate::broker::Broker;
use crate::client::Client;
use crate::reply::Reply;
use crate::security::{Operation, Traffic};
use crate::telemetry::{Asked, Attributes, REPORT_BYTES_MAX, TOPIC};

/// The code of metrics that are not compressed. The broker accepts no others: the topic has its own compression.
const UNCOMPRESSED: i8 = 0;

/// Tells a client which metrics to report, and how often.
impl Handle for GetTelemetrySubscriptionsRequest {
    const CHECKS: &'static [Check] = &[Check::Handler];

    refuse_with_code!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        let (count, bytes) = context.broker.telemetry().metrics();
        context.elements(count).and(Bound::Bytes(ECHOES * bytes))
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        let instance = match self.client_instance_id.is_nil() {
            true => new_instance(broker),
            false => Ok(self.client_instance_id),
        };
        match instance {
            Ok(instance) => subscriptions(broker, client, instance).into(),
            Err(error) => self.refused(version, error).into(),
        }
    }
}

/// Stores the metrics of a client in the topic `otlp_metrics`.
impl Handle for PushTelemetryRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];
    const TRAFFIC: Option<Traffic> = Some(Traffic::Produced);

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_topic(client, Operation::Write, TOPIC)
    }

    refuse_with_code!();
    errors!(error_code);
    tell_throttle!();

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.plain()
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        match push(broker, client, &self) {
            Ok(None) => PushTelemetryResponse::default().into(),
            Ok(Some((partition, appended))) => Reply::later(async move {
                match partition.acknowledged(&appended).await {
                    Ok(()) => PushTelemetryResponse::default(),
                    Err(error) => self.refused(version, push_error(&error)),
                }
            }),
            Err(error) => self.refused(version, error).into(),
        }
    }
}

fn new_instance(broker: &Broker) -> Result<Uuid, ResponseError> {
    let mut bytes = [0; 16];
    let filled = broker.random().fill(&mut bytes);
    filled.map_err(|_| ResponseError::UnknownServerError)?;
    Ok(Uuid::from_bytes(bytes))
}

fn subscriptions(
    broker: &Broker,
    client: &mut Client,
    instance: Uuid,
) -> GetTelemetrySubscriptionsResponse {
    client.reports.begin();
    let attributes = attributes(client, instance);
    let asked = asked(broker, client, &attributes);
    let id = asked.id();
    let metrics = asked.metrics.into_iter().map(StrBytes::from_string);
    GetTelemetrySubscriptionsResponse::default()
        .with_client_instance_id(instance)
        .with_subscription_id(id)
        .with_push_interval_ms(asked.interval.as_millis() as i32)
        .with_telemetry_max_bytes(REPORT_BYTES_MAX as i32)
        .with_delta_temporality(true)
        .with_requested_metrics(metrics.collect())
}

/// Returns the metrics that the client is asked for: none if they cannot be stored.
fn asked(broker: &Broker, client: &mut Client, attributes: &Attributes) -> Asked {
    let may_write = may_topic(client, Operation::Write, TOPIC);
    match may_write && client.stream(TOPIC).is_ok() {
        true => broker.telemetry().asked(attributes),
        false => Asked::nothing(),
    }
}

/// Returns the names and values by which subscriptions choose clients, and that describe a client in its reports.
fn attributes(client: &Client, instance: Uuid) -> Attributes {
    let address = client.peer().address;
    let (software, version) = client.software();
    [
        ("client_instance_id", text_of(instance)),
        ("client_id", client.id().to_owned()),
        ("client_software_name", software.to_owned()),
        ("client_software_version", version.to_owned()),
        ("client_source_address", address.ip().to_string()),
        ("client_source_port", address.port().to_string()),
    ]
}

/// Returns the id of a client instance as Kafka's clients write it.
fn text_of(instance: Uuid) -> String {
    URL_SAFE_NO_PAD.encode(instance.as_bytes())
}

/// Appends a report, unless it is empty.
fn push(
    broker: &Broker,
    client: &mut Client,
    request: &PushTelemetryRequest,
) -> Result<Option<(StreamPartition, Appended)>, ResponseError> {
    if request.client_instance_id.is_nil() {
        return Err(ResponseError::InvalidRequest);
    }
    let attributes = attributes(client, request.client_instance_id);
    let asked = asked(broker, client, &attributes);
    let now = broker.log().clock().monotonic();
    client
        .reports
        .add(now, asked.interval, request.terminating)?;
    if request.subscription_id != asked.id() {
        return Err(ResponseError::UnknownSubscriptionId);
    }
    if request.compression_type != UNCOMPRESSED {
        return Err(ResponseError::UnsupportedCompressionType);
    }
    if request.metrics.len() > REPORT_BYTES_MAX {
        return Err(ResponseError::TelemetryTooLarge);
    }
    if request.metrics.is_empty() {
        return Ok(None);
    }
    let appended = append(broker, client, &attributes, &request.metrics);
    appended.map(Some).map_err(|error| push_error(&error))
}

/// Appends a record with the metrics. Its key is the client instance, its headers describe the client.
fn append(
    broker: &Broker,
    client: &mut Client,
    attributes: &Attributes,
    metrics: &[u8],
) -> Result<(StreamPartition, Appended), LogError> {
    let principal = client.access().principal().to_string();
    let described = attributes.iter().map(|(name, value)| (*name, value));
    let headers = described.chain([("principal", &principal)]);
    let headers = headers.map(|(name, value)| Header {
        name: name.as_bytes(),
        value: Some(value.as_bytes()),
    });
    let headers: Vec<Header<'_>> = headers.collect();
    let key = attributes[0].1.as_bytes();
    let mut chunk = ChunkBuilder::new(Compression::None);
    chunk.push(
        broker.log().clock().now(),
        Some(key),
        Some(metrics),
        &headers,
    )?;
    let stream = client.stream(TOPIC)?;
    let partition = partition_of_key(key, stream.partition_count() as usize) as u32;
    let partition = stream.partition(partition)?;
    let appended = partition.append(chunk.finish(None)?)?;
    Ok((partition, appended))
}

/// Returns the error of a report that is not stored. Clients report no more after other errors than these.
fn push_error(error: &LogError) -> ResponseError {
    match error {
        LogError::ChunkTooLarge { .. } => ResponseError::TelemetryTooLarge,
        LogError::UnknownStream { .. } | LogError::UnknownPartition { .. } => {
            ResponseError::UnknownSubscriptionId
        }
        // The client reports again after its interval.
        _ => ResponseError::ThrottlingQuotaExceeded,
    }
}
