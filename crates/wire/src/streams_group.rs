//! The messages of groups of Kafka Streams (KIP-1071), which the crate with Kafka's generated messages lacks. All
//! versions of them are flexible.

use kafka_protocol::protocol::StrBytes;

use crate::native::{native, nullable};

native! {
    /// Kafka's StreamsGroupHeartbeat. What is `None` has not changed since the last one.
    StreamsGroupHeartbeatRequest {
        /// The group.
        group_id: StrBytes,
        /// The member, which has given itself its id.
        member_id: StrBytes,
        /// The member's epoch; 0 to join, -1 to leave, -2 for a static member that will come back.
        member_epoch: i32,
        /// The newest endpoints that the member knows.
        endpoint_information_epoch: i32,
        /// The id of a static member.
        instance_id: Option<StrBytes>,
        /// The member's rack.
        rack_id: Option<StrBytes>,
        /// How long the member may take to give up tasks, in milliseconds; -1 if that has not changed.
        rebalance_timeout_ms: i32,
        /// The topology of the application; a member sends it when it joins.
        topology: Option<StreamsTopology>,
        /// The active tasks that the member owns.
        active_tasks: Option<Vec<StreamsTasks>>,
        /// The standby tasks that the member owns.
        standby_tasks: Option<Vec<StreamsTasks>>,
        /// The warm-up tasks that the member owns.
        warmup_tasks: Option<Vec<StreamsTasks>>,
        /// The process of the member, which may have several members.
        process_id: Option<StrBytes>,
        /// Where other processes find the member for interactive queries.
        user_endpoint: Option<StreamsEndpoint>,
        /// Tags of the member.
        client_tags: Option<Vec<StreamsKeyValue>>,
        /// How far the member has read the changelogs of its tasks.
        task_offsets: Option<Vec<StreamsTaskOffset>>,
        /// The ends of these changelogs.
        task_end_offsets: Option<Vec<StreamsTaskOffset>>,
        /// Whether all members are to shut down.
        shutdown_application: bool,
    }

    /// The topology of an application.
    StreamsTopology {
        /// Grows with each change of the topology.
        epoch: i32,
        /// The parts that are connected by topics alone.
        subtopologies: Vec<StreamsSubtopology>,
    }

    /// A part of a topology. Each partition of its sources is a task.
    StreamsSubtopology {
        /// The id of the part.
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
        /// Sources that must have equally many partitions.
        copartition_groups: Vec<StreamsCopartitionGroup>,
    }

    /// Sources of a subtopology that must have equally many partitions, by their places in its lists.
    StreamsCopartitionGroup {
        /// Of the topics.
        source_topics: Vec<i16>,
        /// Of the regular expressions.
        source_topic_regex: Vec<i16>,
        /// Of the repartition topics.
        repartition_source_topics: Vec<i16>,
    }

    /// A topic that the broker makes for the application.
    StreamsTopicInfo {
        /// The name of the topic.
        name: StrBytes,
        /// How many partitions it has; 0 if that follows from the topology.
        partitions: i32,
        /// How many replicas it has; 0 for the broker's default.
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

    /// Where a member is found.
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

    /// A place in the changelogs of a task.
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
        /// How long the client is to wait before it goes on, in milliseconds.
        throttle_time_ms: i32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// The member.
        member_id: StrBytes,
        /// The member's epoch.
        member_epoch: i32,
        /// How often the member is to send a heartbeat, in milliseconds.
        heartbeat_interval_ms: i32,
        /// How far a warm-up task may be behind to count as ready.
        acceptable_recovery_lag: i32,
        /// How often the member is to tell how far its tasks are, in milliseconds.
        task_offset_interval_ms: i32,
        /// What keeps the group from its work.
        status: Option<Vec<StreamsStatus>>,
        /// The member's active tasks; `None` if they have not changed.
        active_tasks: Option<Vec<StreamsTasks>>,
        /// The member's standby tasks; `None` if they have not changed.
        standby_tasks: Option<Vec<StreamsTasks>>,
        /// The member's warm-up tasks; `None` if they have not changed.
        warmup_tasks: Option<Vec<StreamsTasks>>,
        /// The epoch of `partitions_by_user_endpoint`.
        endpoint_information_epoch: i32,
        /// The partitions that each endpoint has; `None` if they have not changed.
        partitions_by_user_endpoint: Option<Vec<StreamsEndpointPartitions>>,
    }

    /// What keeps a group from its work.
    StreamsStatus {
        /// 0 stale topology, 1 missing sources, 2 wrongly partitioned topics, 3 missing internal topics, 4 shutdown.
        status_code: i8,
        /// In words.
        status_detail: StrBytes,
    }

    /// The partitions of the tasks at an endpoint.
    StreamsEndpointPartitions {
        /// The endpoint.
        user_endpoint: StreamsEndpoint,
        /// Of its active tasks.
        active_partitions: Vec<StreamsTopicPartitions>,
        /// Of its standby tasks.
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
        /// Whether to tell what the client may do to each group.
        include_authorized_operations: bool,
    }

    /// Answers [`StreamsGroupDescribeRequest`].
    #[derive(Default)]
    StreamsGroupDescribeResponse {
        /// How long the client is to wait before it goes on, in milliseconds.
        throttle_time_ms: i32,
        /// One for each group.
        groups: Vec<DescribedStreamsGroup>,
    }

    /// A group, or why it is not described.
    DescribedStreamsGroup {
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// The group.
        group_id: StrBytes,
        /// The state; empty with an error.
        group_state: StrBytes,
        /// The epoch of the group.
        group_epoch: i32,
        /// The epoch of its assignment.
        assignment_epoch: i32,
        /// The topology of the application.
        topology: Option<DescribedTopology>,
        /// The members.
        members: Vec<DescribedStreamsMember>,
        /// What the client may do, a bit for each operation.
        authorized_operations: i32,
    }

    /// The topology of a group.
    DescribedTopology {
        /// The epoch of the topology.
        epoch: i32,
        /// Its parts.
        subtopologies: Option<Vec<DescribedSubtopology>>,
    }

    /// A part of the topology of a group.
    DescribedSubtopology {
        /// The id of the part.
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
        /// What its client calls itself.
        client_id: StrBytes,
        /// Where it comes from.
        client_host: StrBytes,
        /// The epoch of its topology.
        topology_epoch: i32,
        /// Its process.
        process_id: StrBytes,
        /// Where it is found.
        user_endpoint: Option<StreamsEndpoint>,
        /// Its tags.
        client_tags: Vec<StreamsKeyValue>,
        /// How far it has read the changelogs of its tasks.
        task_offsets: Vec<StreamsTaskOffset>,
        /// The ends of these changelogs.
        task_end_offsets: Vec<StreamsTaskOffset>,
        /// Its tasks.
        assignment: StreamsAssignment,
        /// The tasks that it is to have.
        target_assignment: StreamsAssignment,
        /// Whether it uses the protocol of classic groups.
        is_classic: bool,
    }

    /// Tasks of a member.
    #[derive(Default)]
    StreamsAssignment {
        /// Those that it works on.
        active_tasks: Vec<StreamsTasks>,
        /// Those whose state it copies.
        standby_tasks: Vec<StreamsTasks>,
        /// Those whose state it copies in order to take them over.
        warmup_tasks: Vec<StreamsTasks>,
    }
}

nullable!(StreamsTopology, StreamsEndpoint, DescribedTopology);

impl DescribedStreamsGroup {
    /// Nothing but the name of a group.
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

/// The client did not ask what it may do.
const NO_OPERATIONS: i32 = i32::MIN;
