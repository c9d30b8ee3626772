"""Apache Kafka's own command-line tools, one after the other, each with its expected output."""

import json
import subprocess
import time

import pytest

import processes
from clients import consumer, producer
from jvm import java

# The id of the broker under test.
BROKER = "1"

TOOLS = "org.apache.kafka.tools"
MAINS = {
    "kafka-acls": f"{TOOLS}.AclCommand",
    "kafka-broker-api-versions": f"{TOOLS}.BrokerApiVersionsCommand",
    "kafka-client-metrics": f"{TOOLS}.ClientMetricsCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": f"{TOOLS}.consumer.ConsoleConsumer",
    "kafka-console-producer": f"{TOOLS}.ConsoleProducer",
    "kafka-console-share-consumer": f"{TOOLS}.consumer.ConsoleShareConsumer",
    "kafka-consumer-groups": f"{TOOLS}.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": f"{TOOLS}.ConsumerPerformance",
    "kafka-delete-records": f"{TOOLS}.DeleteRecordsCommand",
    "kafka-features": f"{TOOLS}.FeatureCommand",
    "kafka-get-offsets": f"{TOOLS}.GetOffsetShell",
    "kafka-groups": f"{TOOLS}.GroupsCommand",
    "kafka-leader-election": f"{TOOLS}.LeaderElectionCommand",
    "kafka-log-dirs": f"{TOOLS}.LogDirsCommand",
    "kafka-metadata-quorum": f"{TOOLS}.MetadataQuorumCommand",
    "kafka-producer-perf-test": f"{TOOLS}.ProducerPerformance",
    "kafka-reassign-partitions": f"{TOOLS}.reassign.ReassignPartitionsCommand",
    "kafka-share-consumer-perf-test": f"{TOOLS}.ShareConsumerPerformance",
    "kafka-share-groups": f"{TOOLS}.consumer.group.ShareGroupCommand",
    "kafka-topics": f"{TOOLS}.TopicCommand",
    "kafka-transactions": f"{TOOLS}.TransactionsCommand",
    "kafka-verifiable-consumer": f"{TOOLS}.VerifiableConsumer",
    "kafka-verifiable-producer": f"{TOOLS}.VerifiableProducer",
    "kafka-verifiable-share-consumer": f"{TOOLS}.VerifiableShareConsumer",
}

# These tools print their results when their JVM ends.
ALONE = [
    "kafka-verifiable-consumer",
    "kafka-verifiable-producer",
    "kafka-verifiable-share-consumer",
]
SECONDS_MAX = 60
MEMORY = "-Xmx256m"


