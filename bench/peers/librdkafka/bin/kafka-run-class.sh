#!/usr/bin/env bash
# kafka-run-class.sh of Kafka, which librdkafka's tests call: runs a class of Kafka's jars.
exec java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$(dirname "$0")/../../../../target/peers/kafka/lib/*" "$@"
