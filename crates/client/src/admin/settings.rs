//! Settings of streams under the names that Kafka gives them.

use millstream_wire::messages::IncrementalAlterConfigsRequest;
use millstream_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};

use crate::client::{Client, text};
use crate::error::ClientError;

/// A kind of resource.
const TOPIC: i8 = 2;

/// What is done with a value.
const OPERATION_SET: i8 = 0;
const OPERATION_DELETE: i8 = 1;

impl Client {
    /// Changes settings of a stream, such as `retention.ms`; those without a value go back to their
    /// default.
    ///
    /// # Errors
    /// When there is no such stream or setting, or the value makes no sense.
    pub async fn alter_settings(
        &self,
        stream: &str,
        settings: &[(&str, Option<String>)],
    ) -> Result<(), ClientError> {
        let configs = settings.iter().map(|(name, value)| {
            AlterableConfig::default()
                .with_name(text(name))
                .with_config_operation(match value {
                    Some(_) => OPERATION_SET,
                    None => OPERATION_DELETE,
                })
                .with_value(value.as_deref().map(text))
        });
        let resource = AlterConfigsResource::default()
            .with_resource_type(TOPIC)
            .with_resource_name(text(stream))
            .with_configs(configs.collect());
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        for altered in self.ask(request).await?.responses {
            let message = altered.error_message.as_deref();
            ClientError::check(altered.error_code, message, format!("stream {stream}"))?;
        }
        Ok(())
    }
}
