"""A program in Java with an HTTP interface, to kill and to start again."""

import json
import time
import urllib.error
import urllib.request

import processes
from clients import SECONDS_MAX, wait_until

#: A JVM is slow to start where others start beside it.
START_SECONDS_MAX = 60

#: The answers of a program that is about to start, or to share its work with others.
NOT_YET = [404, 409, 500, 503]


class Service:
    """Runs a command. `find_address` returns the address on which it listens, and None while there is none."""

    def __init__(self, command, log, find_address):
        self.command = command
        self.log = log
        self.find_address = find_address
        self.start()

    def start(self):
        with open(self.log, "wb") as log:
            self.process = processes.start(self.command, stdout=log, stderr=log)
        self.http = None

    def logs(self):
        return self.log.read_text(errors="replace")

    def kill(self):
        """Ends it at once, as a crash would."""
        self.process.kill()
        self.process.wait()

    def address(self):
        def find():
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.logs()}"
            return self.find_address()

        if self.http is None:
            self.http = wait_until(find, f"it listens; {self.log} is its log", START_SECONDS_MAX)
        return self.http

    def ask(self, method, path, content=None, retried=NOT_YET, kind="application/json"):
        """The JSON of its answer. It is asked again while it answers one of `retried`."""
        body = None if content is None else json.dumps(content).encode()
        end = time.monotonic() + START_SECONDS_MAX
        while True:
            request = urllib.request.Request(self.address() + path, body, {"Content-Type": kind}, method=method)
            try:
                with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
                    return json.loads(answer.read() or "null")
            except urllib.error.HTTPError as error:
                said = error.read().decode()
                if error.code not in retried or time.monotonic() > end:
                    raise AssertionError(f"{method} {path}: {error.code} {said}\n{self.logs()}") from error
            time.sleep(0.1)
