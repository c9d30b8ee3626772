//! The messages of groups of Kafka Streams (KIP-1071), which the generated messages lack. All versions are flexible.

use kafka_protocol::protocol::StrBytes;

use crate::native::{messages, nullable};

messages! {
    /// Kafka's StreamsGroupHeartbeat. A field that is `None` has not changed since the last heartbeat.
    StreamsGroupHeartbeatRequest {
        /// The group.
        group_id: StrBytes,
        /// The id of the member, which the member chose itself.
        member_id: StrBytes,
        /// The member's epoch; 0 to join, -1 to leave, -2 for a static member that will come back.
        member_epoch: i32,
        /// The epoch of the newest endpoints that the member knows.
        endpoint_information_epoch: i32,
        /// The id of a static member.
        instance_id: Option<StrBytes>,
        /// The member's rack.
        rack_id: Option<StrBytes>,
        /// How long the member may take to give up tasks, in milliseconds; -1 if unchanged.
        rebalance_timeout_ms: i32,
        /// The topology of the application; a member sends it when it joins.
        topology: Option<StreamsTopology>,
        /// The active tasks that the member owns.
        active_tasks: Option<Vec<StreamsTasks>>,
        /// The standby tasks that the member owns.
        standby_tasks: Option<Vec<StreamsTasks>>,
        /// The warm-up tasks that the member owns.
        warmup_tasks: Option<Vec<StreamsTasks>>,
        /// The id of the member's process, which several members may share.
        process_id: Option<StrBytes>,
        /// The member's address for interactive queries.
        user_endpoint: Option<StreamsEndpoint>,
        /// The tags of the member.
        client_tags: Option<Vec<StreamsKeyValue>>,
        /// The member's positions in the changelogs of its tasks.
        task_offsets: Option<Vec<StreamsTaskOffset>>,
        /// The ends of these changelogs.
        task_end_offsets: Option<Vec<StreamsTaskOffset>>,
        /// Whether all members must shut down.
        shutdown_application: bool,
    }

    /// The topology of an application.
    StreamsTopology {
        /// The topology's epoch, which grows with each change.
        epoch: i32,
        /// The subtopologies, which only topics connect.
        subtopologies: Vec<StreamsSubtopology>,
    }

    /// A subtopology. Each partition of its sources is a task.
    StreamsSubtopology {
        /// The id of the subtopology.
        subtopology_id: StrBytes,
        /// The topics that it reads.
        source_topics: Vec<StrBytes>,
        /// Regular expressions of topics that it reads.
        source_topic_regex: Vec<StrBytes>,
        /// The changelogs of its state.
        state_changelog_topics: Vec<StreamsTopicInfo>,
        /// The repartition topics that it writes.
        repartition_sink_topics: Vec<StrBytes>,
        /// The repartition topics that it reads.
        repartition_source_topics: Vec<StreamsTopicInfo>,
        /// Sources that must have the same number of partitions.
        copartition_groups: Vec<StreamsCopartitionGroup>,
    }

    /// Sources of a subtopology that must have the same number of partitions, as indexes into its lists.
    StreamsCopartitionGroup {
        /// Indexes into the topics.
        source_topics: Vec<i16>,
        /// Indexes into the regular expressions.
        source_topic_regex: Vec<i16>,
        /// Indexes into the repartition topics.
        repartition_source_topics: Vec<i16>,
    }

    /// A topic that the broker creates for the application.
    StreamsTopicInfo {
        /// The name of the topic.
        name: StrBytes,
        /// The number of partitions; 0 to derive it from the topology.
        partitions: i32,
        /// The number of replicas; 0 for the broker's default.
        replication_factor: i16,
        /// Its settings.
        topic_configs: Vec<StreamsKeyValue>,
    }

    /// A name and a value.
    StreamsKeyValue {
        /// The name.
        key: StrBytes,
        /// The value.
        value: StrBytes,
    }

    /// The address of a member.
    StreamsEndpoint {
        /// The host.
        host: StrBytes,
        /// The port.
        port: u16,
    }

    /// Tasks of a subtopology.
    StreamsTasks {
        /// The subtopology.
        subtopology_id: StrBytes,
        /// The partitions of its sources.
        partitions: Vec<i32>,
    }

    /// A position in the changelogs of a task.
    StreamsTaskOffset {
        /// The subtopology.
        subtopology_id: StrBytes,
        /// The partition of its sources.
        partition: i32,
        /// The sum of the offsets in the task's changelogs.
        offset: i64,
    }

    /// Answers [`StreamsGroupHeartbeatRequest`].
    #[derive(Default)]
    StreamsGroupHeartbeatResponse {
        /// How long the client must wait before its next request, in milliseconds.
        throttle_time_ms: i32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// The description of the error.
        error_message: Option<StrBytes>,
        /// The member.
        member_id: StrBytes,
        /// The member's epoch.
        member_epoch: i32,
        /// The interval of the member's heartbeats, in milliseconds.
        heartbeat_interval_ms: i32,
        /// The greatest lag of a warm-up task that counts as ready.
        acceptable_recovery_lag: i32,
        /// The interval at which the member reports its tasks' positions, in milliseconds.
        task_offset_interval_ms: i32,
        /// The reasons why the group does not work.
        status: Option<Vec<StreamsStatus>>,
        /// The member's active tasks; `None` if they have not changed.
        active_tasks: Option<Vec<StreamsTasks>>,
        /// The member's standby tasks; `None` if they have not changed.
        standby_tasks: Option<Vec<StreamsTasks>>,
        /// The member's warm-up tasks; `None` if they have not changed.
        warmup_tasks: Option<Vec<StreamsTasks>>,
        /// The epoch of `partitions_by_user_endpoint`.
        endpoint_information_epoch: i32,
        /// The partitions of each endpoint; `None` if they have not changed.
        partitions_by_user_endpoint: Option<Vec<StreamsEndpointPartitions>>,
    }

    /// A reason why a group does not work.
    StreamsStatus {
        /// 0 stale topology, 1 missing sources, 2 wrongly partitioned topics, 3 missing internal topics, 4 shutdown.
        status_code: i8,
        /// The description of the reason.
        status_detail: StrBytes,
    }

    /// The partitions of the tasks at an endpoint.
    StreamsEndpointPartitions {
        /// The endpoint.
        user_endpoint: StreamsEndpoint,
        /// The partitions of its active tasks.
        active_partitions: Vec<StreamsTopicPartitions>,
        /// The partitions of its standby tasks.
        standby_partitions: Vec<StreamsTopicPartitions>,
    }

    /// Partitions of a topic.
    StreamsTopicPartitions {
        /// The topic.
        topic: StrBytes,
        /// The partitions.
        partitions: Vec<i32>,
    }

    /// Kafka's StreamsGroupDescribe.
    StreamsGroupDescribeRequest {
        /// The groups.
        group_ids: Vec<StrBytes>,
        /// Whether the answer includes the operations that the client may perform on each group.
        include_authorized_operations: bool,
    }

    /// Answers [`StreamsGroupDescribeRequest`].
    #[derive(Default)]
    StreamsGroupDescribeResponse {
        /// How long the client must wait before its next request, in milliseconds.
        throttle_time_ms: i32,
        /// One element for each group.
        groups: Vec<DescribedStreamsGroup>,
    }

    /// The description of a group, or an error.
    DescribedStreamsGroup {
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// The description of the error.
        error_message: Option<StrBytes>,
        /// The group.
        group_id: StrBytes,
        /// The state; empty after an error.
        group_state: StrBytes,
        /// The epoch of the group.
        group_epoch: i32,
        /// The epoch of its assignment.
        assignment_epoch: i32,
        /// The topology of the application.
        topology: Option<DescribedTopology>,
        /// The members.
        members: Vec<DescribedStreamsMember>,
        /// The operations that the client may perform, one bit each.
        authorized_operations: i32,
    }

    /// The topology of a group.
    DescribedTopology {
        /// The epoch of the topology.
        epoch: i32,
        /// Its subtopologies.
        subtopologies: Option<Vec<DescribedSubtopology>>,
    }

    /// A subtopology of a group.
    DescribedSubtopology {
        /// The id of the subtopology.
        subtopology_id: StrBytes,
        /// The topics that it reads.
        source_topics: Vec<StrBytes>,
        /// The repartition topics that it writes.
        repartition_sink_topics: Vec<StrBytes>,
        /// The changelogs of its state.
        state_changelog_topics: Vec<StreamsTopicInfo>,
        /// The repartition topics that it reads.
        repartition_source_topics: Vec<StreamsTopicInfo>,
    }

    /// A member of a group.
    DescribedStreamsMember {
        /// The member.
        member_id: StrBytes,
        /// Its epoch.
        member_epoch: i32,
        /// The id of a static member.
        instance_id: Option<StrBytes>,
        /// Its rack.
        rack_id: Option<StrBytes>,
        /// The id of its client.
        client_id: StrBytes,
        /// The host of its client.
        client_host: StrBytes,
        /// The epoch of its topology.
        topology_epoch: i32,
        /// Its process.
        process_id: StrBytes,
        /// Its address.
        user_endpoint: Option<StreamsEndpoint>,
        /// Its tags.
        client_tags: Vec<StreamsKeyValue>,
        /// Its positions in the changelogs of its tasks.
        task_offsets: Vec<StreamsTaskOffset>,
        /// The ends of these changelogs.
        task_end_offsets: Vec<StreamsTaskOffset>,
        /// Its tasks.
        assignment: StreamsAssignment,
        /// The tasks that the group's newest assignment gives to it.
        target_assignment: StreamsAssignment,
        /// Whether it uses the protocol of classic groups.
        is_classic: bool,
    }

    /// Tasks of a member.
    #[derive(Default)]
    StreamsAssignment {
        /// The tasks whose records it processes.
        active_tasks: Vec<StreamsTasks>,
        /// The tasks whose state it replicates.
        standby_tasks: Vec<StreamsTasks>,
        /// The tasks whose state it replicates in order to take them over.
        warmup_tasks: Vec<StreamsTasks>,
    }
}

nullable!(StreamsTopology, StreamsEndpoint, DescribedTopology);

impl DescribedStreamsGroup {
    /// Returns a description with only the id of the group.
    pub fn empty(group_id: StrBytes) -> DescribedStreamsGroup {
        DescribedStreamsGroup {
            error_code: 0,
            error_message: None,
            group_id,
            group_state: StrBytes::default(),
            group_epoch: 0,
            assignment_epoch: 0,
            topology: None,
            members: Vec::new(),
            authorized_operations: NO_OPERATIONS,
        }
    }
}

/// The value of `authorized_operations` if the client did not ask for them.
const NO_OPERATIONS: i32 = i32::MIN;
