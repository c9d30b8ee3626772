#!/usr/bin/env bash
# kafka-topics.sh of Kafka, which librdkafka's tests call.
exec "$(dirname "$0")/kafka-run-class.sh" org.apache.kafka.tools.TopicCommand "$@"
