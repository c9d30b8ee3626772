//! The encoding of InitProducerId requests in version 6 (KIP-939). The generated messages have its fields, but not its
//! encoding.

use kafka_protocol::messages::{InitProducerIdRequest, ProducerId, TransactionalId};

use crate::api::ApiKey;
use crate::error::{EncodeError, Malformed};
use crate::input::Input;
use crate::pieces::Output;
use crate::request::Request;

/// The first version with the fields of two-phase commit.
pub(crate) const TWO_PHASE_FROM: i16 = 6;

pub(crate) fn decode_init_producer_id(input: &mut Input) -> Result<Request, Malformed> {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(
            input
                .nullable_string("transactional id")?
                .map(TransactionalId),
        )
        .with_transaction_timeout_ms(input.int32("transaction timeout")?)
        .with_producer_id(ProducerId(input.int64("producer id")?))
        .with_producer_epoch(input.int16("producer epoch")?)
        .with_enable_2_pc(input.boolean("enable 2PC")?)
        .with_keep_prepared_txn(input.boolean("keep prepared transaction")?);
    input.tags()?;
    Ok(request.into())
}

pub(crate) fn put_init_producer_id(
    request: &InitProducerIdRequest,
    version: i16,
    output: &mut Output,
) -> Result<(), EncodeError> {
    if version < TWO_PHASE_FROM {
        return match request.enable_2_pc || request.keep_prepared_txn {
            true => Err(EncodeError::Field {
                api: ApiKey::InitProducerId,
                version,
                what: "two-phase commit needs version 6".to_owned(),
            }),
            false => Request::from(request.clone()).encode(version, output),
        };
    }
    output.nullable_string(request.transactional_id.as_ref().map(|id| &***id));
    output.int32(request.transaction_timeout_ms);
    output.int64(request.producer_id.0);
    output.int16(request.producer_epoch);
    output.boolean(request.enable_2_pc);
    output.boolean(request.keep_prepared_txn);
    output.no_tags();
    Ok(())
}
