"""Makes the golden chunks again: pip install the packages named in README.md, then python golden.py.

Every batch is made by its implementation from the records below; Millstream has no part in it.
"""

import json
import os
import socket
import struct
import subprocess
from pathlib import Path

import confluent_kafka
import kafka
from kafka.record.default_records import DefaultRecordBatchBuilder

JAVA_VERSION = "3.9.1"
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
BASE_TIMESTAMP = 1_700_000_000_000
# More than a block of snappy-java; a length of three bytes.
LONG = b"the water runs and the mill stands; " * 1100

# timestamp, key, value, headers
MIXED = [
    (BASE_TIMESTAMP, b"key", b"value", []),
    (BASE_TIMESTAMP + 1, None, b"no key", []),
    (BASE_TIMESTAMP - 5000, b"earlier, no value", None, []),
    (BASE_TIMESTAMP + 1, None, None, []),
    (BASE_TIMESTAMP + 86_400_000, b"", b"", [("empty", b"")]),
    (BASE_TIMESTAMP + 2, b"\x00\xff", b"\x80\x81", [("k.city", "Zürich".encode()), ("k.null", None)]),
    (BASE_TIMESTAMP + 3, b"many", b"headers", [("h", bytes([n])) for n in range(100)]),
    (BASE_TIMESTAMP + 4, b"long", LONG, [("again", b"1"), ("again", b"2")]),
]
# Offset deltas and lengths of two bytes.
MANY = [(BASE_TIMESTAMP + n, b"%d" % n, b"value %d" % n, []) for n in range(300)]
CASES = {"mixed": MIXED, "many": MANY}

chunks = {}


def store(implementation, version, case, codec, batch, producer=(-1, -1, -1), transactional=False):
    name = f"{implementation}-{case}-{codec}"
    Path(f"{name}.bin").write_bytes(batch)
    chunks[name] = {
        "version": version,
        "case": case,
        "compression": codec,
        "transactional": transactional,
        "producer": producer,
    }


def expected(records):
    """Bytes as hexadecimal digits."""
    return [
        {
            "timestamp": timestamp,
            "key": None if key is None else key.hex(),
            "value": None if value is None else value.hex(),
            "headers": [[name.encode().hex(), None if value is None else value.hex()] for name, value in headers],
        }
        for timestamp, key, value, headers in records
    ]


def lines(answers):
    """JSON with a line for each chunk and each record."""
    return json.dumps(answers).replace("}, ", "},\n")


def kafka_python():
    for codec, attributes in CODECS.items():
        for case, records in CASES.items():
            producer = (4_000_000_000, 7, 2_147_483_000) if case == "many" else (-1, -1, -1)
            builder = DefaultRecordBatchBuilder(2, attributes, case == "many", *producer, 1 << 20)
            for offset, (timestamp, key, value, headers) in enumerate(records):
                builder.append(offset, timestamp, key, value, headers)
            batch = bytes(builder.build())
            store("kafka-python", kafka.__version__, case, codec, batch, producer, case == "many")


def librdkafka():
    """Produces to the mock broker in librdkafka itself, and fetches the bytes from there."""
    for codec in CODECS:
        for case, records in CASES.items():
            producer = confluent_kafka.Producer(
                {"test.mock.num.brokers": 1, "compression.type": codec, "linger.ms": 1000,
                 "enable.idempotence": False, "bootstrap.servers": "mock"})
            topic = f"{case}-{codec}"
            broker = next(iter(producer.list_topics(topic, 10).brokers.values()))
            for timestamp, key, value, headers in records:
                producer.produce(topic, key=key, value=value, headers=headers, timestamp=timestamp, partition=0)
            producer.flush(10)
            batch = fetch(broker.host, broker.port, topic)
            store("librdkafka", confluent_kafka.libversion()[0], case, codec, batch)


def fetch(host, port, topic):
    """The record batches of partition 0, by a Fetch request of version 4."""
    name = topic.encode()
    request = struct.pack(">hhih", 1, 4, 1, -1)  # api key, version, correlation id, no client id
    request += struct.pack(">iiiib", -1, 1000, 1, 1 << 24, 0)  # replica, wait, bytes, isolation
    request += struct.pack(f">ih{len(name)}s", 1, len(name), name)
    request += struct.pack(">iiqi", 1, 0, 0, 1 << 24)  # partition 0 from offset 0
    with socket.create_connection((host, port)) as connection, connection.makefile("rb") as answer:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", answer.read(4))
        body = answer.read(size)
    # correlation id, throttle time, 1 topic, its name, 1 partition, index, error, watermarks
    at = 4 + 4 + 4 + 2 + len(name) + 4 + 4 + 2 + 8 + 8
    (aborted,) = struct.unpack_from(">i", body, at)
    at += 4 + 16 * max(aborted, 0)
    (length,) = struct.unpack_from(">i", body, at)
    return body[at + 4 : at + 4 + length]


def java():
    """Golden.java reads what kafka-python wrote, with Kafka's classes, and writes it again."""
    for case in CASES:
        for codec in CODECS:
            command = ["java", "-cp", os.environ["KAFKA_CLASSPATH"], "Golden.java"]
            source = Path(f"kafka-python-{case}-none.bin").read_bytes()
            done = subprocess.run([*command, codec], input=source, capture_output=True, check=True)
            store("java", JAVA_VERSION, case, codec, done.stdout)


kafka_python()
librdkafka()
java()
cases = {case: expected(records) for case, records in CASES.items()}
Path("expected.json").write_text(f'{{"chunks": {lines(chunks)},\n"cases": {lines(cases)}}}\n')
