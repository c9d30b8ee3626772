"""Faust counts words in a table, and is killed. Its state is in a compacted topic."""

import json
import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

import processes
from clients import create_topic, produce_all, producer, read_to_ends, topic_setting, wait_until
from conftest import program
from server import QUICK_GROUPS, Server
from test_compacted import DUE
from test_wordcount import PARTITIONS, is_committed

SEED = int(os.environ.get("MILLSTREAM_SEED", 3))

WORDS = 200
RECORDS = 2000


class Application:
    def __init__(self, address, name, folder):
        settings = [f"{key.replace('_', '.')}={value}" for key, value in DUE.items()]
        file = Path(__file__).with_name("counter.py")
        self.command = [sys.executable, file, address, name, folder / "state", *settings]
        self.said, self.log = folder / "said", folder / "log"
        self.start()

    def start(self):
        with open(self.said, "wb") as said, open(self.log, "ab") as log:
            self.process = processes.start(self.command, stdout=said, stderr=log)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def restored(self):
        """The counts that it has read from the changelog since its start."""

        def find():
            assert self.process.poll() is None, self.log.read_text()
            return self.said.read_text().splitlines()

        return json.loads(wait_until(find, f"the table is there; {self.log} is the log", 60)[0])


def words(draw):
    """Words, some of which are much more frequent than others."""
    return [f"wörd-{int(draw.paretovariate(0.5)) % WORDS}" for _ in range(RECORDS)]


def read(address, changelog):
    """The counts of each word that are in the changelog, in their order."""
    found = {}
    for message in read_to_ends(address, changelog, PARTITIONS):
        found.setdefault(json.loads(message.key()), []).append(json.loads(message.value()))
    return found


def count_words(address, name, written, expected):
    """Writes words, and waits until all words are counted, the changelog is compacted and all offsets are committed."""
    produce_all(producer(address), f"{name}-in", [{"key": word, "value": "word"} for word in written])
    expected.update(written)
    newest = {word: [count] for word, count in expected.items()}
    what = "the changelog has each word once, with its count"
    wait_until(lambda: read(address, f"{name}-counts-changelog") == newest, what, 60)
    wait_until(lambda: is_committed(address, name, [f"{name}-in"]), "all offsets are committed")


@pytest.mark.timeout(180)
def test_a_table_is_restored_after_crashes(name, tmp_path):
    server = Server(program(), tmp_path / "data", *QUICK_GROUPS)
    create_topic(server.address, f"{name}-in", PARTITIONS)
    application = Application(server.address, name, tmp_path)
    assert application.restored() == {}
    expected, draw = Counter(), random.Random(SEED)
    # No input comes while the application is away. Faust 0.15.3 begins to read before it has set its offsets to the
    # committed ones, so it skips records that wait for it.
    for victims in [[application], [server, application]]:
        count_words(server.address, name, words(draw), expected)
        for victim in victims:
            victim.kill()
        for victim in victims:
            victim.start()
        assert application.restored() == expected
    count_words(server.address, name, words(draw), expected)
    assert topic_setting(server.address, f"{name}-counts-changelog", "cleanup.policy") == "compact"
    application.kill()
    server.stop()
    assert "panicked" not in server.logs(), server.logs()
