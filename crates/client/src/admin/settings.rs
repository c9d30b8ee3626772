//! Settings of streams under Kafka's names for them.

use std::collections::HashMap;

use millstream_wire::messages::describe_configs_request::DescribeConfigsResource;
use millstream_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use millstream_wire::messages::{DescribeConfigsRequest, IncrementalAlterConfigsRequest};

use crate::client::{Client, text};
use crate::error::ClientError;

/// The number of the resource type "topic".
const TOPIC: i8 = 2;

/// The number of the operation that sets a value.
const OPERATION_SET: i8 = 0;
const OPERATION_DELETE: i8 = 1;

impl Client {
    /// Returns the settings of a stream that `names` lists, without those that have no value.
    ///
    /// # Errors
    /// When there is no stream of this name.
    pub async fn settings(
        &self,
        stream: &str,
        names: &[&str],
    ) -> Result<HashMap<String, String>, ClientError> {
        let resource = DescribeConfigsResource::default()
            .with_resource_type(TOPIC)
            .with_resource_name(text(stream))
            .with_configuration_keys(Some(names.iter().map(|name| text(name)).collect()));
        let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
        let mut settings = HashMap::new();
        for described in self.ask(request).await?.results {
            let message = described.error_message.as_deref();
            ClientError::check(described.error_code, message, format!("stream {stream}"))?;
            settings.extend(
                described.configs.into_iter().filter_map(|config| {
                    Some((config.name.to_string(), config.value?.to_string()))
                }),
            );
        }
        Ok(settings)
    }

    /// Changes settings of a stream, for example `retention.ms`; a setting without a value returns
    /// to its default.
    ///
    /// # Errors
    /// When there is no stream or setting of this name, or the value is invalid.
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
