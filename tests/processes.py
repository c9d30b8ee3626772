"""Processes that end with the tests that start them, also when the tests are killed by SIGKILL."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Starts the program, unless the parent has ended before the kernel noted the request.
START = '[ "$PPID" = "$0" ] && exec "$@"'

# The kernel takes a thread for the parent. This one lives as long as the tests.
STARTER = ThreadPoolExecutor(max_workers=1)


def command(words):
    """The words that start a program which the kernel kills when the thread that starts it ends."""
    return ["setpriv", "--pdeathsig", "KILL", "--", "sh", "-c", START, str(os.getpid()), *words]


def start(words, **options):
    """As `subprocess.Popen`. The thread that calls this may end before the process."""
    return STARTER.submit(subprocess.Popen, command(words), **options).result()


def run(words, **options):
    """As `subprocess.run`."""
    return subprocess.run(command(words), **options)


def warden(folder):
    """A process that kills all processes whose working directory is in a folder, once its input ends: it is closed, or
    the tests have ended. The exit code is 0 if they have ended then."""
    words = [sys.executable, __file__, folder]
    return subprocess.Popen(words, cwd="/", stdin=subprocess.PIPE, start_new_session=True)


def end_all_in(folder, seconds_max=10):
    """Kills the processes whose working directory is in the folder; returns those that are left."""
    end = time.monotonic() + seconds_max
    while (left := processes_in(folder)) and time.monotonic() < end:
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)
    return left


def processes_in(folder):
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if link.readlink().is_relative_to(folder):
                found.append(int(link.parent.name))
        except OSError:
            pass  # It has just ended.
    return found


if __name__ == "__main__":
    sys.stdin.read()
    sys.exit(1 if end_all_in(Path(sys.argv[1])) else 0)
