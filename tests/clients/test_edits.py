"""The whole path: records of kcat, counted by a flow in a process of its own, and read as state, by key and as topics."""

import json
import os
import random
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

import processes
from clients import admin, alter_topic, create_topic, kcat
from conftest import program
from server import Server

PARTITIONS = 4
SECONDS_MAX = 60

#: How often flow, server or both are killed; more with `MILLSTREAM_KILLS`.
KILLS = int(os.environ.get("MILLSTREAM_KILLS", 4))

#: The flow's keys.
ELEMENTS = ["by_user", "by_page"]

#: Open MPI does not start processes of root otherwise.
ENVIRONMENT = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

CLICKSTREAM = "clickstream/wikiticker_2015-09-12_sampled.jsonl.zst"


def edits():
    """The lines of the edits: of a real wiki where they are, or else made ones of the same shape."""
    data = os.environ.get("MILLSTREAM_TEST_DATA") or Path(__file__).parents[3] / "shared" / "data"
    stored = Path(data) / CLICKSTREAM
    if stored.exists():
        return subprocess.run(["zstdcat", stored], check=True, capture_output=True, text=True).stdout.splitlines()
    print("left out: the edits of a real wiki, which are not beside the repository")
    draw = random.Random(7)
    users = [f"Üser {number}" for number in range(800)]
    return [
        json.dumps({"user": draw.choice(users), "page": f"Page/{int(draw.paretovariate(0.4)) % 9000}"})
        for _ in range(20_000)
    ]


class Flow:
    """The application `edits` over a server."""

    def __init__(self, address, ranks):
        edits = program().with_name("edits")
        self.command = [edits, "--server", address, "--http", "127.0.0.1:0"]
        if ranks == "2 processes":
            # The kernel kills the ranks with mpirun.
            rank = ["setpriv", "--pdeathsig", "KILL", "--"]
            self.command = ["mpirun", "--oversubscribe", "-q", "-n", "2", *rank, *self.command]
        else:
            self.command += ["--ranks", str(ranks)]
        self.process = None
        self.start()

    def start(self):
        """Starts it; again as often as the server is not there yet."""
        until = time.monotonic() + SECONDS_MAX
        while True:
            self.process = processes.start(self.command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
            line = self.process.stderr.readline()
            if line.startswith("watch it at "):
                self.http = line.split()[-1].rstrip("/")
                return
            assert time.monotonic() < until, line + self.process.stderr.read()
            self.kill()
            time.sleep(0.2)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def is_running(self):
        return self.process.poll() is None


def get(url):
    """The JSON at an address; `None` where there is nothing."""
    return get_with_headers(url)[0]


def get_with_headers(url):
    try:
        with urllib.request.urlopen(url, timeout=SECONDS_MAX) as answer:
            return json.load(answer), answer.headers
    except urllib.error.HTTPError as error:
        assert error.code == 404, error
        return None, error.headers


def wait_until(what, is_true):
    until = time.monotonic() + SECONDS_MAX
    while not is_true():
        assert time.monotonic() < until, f"not within {SECONDS_MAX} s: {what}"
        time.sleep(0.05)


def compact_soon(address):
    """Lets the server compact the topics of the flow's state often, including their open files."""
    client = admin(address)
    settings = {"max_compaction_lag_ms": 200, "min_cleanable_dirty_ratio": 0.01, "file_delete_delay_ms": 0}
    for element in ELEMENTS:
        topic = f"edits.state.{element}"
        wait_until(f"the flow has made {topic}", lambda: topic in client.list_topics(timeout=SECONDS_MAX).topics)
        alter_topic(client, topic, **settings)


def compactions(http):
    """How often the server has compacted a partition since it began."""
    with urllib.request.urlopen(f"{http}/metrics", timeout=SECONDS_MAX) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("millstream_compactions_total"))


def quoted(key):
    return urllib.parse.quote(key, safe="")