class Tools:
    """Runs Kafka's tools in one JVM against one server."""

    def __init__(self, address):
        self.address = address
        self.java = processes.start(
            java("tools", MEMORY, "Tools"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, tool, *args, given=""):
        """Runs a tool; returns its exit code and all that it prints."""
        asked = {
            "main": MAINS[tool],
            "args": ["--bootstrap-server", self.address, *map(str, args)],
            "input": given,
        }
        if tool == "kafka-producer-perf-test":
            props = ["--producer-props", f"bootstrap.servers={self.address}"]
            asked["args"] = [*map(str, args), *props]
        if tool in ALONE:
            done = processes.run(
                java("tools", MEMORY, asked["main"], *asked["args"]),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=SECONDS_MAX,
            )
            return done.returncode, done.stdout
        self.java.stdin.write(json.dumps(asked) + "\n")
        self.java.stdin.flush()
        answer = json.loads(self.java.stdout.readline())
        return answer["code"], answer["said"]

    def run(self, tool, *args, says=(), given=""):
        """Runs a tool, which must end well and print each of these; returns all that it prints."""
        code, said = self.ask(tool, *args, given=given)
        assert code == 0, f"{tool} {args} ended with {code}:\n{said}"
        for expected in says:
            assert expected in said, f"{tool} {args} does not say {expected!r}:\n{said}"
        return said

    def refused(self, tool, *args, says):
        """Runs a tool, which must fail and say why."""
        code, said = self.ask(tool, *args)
        assert code != 0, f"{tool} {args} did not fail:\n{said}"
        assert says in said, f"{tool} {args} does not say {says!r}:\n{said}"

    def close(self):
        self.java.stdin.close()
        self.java.stdout.close()
        self.java.wait(20)


@pytest.fixture
def tools(own_server):
    tools = Tools(own_server.address)
    yield tools
    tools.close()


def test_topics_and_their_settings(tools):
    topics = ["kafka-topics", "--topic", "t"]
    create = ["--create", "--partitions", 2, "--config", "flush.messages=1"]
    tools.run(*topics, *create, says=["Created topic t."])
    tools.refused(*topics, "--create", says="exists already")
    assert tools.run("kafka-topics", "--list").split() == ["t"]
    facts = ["PartitionCount: 2", "ReplicationFactor: 1", "flush.messages=1", f"Leader: {BROKER}"]
    tools.run(*topics, "--describe", says=facts)
    tools.run(*topics, "--alter", "--partitions", 3)
    tools.run(*topics, "--describe", says=["PartitionCount: 3"])

    configs = ["kafka-configs", "--entity-type", "topics", "--entity-name", "t"]
    done = "Completed updating config for topic t."
    added = "retention.ms=100000,compression.type=zstd,message.timestamp.type=LogAppendTime"
    tools.run(*configs, "--alter", "--add-config", added, says=[done])
    tools.run(*configs, "--describe", says=added.split(","))
    tools.run(*configs, "--alter", "--delete-config", "retention.ms", says=[done])
    assert "retention.ms=100000" not in tools.run(*configs, "--describe")
    compact = ["--alter", "--add-config", "cleanup.policy=compact"]
    tools.run(*configs, *compact, says=[done])
    # Kafka Connect starts only if the client for administration shows this for its topics.
    tools.run(*configs, "--describe", says=["cleanup.policy=compact"])
    tools.refused(*topics, "--alter", "--partitions", 4, says="millstream stream copy t NEW")
    tools.refused(*configs, "--alter", "--add-config", "retention.mss=1", says="retention.ms?")

    tools.run(*configs, "--alter", "--delete-config", "cleanup.policy", says=[done])
    # Consumers see the records as the settings of the topic define.
    tools.run("kafka-console-producer", "--topic", "t", given="a\nb\n")
    consume = ["--topic", "t", "--from-beginning", "--max-messages", 2, "--timeout-ms", 20_000]
    shown = ["--formatter-property", "print.timestamp=true"]
    said = tools.run("kafka-console-consumer", *consume, *shown)
    assert said.count("LogAppendTime:") == 2, said

    tools.run(*topics, "--delete")
    # It came with the consumer's group, as with Kafka.
    assert tools.run("kafka-topics", "--list").split() == ["__consumer_offsets"]
    assert tools.run("kafka-topics", "--list", "--exclude-internal").split() == []


def test_settings_of_brokers_groups_users_and_addresses(tools):
    def configs(kind, name, *args, says=()):
        entity = ["--entity-type", kind, *(["--entity-name", name] if name else ["--entity-default"])]
        return tools.run("kafka-configs", *entity, *args, says=says)

    everything = configs("brokers", BROKER, "--describe", "--all")
    for setting in ["node.id=1", "log.retention.ms=-1", "listeners=PLAINTEXT://", "log.dirs=/"]:
        assert setting in everything, everything
    retention = "log.retention.ms=86400000"
    configs("brokers", None, "--alter", "--add-config", retention, says=["Completed updating"])
    configs("brokers", None, "--describe", says=[retention])
    inherited = f"DYNAMIC_DEFAULT_BROKER_CONFIG:{retention}"
    configs("brokers", BROKER, "--describe", "--all", says=[inherited])
    fixed = ["--entity-type", "brokers", "--entity-name", BROKER, "--alter", "--add-config"]
    tools.refused("kafka-configs", *fixed, "num.partitions=3", says="num.partitions")

    session = "consumer.session.timeout.ms=50000"
    configs("groups", "g", "--alter", "--add-config", session, says=["for group g."])
    configs("groups", "g", "--describe", says=[session])

    configs("broker-loggers", BROKER, "--describe", says=["root=WARN", "millstream_log=WARN"])
    level = "millstream_log=DEBUG"
    configs("broker-loggers", BROKER, "--alter", "--add-config", level, says=["Completed"])
    configs("broker-loggers", BROKER, "--describe", says=["root=WARN", level])

    rate = "producer_byte_rate=1000000"
    configs("users", "alice", "--alter", "--add-config", rate, says=["for user alice."])
    scram = "SCRAM-SHA-256=[iterations=4096,password=secret]"
    configs("users", "alice", "--alter", "--add-config", scram, says=["for user alice."])
    shown = configs("users", "alice", "--describe")
    assert "producer_byte_rate=1000000" in shown and "iterations=4096" in shown, shown

    rate = "connection_creation_rate=1000"
    configs("ips", "127.0.0.1", "--alter", "--add-config", rate, says=["for ip 127.0.0.1."])
    configs("ips", None, "--alter", "--add-config", "connection_creation_rate=2000")
    shown = f"Quota configs for ip '127.0.0.1' are {rate}.0"
    configs("ips", "127.0.0.1", "--describe", says=[shown])
    default = "Quota configs for the default ip are connection_creation_rate=2000.0"
    tools.run("kafka-configs", "--entity-type", "ips", "--describe", says=[shown, default])
    configs("ips", "127.0.0.1", "--alter", "--delete-config", "connection_creation_rate")
    assert "rate" not in configs("ips", "127.0.0.1", "--describe")
    many = ["--entity-type", "ips", "--entity-name", "10.0.0.1", "--alter", "--add-config"]
    tools.refused("kafka-configs", *many, "connection_creation_rate=0", says="1 to 2,147,483,647")

    metrics = ["kafka-client-metrics", "--name", "m"]
    chosen = ["--metrics", "org.apache.kafka.producer.", "--interval", 10_000]
    tools.run(*metrics, "--alter", *chosen, says=["Altered client metrics config for m."])
    assert tools.run("kafka-client-metrics", "--list").split() == ["m"]
    tools.run(*metrics, "--describe", says=["interval.ms=10000"])
    tools.run(*metrics, "--delete", says=["Deleted client metrics config for m."])
    assert tools.run("kafka-client-metrics", "--list").split() == []


def test_metrics_of_clients(tools):
    tools.run("kafka-topics", "--create", "--topic", "t")
    tools.run("kafka-topics", "--create", "--topic", "otlp_metrics")
    every = ["--alter", "--name", "all", "--metrics", "*", "--interval", 200]
    tools.run("kafka-client-metrics", *every)
    thirty = ["--topic", "t", "--max-messages", 30, "--throughput", 10]
    tools.run("kafka-verifiable-producer", *thirty)
    client = producer(tools.address)
    reports = consumer(tools.address, "metrics", enable_metrics_push=False)
    reports.subscribe(["otlp_metrics"])
    expected, seen = {"apache-kafka-java", "confluent-kafka-python"}, set()
    end = time.monotonic() + SECONDS_MAX
    while not expected <= seen:
        assert time.monotonic() < end, seen
        client.produce("t", b"value")
        client.poll(0)
        report = reports.poll(0.2)
        if report is not None and b"producer" in report.value():
            software = dict(report.headers())["client_software_name"].decode()
            seen.update(name for name in expected if software.startswith(name))
    client.flush()
    reports.close()


def test_records_and_groups(tools, tmp_path):
    tools.run("kafka-topics", "--create", "--topic", "t", "--partitions", 1)
    produced = tools.run("kafka-verifiable-producer", "--topic", "t", "--max-messages", 10)
    assert '"acked":10' in produced, produced
    tools.run("kafka-get-offsets", "--topic", "t", says=["t:0:10"])
    ten = ["--topic", "t", "--max-messages", 10]
    consume = ["--group-id", "g", "--reset-policy", "earliest"]
    consumed = tools.run("kafka-verifiable-consumer", *ten, *consume)
    counts = [line for line in consumed.splitlines() if '"records_consumed"' in line]
    assert sum(json.loads(line)["count"] for line in counts) == 10, consumed
    tools.run("kafka-console-consumer", *ten, "--group", "h", "--from-beginning")

    groups = "kafka-consumer-groups"
    assert set(tools.run(groups, "--list").split()) == {"g", "h"}
    said = tools.run(groups, "--describe", "--group", "g")
    row = next(line for line in said.splitlines() if line.startswith("g "))
    assert row.split()[1:6] == ["t", "0", "10", "10", "0"], said
    tools.run(groups, "--describe", "--all-groups", "--state", says=["Empty"])
    reset = ["--reset-offsets", "--to-earliest", "--execute", "--topic", "t"]
    tools.run(groups, "--group", "g", *reset)
    said = tools.run(groups, "--describe", "--group", "g")
    row = next(line for line in said.splitlines() if line.startswith("g "))
    assert row.split()[1:6] == ["t", "0", "0", "10", "10"], said
    tools.run("kafka-groups", "--list", says=["GROUP", "g ", "Classic"])
    tools.run(groups, "--delete", "--group", "h", says=["('h') was successful"])

    offsets = tmp_path / "offsets.json"
    place = {"topic": "t", "partition": 0, "offset": 3}
    offsets.write_text(json.dumps({"version": 1, "partitions": [place]}))
    deleted = ["--offset-json-file", offsets]
    tools.run("kafka-delete-records", *deleted, says=["low_watermark: 3"])
    tools.run("kafka-get-offsets", "--topic", "t", "--time", "earliest", says=["t:0:3"])

    size = ["--num-records", 2000, "--record-size", 100, "--throughput", -1]
    tools.run("kafka-producer-perf-test", "--topic", "t", *size, says=["2000 records sent"])
    read = ["--topic", "t", "--num-records", 2000, "--timeout", 20_000]
    said = tools.run("kafka-consumer-perf-test", *read, says=["nMsg.sec"])
    assert int(said.splitlines()[-1].split(", ")[4]) >= 2000, said


def test_share_groups(tools):
    tools.run("kafka-topics", "--create", "--topic", "t", "--partitions", 1)
    tools.run("kafka-verifiable-producer", "--topic", "t", "--max-messages", 10)
    earliest = ["--alter", "--add-config", "share.auto.offset.reset=earliest"]
    for group in ["s", "u", "v"]:
        entity = ["--entity-type", "groups", "--entity-name", group]
        tools.run("kafka-configs", *entity, *earliest, says=[f"for group {group}."])
    ten = ["--topic", "t", "--max-messages", 10]
    consumed = tools.run("kafka-verifiable-share-consumer", *ten, "--group-id", "s")
    counts = [line for line in consumed.splitlines() if '"records_consumed"' in line]
    assert sum(json.loads(line)["count"] for line in counts) == 10, consumed
    said = tools.run("kafka-console-share-consumer", *ten, "--group", "u")
    assert "Processed a total of 10 messages" in said, said

    groups = "kafka-share-groups"
    assert set(tools.run(groups, "--list").split()) == {"s", "u"}
    row = ["s", "t", "0", "10"]
    said = tools.run(groups, "--describe", "--group", "s")
    assert any(line.split()[: len(row)] == row for line in said.splitlines()), said
    tools.run(groups, "--describe", "--group", "s", "--state", says=["Empty"])
    reset = ["--reset-offsets", "--to-earliest", "--execute", "--topic", "t"]
    tools.run(groups, "--group", "s", *reset)
    row = ["s", "t", "0", "0"]
    said = tools.run(groups, "--describe", "--group", "s")
    assert any(line.split()[: len(row)] == row for line in said.splitlines()), said
    tools.run("kafka-groups", "--list", "--share", says=["Share"])
    tools.run(groups, "--delete-offsets", "--group", "u", "--topic", "t", says=["Successful"])
    tools.run(groups, "--delete", "--group", "u", says=["successful"])
    assert tools.run(groups, "--list").split() == ["s"]
    # The group does not exist yet.
    tools.run(groups, "--group", "w", *reset)
    row = ["w", "t", "0", "0"]
    said = tools.run(groups, "--describe", "--group", "w")
    assert any(line.split()[: len(row)] == row for line in said.splitlines()), said
    tools.run(groups, "--delete", "--group", "w", says=["successful"])

    read = ["--topic", "t", "--group", "v", "--num-records", 10, "--timeout", 20_000]
    tools.run("kafka-share-consumer-perf-test", *read, says=["nMsg.sec"])


def test_the_cluster(tools, tmp_path):
    tools.run("kafka-topics", "--create", "--topic", "t", "--partitions", 2)
    versions = ["Produce(0)", "ElectLeaders(43)", "ListConfigResources(74)"]
    tools.run("kafka-broker-api-versions", says=versions)

    preferred = ["kafka-leader-election", "--election-type", "preferred"]
    tools.run(*preferred, "--all-topic-partitions")
    one = ["--topic", "t", "--partition", 0]
    tools.run(*preferred, *one, says=["Valid replica already elected for partitions t-0"])

    reassign = "kafka-reassign-partitions"
    plan = tmp_path / "plan.json"

    def write(replicas):
        place = {"topic": "t", "partition": 0, "replicas": replicas}
        plan.write_text(json.dumps({"version": 1, "partitions": [place]}))
        return ["--reassignment-json-file", plan]

    started = "Successfully started partition reassignment for t-0"
    tools.run(reassign, *write([1]), "--execute", "--throttle", 1_000_000, says=[started])
    completed = "Reassignment of partition t-0 is completed."
    cleared = f"Clearing broker-level throttles on broker {BROKER}"
    tools.run(reassign, *write([1]), "--verify", says=[completed, cleared])
    tools.run(reassign, "--list", says=["No partition reassignments found."])
    tools.refused(reassign, *write([9]), "--execute", says="9")

    quorum = "kafka-metadata-quorum"
    tools.run(quorum, "describe", "--status", says=[f"LeaderId:               {BROKER}"])
    tools.run(quorum, "describe", "--replication", says=["Leader"])
    tools.run("kafka-log-dirs", "--describe", says=['"partition":"t-1"'])
    tools.run("kafka-features", "describe", says=["transaction.version"])
    upgraded = "transaction.version was upgraded to 2."
    tools.run("kafka-features", "upgrade", "--feature", "transaction.version=2", says=[upgraded])
    later = ["upgrade", "--feature", "transaction.version=9"]
    tools.refused("kafka-features", *later, says="transaction.version")

    tools.run("kafka-transactions", "list", says=["TransactionalId"])
    producers = ["describe-producers", "--topic", "t", "--partition", 0]
    tools.run("kafka-transactions", *producers, says=["ProducerId"])

    acls = ["kafka-acls", "--topic", "t"]
    rule = ["--allow-principal", "User:alice", "--operation", "Read"]
    tools.run(*acls, "--add", *rule, says=["principal=User:alice", "operation=READ"])
    tools.run(*acls, "--list", says=["principal=User:alice"])
    tools.run(*acls, "--remove", *rule, "--force")
    assert "User:alice" not in tools.run(*acls, "--list")
