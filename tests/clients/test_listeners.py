"""Addresses that clients get: names that certificates hold, behind a port mapping, with each of the libraries."""

import socket
from types import SimpleNamespace

import confluent_kafka
import pytest

import processes
from certificates import make_authority, make_certificate
from clients import SECONDS_MAX, kcat, python_consumer, python_producer, take, wait_until
from conftest import program
from proxy import PassingProxy
from server import Server
from test_java import run_java


def make_certificates(folder):
    """A certificate for the name alone, as clients find the server by it, and not by an address."""
    make_authority(folder)
    make_certificate(folder, "server", "/CN=server", "subjectAltName=DNS:localhost")
    return ["--tls-certificate", folder / "server.pem", "--tls-key", folder / "server.key"]


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A server on a name of this machine, over TLS."""
    folder = tmp_path_factory.mktemp("named")
    server = Server(
        program(), folder / "data", *make_certificates(folder), listen="SSL://localhost:0"
    )
    port = server.address.rsplit(":", 1)[1]
    yield SimpleNamespace(server=server, folder=folder, address=f"localhost:{port}")
    server.stop()


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    """A server that clients reach through a port mapping alone, over TLS, and the test without either."""
    folder = tmp_path_factory.mktemp("mapped")
    with PassingProxy() as proxy:
        server = Server(
            program(),
            folder / "data",
            *make_certificates(folder),
            *["--advertise", f";localhost:{proxy.port}"],
            listen="PLAINTEXT://127.0.0.1:0;SSL://127.0.0.1:0",
        )
        host, port = server.listeners[1].rsplit(":", 1)
        proxy.server = (host, int(port))
        yield SimpleNamespace(
            server=server, folder=folder, address=f"localhost:{proxy.port}", proxy=proxy
        )
        server.stop()


@pytest.fixture(params=["named", "mapped"])
def place(request):
    return request.getfixturevalue(request.param)


def encrypted(place):
    """Settings of librdkafka, which verifies the name in the certificate."""
    return {"security.protocol": "SSL", "ssl.ca.location": str(place.folder / "ca.pem")}


def kcat_options(place):
    return [word for pair in encrypted(place).items() for word in ("-X", "=".join(pair))]


def test_kcat(place, name):
    options = kcat_options(place)
    kcat(place.address, *options, "-P", "-t", name, text="1\n2\n")
    read = ["-C", "-t", name, "-o", "beginning", "-e", "-q"]
    assert kcat(place.address, *options, *read) == "1\n2\n"


def test_librdkafka(place, name):
    settings = {"bootstrap.servers": place.address, **encrypted(place)}
    producer = confluent_kafka.Producer(settings)
    producer.produce(name, b"value")
    assert producer.flush(SECONDS_MAX) == 0
    reader = confluent_kafka.Consumer(
        {**settings, "group.id": name, "auto.offset.reset": "earliest"}
    )
    reader.subscribe([name])
    assert take(reader, 1)[0].value() == b"value"
    reader.close()


def test_kafka_python(place, name):
    settings = {"security_protocol": "SSL", "ssl_cafile": str(place.folder / "ca.pem")}
    producer = python_producer(place.address, **settings)
    producer.send(name, b"value").get(SECONDS_MAX)
    producer.close()
    reader = python_consumer(place.address, name, **settings)
    assert next(reader).value == b"value"
    reader.close()


def test_java(place):
    run_java("4.3.1", "named", place.address, f"-Dmillstream.authority={place.folder / 'ca.pem'}")


def test_only_the_mapped_port_is_reported(mapped, name):
    options = kcat_options(mapped)
    assert f"broker 1 at {mapped.address}" in kcat(mapped.address, *options, "-L")
    kcat(mapped.address, *options, "-P", "-t", name, text="1\n")
    # Beside it, the other listener reports its own address.
    inside = mapped.server.listeners[0]
    assert f"broker 1 at {inside}" in kcat(inside, "-L")
    assert kcat(inside, "-C", "-t", name, "-o", "beginning", "-e", "-q") == "1\n"


def test_the_log_names_a_client_that_refuses_the_certificate(named, tmp_path):
    make_authority(tmp_path)
    other = ["-X", "security.protocol=SSL", "-X", f"ssl.ca.location={tmp_path / 'ca.pem'}"]
    done = processes.run(
        ["kcat", "-b", named.address, *other, "-L", "-m", "3"], capture_output=True, text=True
    )
    assert done.returncode != 0
    message = "the client refuses the broker's certificate: TLS alert UnknownCA"
    wait_until(lambda: message in named.server.logs(), "the server logs the reason")


def test_the_log_names_a_client_without_tls(named):
    host, port = named.server.address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"\0\0\0\x08\0\x12\0\0\0\0\0\x01")
        connection.settimeout(SECONDS_MAX)
        while connection.recv(100):
            pass
    message = "the client does not speak TLS"
    wait_until(lambda: message in named.server.logs(), "the server logs the reason")
