"""Share groups with Apache Kafka's own client for Java, which is the only one that has them."""

import threading
import time

from test_java import run_java

VERSION = "4.3.1"


def test_share_groups(address):
    run_java(VERSION, "shares", address)


def test_share_groups_outlast_the_server(own_server, tmp_path):
    mark = tmp_path / "mark"
    ended = threading.Event()

    def crash():
        # The test makes the file when a part of the records is acknowledged.
        while not mark.exists():
            if ended.wait(0.02):
                return
        own_server.kill()
        time.sleep(0.2)
        own_server.start()

    thread = threading.Thread(target=crash)
    thread.start()
    try:
        run_java(VERSION, "sharecrash", own_server.address, f"-Dmillstream.mark={mark}")
    finally:
        ended.set()
        thread.join()
    assert mark.exists()
