"""The program under test: starts it, ends it, kills it, and starts it again."""

import json
import os
import subprocess
import threading

import processes

STOP_SECONDS_MAX = 20

#: Settings with which a group begins at once, and may soon take a member for dead.
QUICK_GROUPS = ["--group-initial-rebalance-delay", "0s", "--group-min-session-timeout", "1s"]


class Server:
    """`millstream start` on a data directory, on a port that stays the same when it is started again."""

    def __init__(self, program, data, *settings, listen=None):
        self.program = program
        self.data = data
        self.settings = settings
        self.listen = listen
        self.address = "127.0.0.1:0"
        self.listeners = []
        self.http = None
        self.process = None
        self.log = data.with_suffix(".log")
        self.start()

    def start(self):
        command = [self.program, "start", "--data", self.data, "--listen", self.listen or self.address]
        # Keeps the environment of the caller from changing the tests.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("MILLSTREAM_")
        }
        with open(self.log, "ab") as log:
            self.process = processes.start(
                [*command, *self.settings, "--pool", "128MiB", "--json"],
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server does not start:\n{self.logs()}")
        started = json.loads(line)
        self.address, self.listeners = started["listen"], started["listeners"]
        self.http = f"http://{started.get('http')}"

    def logs(self):
        """Its log."""
        return self.log.read_text(errors="replace")

    def is_running(self):
        return self.process.poll() is None

    def kill(self):
        """Ends it at once, as a crash would."""
        self.process.kill()
        self._wait()

    def kill_after(self, seconds):
        """Crashes the server in the middle of the caller's work, from the returned thread, which the caller joins."""
        timer = threading.Timer(seconds, self.kill)
        timer.start()
        return timer

    def stop(self):
        """Asks it to end; it must do so, and say that all is well."""
        self.process.terminate()
        code = self._wait()
        assert code == 0, f"the server ended with {code}:\n{self.logs()}"

    def _wait(self):
        try:
            return self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process.stdout.close()