def by_key(http, topic):
    """All keys of a keyed topic with their values, page by page."""
    found, start = {}, ""
    while start is not None:
        page = get(f"{http}/kv/{topic}?limit=1000&from={quoted(start)}")
        found.update((entry["key"], entry["value"]) for entry in page["entries"])
        start = page.get("next")
    return found


def of_element(http, element):
    """All entries of a state element, page by page, over all ranks of the flow."""
    found, start = {}, ""
    while start is not None:
        page, headers = get_with_headers(f"{http}/state/edits/{element}?limit=1000&from={start}")
        found.update((entry["key"], entry["value"]) for entry in page)
        start = headers["Millstream-Next"]
    return found


def has_mpi():
    libraries = subprocess.run(["ldd", program().with_name("edits")], capture_output=True, text=True, check=True)
    return "libmpi" in libraries.stdout


@pytest.mark.parametrize("ranks", [1, 2, "2 processes"])
def test_each_edit_counts_once_and_every_interface_shows_it(tmp_path, ranks):
    if ranks == "2 processes" and not has_mpi():
        pytest.skip("the program is built without MPI")
    lines = edits()
    server = Server(program(), tmp_path / "data", "--http", "127.0.0.1:0")
    create_topic(server.address, "edits", PARTITIONS)
    flow = Flow(server.address, ranks)
    compact_soon(server.address)
    draw = random.Random(str(ranks))
    compacted = 0
    pieces = [lines[start :: KILLS + 1] for start in range(KILLS + 1)]
    for number, piece in enumerate(pieces):
        kcat(server.address, "-P", "-t", "edits", text="".join(f"{line}\n" for line in piece))
        if number == KILLS:
            break
        time.sleep(draw.uniform(0, 1.5))
        compacted += compactions(server.http)
        victims = draw.choice(["flow", "server", "both"])
        if victims != "server":
            flow.kill()
        if victims != "flow":
            server.kill()
            server.start()
        if victims != "server" or not flow.is_running():
            flow.start()

    expected = {
        element: Counter(json.loads(line)[element.removeprefix("by_")] for line in lines) for element in ELEMENTS
    }
    if not flow.is_running():
        flow.start()
    for element, counts in expected.items():
        user, count = counts.most_common(1)[0]
        address = f"{flow.http}/state/edits/{element}/{quoted(user)}"
        wait_until(f"all edits of {user} count", lambda: get(address) == count)
    for element, counts in expected.items():
        topic = f"edits.state.{element}"
        wait_until(f"{topic} has all", lambda: sum(by_key(server.http, topic).values()) == len(lines))
        assert by_key(server.http, topic) == counts
        sample = draw.sample(sorted(counts), 20)
        for key in sample:
            assert get(f"{flow.http}/state/edits/{element}/{quoted(key)}") == counts[key], key
            assert get(f"{server.http}/kv/{topic}/{quoted(key)}") == counts[key], key
        assert of_element(flow.http, element) == counts
        query = "&".join(f"keys={quoted(key)}" for key in sample)
        several = get(f"{flow.http}/state/edits/{element}?{query}&committed")
        assert {entry["key"]: entry["value"] for entry in several} == {key: counts[key] for key in sample}
        assert get(f"{flow.http}/state/edits/{element}/nobody") is None
        # Any consumer of Kafka reads the same: the last record of each key counts.
        read = kcat(server.address, "-C", "-e", "-q", "-t", topic, "-K", "\t", "-X", "isolation.level=read_committed")
        last = dict(line.rsplit("\t", 1) for line in read.splitlines())
        assert {key: int(value) for key, value in last.items()} == counts
    _, headers = get_with_headers(address)
    print(f"an answer is of {headers['Millstream-Position']}; its checkpoint is {headers['Millstream-Checkpoint-Age']} s old")
    wait_until("the state is compacted", lambda: compacted + compactions(server.http) > 0)
    flow.kill()
    server.stop()
    assert "panicked" not in server.logs(), server.logs()
