"""Runs a count as every peer does: once on a sample, then on the file, and prints its time and memory."""

import json
import sys
import time


def run(peer, version, count):
    """To be called when all is started up.

    The arguments of the program are FILE PREFIX SAMPLE STARTED, the last in seconds since 1970;
    `count` gets a file and the prefix.
    """
    file, prefix, sample, started = sys.argv[1:]
    startup_seconds = time.time() - float(started)
    count(sample, prefix)
    cpu_before = time.process_time()
    before = time.perf_counter()
    counted = count(file, prefix)
    seconds = time.perf_counter() - before
    cpu_seconds = time.process_time() - cpu_before
    result = {
        "peer": peer,
        "version": version,
        "count": counted,
        "words": None,
        "seconds": round(seconds, 3),
        "startup_seconds": round(startup_seconds, 3),
        "cpu_seconds": round(cpu_seconds, 3),
        "peak_bytes": peak_bytes(),
    }
    print(json.dumps(result, separators=(",", ":")))


def peak_bytes():
    """The most memory that this process ever had resident."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
