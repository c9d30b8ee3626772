"""Logins by SASL over TLS, with certificates, and access rules, with each of the libraries."""

import base64
import json
import subprocess
import time
from types import SimpleNamespace

import confluent_kafka
import kafka
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kafka.net.sasl.oauth import AbstractTokenProvider

from certificates import make_authority, make_certificate, openssl
from clients import SECONDS_MAX, take
from conftest import program
from server import Server
from test_java import run_java

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


ISSUER, AUDIENCE = "https://issuer.example", "millstream"
# The server allows clocks to differ by this much, so sessions of tokens last that much longer.
SKEW_SECONDS = 30


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def make_token_key(folder):
    """A key that signs tokens, and the set of keys for the server to check them with."""
    key = folder / "tokens.key"
    openssl("genrsa", "-out", key, "2048")
    modulus = openssl("rsa", "-in", key, "-noout", "-modulus").decode().strip().partition("=")[2]
    public = {"kty": "RSA", "kid": "1", "n": base64url(bytes.fromhex(modulus)), "e": "AQAB"}
    (folder / "tokens.json").write_text(json.dumps({"keys": [public]}))


def token(guarded, user, seconds, audience=AUDIENCE):
    """A token for a session of this number of seconds."""
    end = time.time() + seconds - SKEW_SECONDS
    parts = [
        {"alg": "RS256", "typ": "JWT", "kid": "1"},
        {"iss": ISSUER, "aud": audience, "sub": user, "exp": end},
    ]
    signed = ".".join(base64url(json.dumps(part).encode()) for part in parts)
    key = guarded.folder / "tokens.key"
    signature = openssl("dgst", "-sha256", "-sign", key, input=signed.encode())
    return f"{signed}.{base64url(signature)}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server that needs a login, over TLS: admin may do everything, alice what the rules grant her."""
    folder = tmp_path_factory.mktemp("guarded")
    make_authority(folder)
    make_certificate(folder, "server", "/CN=localhost", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    make_certificate(folder, "client", "/CN=bob")
    make_token_key(folder)
    data = folder / "data"
    subprocess.run(
        [program(), "user", "init", "admin", "--data", data],
        input="admin secret\n",
        text=True,
        check=True,
        capture_output=True,
    )
    server = Server(
        program(),
        data,
        *["--authentication", "--super-users", "admin"],
        *["--tls-certificate", folder / "server.pem", "--tls-key", folder / "server.key"],
        *["--tls-authorities", folder / "ca.pem"],
        *["--token-keys", folder / "tokens.json"],
        *["--token-issuer", ISSUER, "--token-audience", AUDIENCE],
    )
    guarded = SimpleNamespace(server=server, address=server.address, folder=folder)
    set_password(guarded, "alice", "alice secret")
    yield guarded
    server.stop()
    assert "secret" not in server.logs()
    assert "panicked" not in server.logs(), server.logs()


def settings(guarded, user, password, mechanism="SCRAM-SHA-512"):
    """Settings of librdkafka to log in."""
    return {
        "bootstrap.servers": guarded.address,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(guarded.folder / "ca.pem"),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def administrator(guarded):
    return AdminClient(settings(guarded, "admin", "admin secret"))


def set_password(guarded, user, password):
    changes = [
        UserScramCredentialUpsertion(
            user, ScramCredentialInfo(mechanism, 4096), password.encode()
        )
        for mechanism in [ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512]
    ]
    client = administrator(guarded)
    for future in client.alter_user_scram_credentials(changes).values():
        future.result(SECONDS_MAX)


def new_topic(guarded, name):
    client = administrator(guarded)
    client.create_topics([NewTopic(name, 1, 1)])[name].result(SECONDS_MAX)


def rule(kind, name, user, operation):
    return AclBinding(
        *[kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*"],
        *[operation, AclPermissionType.ALLOW],
    )


def allow(guarded, *rules):
    client = administrator(guarded)
    for future in client.create_acls(list(rules)).values():
        future.result(SECONDS_MAX)


def allow_all_of_a_topic(guarded, name, user):
    operations = [AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE]
    topic = [rule(ResourceType.TOPIC, name, user, operation) for operation in operations]
    allow(guarded, *topic, rule(ResourceType.GROUP, name, user, AclOperation.READ))


def produce_one(configuration, name):
    """Produces a record with librdkafka; gives the error, or nothing."""
    errors = []
    producer = confluent_kafka.Producer({**configuration, "message.timeout.ms": 5000})
    producer.produce(name, b"value", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(SECONDS_MAX) == 0
    return errors[0]


def round_trip(configuration, name):
    """Produces a record and reads it, with librdkafka."""
    assert produce_one(configuration, name) is None
    reader = confluent_kafka.Consumer(
        {**configuration, "group.id": name, "auto.offset.reset": "earliest"}
    )
    reader.subscribe([name])
    assert take(reader, 1)[0].value() == b"value"
    reader.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_logs_in(guarded, name, mechanism):
    new_topic(guarded, name)
    allow_all_of_a_topic(guarded, name, "alice")
    round_trip(settings(guarded, "alice", "alice secret", mechanism), name)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in(guarded, name, mechanism):
    new_topic(guarded, name)
    allow_all_of_a_topic(guarded, name, "alice")
    configuration = {
        "bootstrap_servers": guarded.address,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(guarded.folder / "ca.pem"),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": "alice secret",
    }
    producer = kafka.KafkaProducer(enable_idempotence=False, **configuration)
    assert producer.send(name, b"value").get(SECONDS_MAX).offset == 0
    producer.close()
    reader = kafka.KafkaConsumer(
        name, group_id=name, auto_offset_reset="earliest", consumer_timeout_ms=10_000, **configuration
    )
    assert next(reader).value == b"value"
    reader.close()


def token_settings(guarded, source):
    """Settings of librdkafka to log in by tokens from this function, which also returns a token's lifetime."""
    return {
        "bootstrap.servers": guarded.address,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(guarded.folder / "ca.pem"),
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: source(),
    }


def test_librdkafka_logs_in_with_a_token(guarded, name):
    new_topic(guarded, name)
    allow_all_of_a_topic(guarded, name, "alice")

    def source():
        return token(guarded, "alice", 600), time.time() + 600

    round_trip(token_settings(guarded, source), name)


def test_librdkafka_renews_its_token_on_the_same_connection(guarded, name):
    new_topic(guarded, name)
    allow_all_of_a_topic(guarded, name, "alice")
    taken = []

    def source():
        taken.append(time.time())
        return token(guarded, "alice", 6), time.time() + 4

    errors = []
    producer = confluent_kafka.Producer(token_settings(guarded, source))
    end = time.time() + 15
    count = 0
    while time.time() < end:
        producer.produce(name, b"value", on_delivery=lambda error, _: errors.append(error))
        count += 1
        producer.poll(0.5)
    assert producer.flush(SECONDS_MAX) == 0
    assert errors == [None] * count
    assert len(taken) > 2
    assert "token has expired" not in guarded.server.logs()


def test_a_token_for_another_audience_is_refused(guarded, name):
    new_topic(guarded, name)
    allow_all_of_a_topic(guarded, name, "alice")

    def source():
        return token(guarded, "alice", 600, "others"), time.time() + 600

    error = produce_one(token_settings(guarded, source), name)
    assert error.code() == KafkaError._MSG_TIMED_OUT


def test_kafka_python_logs_in_with_a_token(guarded, name):
    new_topic(guarded, name)
    allow_all_of_a_topic(guarded, name, "alice")

    class Provider(AbstractTokenProvider):
        def token(self):
            return token(guarded, "alice", 600)

    producer = kafka.KafkaProducer(
        enable_idempotence=False,
        bootstrap_servers=guarded.address,
        security_protocol="SASL_SSL",
        ssl_cafile=str(guarded.folder / "ca.pem"),
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Provider(),
    )
    assert producer.send(name, b"value").get(SECONDS_MAX).offset == 0
    producer.close()


def test_java_logs_in(guarded, name):
    new_topic(guarded, name)
    allow_all_of_a_topic(guarded, name, "alice")
    run_java(
        "4.3.1",
        "secure",
        guarded.address,
        f"-Dmillstream.topic={name}",
        f"-Dmillstream.authority={guarded.folder / 'ca.pem'}",
    )


def test_a_client_certificate_logs_in(guarded, name):
    new_topic(guarded, name)
    allow_all_of_a_topic(guarded, name, "CN=bob")
    configuration = {
        "bootstrap.servers": guarded.address,
        "security.protocol": "SSL",
        "ssl.ca.location": str(guarded.folder / "ca.pem"),
        "ssl.certificate.location": str(guarded.folder / "client.pem"),
        "ssl.key.location": str(guarded.folder / "client.key"),
    }
    round_trip(configuration, name)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_refused(guarded, name, mechanism):
    # A user of its own: later logins of this one from here wait.
    set_password(guarded, name, "right")
    errors = []
    configuration = settings(guarded, name, "wrong", mechanism)
    client = confluent_kafka.Producer({**configuration, "error_cb": errors.append})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=2)
    client.poll(0)
    assert KafkaError._AUTHENTICATION in [error.code() for error in errors]


def test_a_changed_password_applies_from_the_next_login(guarded, name):
    set_password(guarded, name, "first")
    set_password(guarded, name, "second")
    with pytest.raises(KafkaException):
        AdminClient(settings(guarded, name, "first")).list_topics(timeout=2)
    assert AdminClient(settings(guarded, name, "second")).list_topics(timeout=10).brokers


def test_rules_decide_the_rights_of_a_user(guarded, name):
    new_topic(guarded, name)
    alice = settings(guarded, "alice", "alice secret")
    assert produce_one(alice, name).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    allow_all_of_a_topic(guarded, name, "alice")
    round_trip(alice, name)
    client = AdminClient(alice)
    with pytest.raises(KafkaException) as refused:
        client.delete_topics([name])[name].result(SECONDS_MAX)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    client = administrator(guarded)
    mine = AclBindingFilter(
        *[ResourceType.ANY, name, ResourcePatternType.ANY, None, None],
        *[AclOperation.ANY, AclPermissionType.ANY],
    )
    assert len(client.describe_acls(mine).result(SECONDS_MAX)) == 4
    deleted = client.delete_acls([mine])[mine].result(SECONDS_MAX)
    assert len(deleted) == 4
    assert produce_one(alice, name).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
