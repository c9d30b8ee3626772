//! Refusals of requests about topics, their settings and their folders.

use kafka_protocol::messages::alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResult;
use kafka_protocol::messages::describe_log_dirs_response::DescribeLogDirsResult;
use kafka_protocol::messages::describe_topic_partitions_response::DescribeTopicPartitionsResponseTopic;
use kafka_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse as IncrementalResponse;
use kafka_protocol::messages::*;

use super::{Refusal, each};
use crate::metadata::{MetadataResponse, MetadataTopic};

/// The first version of Metadata in which a topic that the request names by its id has a null name.
const METADATA_NULL_NAME_FROM: i16 = 12;
/// The first version of Metadata with an error for the whole request.
const METADATA_ERROR_FROM: i16 = 13;
/// The first version of DeleteTopics that can name topics by their ids.
const DELETE_STATES_FROM: i16 = 6;
/// The first version of DescribeLogDirs with an error for the whole request.
const LOG_DIRS_ERROR_FROM: i16 = 3;

impl Refusal {
    pub(super) fn metadata(&self, request: &MetadataRequest) -> MetadataResponse {
        let topics = request.topics.as_deref().unwrap_or_default();
        let topics = each(topics, |topic| {
            let name = match self.version >= METADATA_NULL_NAME_FROM {
                true => topic.name.clone(),
                false => Some(topic.name.clone().unwrap_or_default()),
            };
            MetadataTopic {
                error_code: self.code,
                name,
                topic_id: topic.topic_id,
                ..MetadataTopic::default()
            }
        });
        let is_told = self.version >= METADATA_ERROR_FROM;
        MetadataResponse {
            error_code: if is_told { self.code } else { 0 },
            topics,
            ..MetadataResponse::default()
        }
    }

    pub(super) fn create_topics(&self, request: &CreateTopicsRequest) -> CreateTopicsResponse {
        CreateTopicsResponse::default().with_topics(each(&request.topics, |topic| {
            CreatableTopicResult::default()
                .with_name(topic.name.clone())
                .with_error_code(self.code)
                .with_error_message(self.message.clone())
        }))
    }

    pub(super) fn delete_topics(&self, request: &DeleteTopicsRequest) -> DeleteTopicsResponse {
        let result = || {
            DeletableTopicResult::default()
                .with_error_code(self.code)
                .with_error_message(self.message.clone())
        };
        let results = if self.version >= DELETE_STATES_FROM {
            each(&request.topics, |topic| {
                result()
                    .with_name(topic.name.clone())
                    .with_topic_id(topic.topic_id)
            })
        } else {
            each(&request.topic_names, |name| {
                result().with_name(Some(name.clone()))
            })
        };
        DeleteTopicsResponse::default().with_responses(results)
    }

    pub(super) fn create_partitions(
        &self,
        request: &CreatePartitionsRequest,
    ) -> CreatePartitionsResponse {
        CreatePartitionsResponse::default().with_results(each(&request.topics, |topic| {
            CreatePartitionsTopicResult::default()
                .with_name(topic.name.clone())
                .with_error_code(self.code)
                .with_error_message(self.message.clone())
        }))
    }

    pub(super) fn describe_configs(
        &self,
        request: &DescribeConfigsRequest,
    ) -> DescribeConfigsResponse {
        DescribeConfigsResponse::default().with_results(each(&request.resources, |resource| {
            DescribeConfigsResult::default()
                .with_error_code(self.code)
                .with_error_message(self.message.clone())
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name.clone())
        }))
    }

    pub(super) fn alter_configs(&self, request: &AlterConfigsRequest) -> AlterConfigsResponse {
        AlterConfigsResponse::default().with_responses(each(&request.resources, |resource| {
            AlterConfigsResourceResponse::default()
                .with_error_code(self.code)
                .with_error_message(self.message.clone())
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name.clone())
        }))
    }

    pub(super) fn incremental_alter_configs(
        &self,
        request: &IncrementalAlterConfigsRequest,
    ) -> IncrementalAlterConfigsResponse {
        let responses = each(&request.resources, |resource| {
            IncrementalResponse::default()
                .with_error_code(self.code)
                .with_error_message(self.message.clone())
                .with_resource_type(resource.resource_type)
                .with_resource_name(resource.resource_name.clone())
        });
        IncrementalAlterConfigsResponse::default().with_responses(responses)
    }

    pub(super) fn describe_log_dirs(&self) -> DescribeLogDirsResponse {
        if self.version >= LOG_DIRS_ERROR_FROM {
            return DescribeLogDirsResponse::default().with_error_code(self.code);
        }
        let dir = DescribeLogDirsResult::default().with_error_code(self.code);
        DescribeLogDirsResponse::default().with_results(vec![dir])
    }

    pub(super) fn describe_topic_partitions(
        &self,
        request: &DescribeTopicPartitionsRequest,
    ) -> DescribeTopicPartitionsResponse {
        let topics = each(&request.topics, |topic| {
            DescribeTopicPartitionsResponseTopic::default()
                .with_name(Some(topic.name.clone()))
                .with_error_code(self.code)
        });
        DescribeTopicPartitionsResponse::default().with_topics(topics)
    }
}
