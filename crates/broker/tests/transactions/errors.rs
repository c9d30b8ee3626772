//! Errors, by name and code.

use kafka_protocol::ResponseError;
use millstream_broker::transactions::TransactionError;

#[test]
fn errors_have_the_codes_that_kafka_gives_their_names() {
    let errors = [
        TransactionError::UnknownServerError,
        TransactionError::CoordinatorLoadInProgress,
        TransactionError::NotEnoughReplicas,
        TransactionError::InvalidRequest,
        TransactionError::PolicyViolation,
        TransactionError::InvalidProducerEpoch,
        TransactionError::InvalidTxnState,
        TransactionError::InvalidProducerIdMapping,
        TransactionError::InvalidTransactionTimeout,
        TransactionError::ConcurrentTransactions,
        TransactionError::ProducerFenced,
        TransactionError::TransactionalIdNotFound,
        TransactionError::TransactionAbortable,
        TransactionError::InvalidRegularExpression,
    ];
    for error in errors {
        let known = ResponseError::try_from_code(error.code());
        let name = known.map(|known| format!("{known:?}"));
        assert_eq!(name, Some(format!("{error:?}")));
    }
}
