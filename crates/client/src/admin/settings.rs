//! Settings of streams, brokers and groups under Kafka's names for them.

use std::collections::HashMap;
use std::sync::Arc;

use millstream_wire::messages::describe_configs_request::DescribeConfigsResource;
use millstream_wire::messages::describe_configs_response::DescribeConfigsResult;
use millstream_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use millstream_wire::messages::{DescribeConfigsRequest, IncrementalAlterConfigsRequest};

use crate::client::{Client, text};
use crate::connection::Connection;
use crate::error::ClientError;

/// The number of the operation that sets a value.
const OPERATION_SET: i8 = 0;
const OPERATION_DELETE: i8 = 1;

/// The number of the source of settings that have their default.
const SOURCE_DEFAULT: i8 = 5;

/// The owner of settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingsOwner {
    /// The stream of this name.
    Stream(String),
    /// The broker of this number.
    Broker(i32),
    /// The group of this name.
    Group(String),
}

impl SettingsOwner {
    /// Returns the number of the resource type in Kafka's protocol.
    fn resource_type(&self) -> i8 {
        match self {
            SettingsOwner::Stream(_) => 2,
            SettingsOwner::Broker(_) => 4,
            SettingsOwner::Group(_) => 32,
        }
    }

    fn resource_name(&self) -> String {
        match self {
            SettingsOwner::Stream(name) | SettingsOwner::Group(name) => name.clone(),
            SettingsOwner::Broker(number) => number.to_string(),
        }
    }
}

impl std::fmt::Display for SettingsOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self {
            SettingsOwner::Stream(_) => "stream",
            SettingsOwner::Broker(_) => "broker",
            SettingsOwner::Group(_) => "group",
        };
        write!(f, "{kind} {}", self.resource_name())
    }
}

/// A setting with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The setting's name.
    pub name: String,
    /// The value; `None` if the setting has none, or if it is secret.
    pub value: Option<String>,
    /// Whether the value is the default.
    pub is_default: bool,
    /// Whether requests cannot change the setting.
    pub is_read_only: bool,
    /// The description of the setting.
    pub documentation: Option<String>,
}

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
        let owner = SettingsOwner::Stream(stream.to_owned());
        let mut settings = HashMap::new();
        for described in self.ask_settings(&owner, Some(names), false).await? {
            settings.extend(
                described.configs.into_iter().filter_map(|config| {
                    Some((config.name.to_string(), config.value?.to_string()))
                }),
            );
        }
        Ok(settings)
    }

    /// Returns all settings of a stream, a broker or a group, by name.
    ///
    /// # Errors
    /// When the stream or broker does not exist, or the user may not describe it.
    pub async fn all_settings(&self, owner: &SettingsOwner) -> Result<Vec<Setting>, ClientError> {
        let described = self.ask_settings(owner, None, true).await?;
        let configs = described.into_iter().flat_map(|one| one.configs);
        let mut settings: Vec<Setting> = configs
            .map(|config| Setting {
                name: config.name.to_string(),
                value: config.value.map(|value| value.to_string()),
                is_default: config.config_source == SOURCE_DEFAULT,
                is_read_only: config.read_only,
                documentation: config.documentation.map(|text| text.to_string()),
            })
            .collect();
        settings.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(settings)
    }

    async fn ask_settings(
        &self,
        owner: &SettingsOwner,
        names: Option<&[&str]>,
        with_documentation: bool,
    ) -> Result<Vec<DescribeConfigsResult>, ClientError> {
        let names = names.map(|names| names.iter().map(|name| text(name)).collect());
        let resource = DescribeConfigsResource::default()
            .with_resource_type(owner.resource_type())
            .with_resource_name(text(&owner.resource_name()))
            .with_configuration_keys(names);
        let request = DescribeConfigsRequest::default()
            .with_resources(vec![resource])
            .with_include_documentation(with_documentation);
        let described = self.server_of(owner).await?.ask(request).await?.results;
        for one in &described {
            let message = one.error_message.as_deref();
            ClientError::check(one.error_code, message, owner.to_string())
                .map_err(|error| error.needing("DescribeConfigs"))?;
        }
        Ok(described)
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
        let owner = SettingsOwner::Stream(stream.to_owned());
        self.alter_settings_of(&owner, settings, false).await
    }

    /// Changes settings of a stream, a broker or a group; a setting without a value returns to its
    /// default. With `validate_only`, the server checks the changes and makes none.
    ///
    /// # Errors
    /// When the stream, broker or setting does not exist, or a value is invalid.
    pub async fn alter_settings_of(
        &self,
        owner: &SettingsOwner,
        settings: &[(&str, Option<String>)],
        validate_only: bool,
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
            .with_resource_type(owner.resource_type())
            .with_resource_name(text(&owner.resource_name()))
            .with_configs(configs.collect());
        let request = IncrementalAlterConfigsRequest::default()
            .with_resources(vec![resource])
            .with_validate_only(validate_only);
        for altered in self.server_of(owner).await?.ask(request).await?.responses {
            let message = altered.error_message.as_deref();
            ClientError::check(altered.error_code, message, owner.to_string())?;
        }
        Ok(())
    }

    /// Returns a connection to the server that knows these settings: a broker knows only its own.
    async fn server_of(&self, owner: &SettingsOwner) -> Result<Arc<Connection>, ClientError> {
        match owner {
            SettingsOwner::Broker(number) => self.server(*number).await,
            SettingsOwner::Stream(_) | SettingsOwner::Group(_) => self.any().await,
        }
    }
}
