#!/usr/bin/env bash
# run.sh prepare DATA PORT: settings and an empty store for Apache Kafka as one node, broker and controller, on
#                           this port of this machine and the next one.
# run.sh start DATA:        that node, in the place of this process.
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
command="$1" data="$2"
classes="$here/../../../target/peers/kafka/lib/*"
log="-Dlog4j2.configurationFile=$here/log4j2.properties"

if [ "$command" = start ]; then
    # As kafka-server-start.sh starts it.
    exec java -Xmx1g -Xms1g -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 \
        -XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true "$log" -cp "$classes" \
        kafka.Kafka "$data/server.properties"
fi

port="$3"
mkdir -p "$data"
# All other settings are Kafka's defaults: in particular, the broker syncs nothing before an answer.
cat >"$data/server.properties" <<SETTINGS
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((port + 1))
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))
advertised.listeners=PLAINTEXT://127.0.0.1:$port
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$data/log
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.segment.delete.delay.ms=1000
SETTINGS
exec java -Xmx256m "$log" -cp "$classes" kafka.tools.StorageTool format --cluster-id bWlsbHN0cmVhbS1iZW5jaA \
    --config "$data/server.properties" >/dev/null
