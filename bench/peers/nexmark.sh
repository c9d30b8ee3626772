#!/usr/bin/env bash
# nexmark.sh FOLDER: starts Flink, which runs queries of Nexmark as SQL over files of events. Its checkpoints are in
# FOLDER. It reads orders from its input, a line each, and prints a line of JSON for each:
#     run QUERY FILE       drops the results; prints seconds, CPU-seconds, stored checkpoints and the most memory so far
#     check QUERY FILE     prints the number of rows that the changes leave, and the sum of their hashes
set -euo pipefail

out="$(cd "$(dirname "$0")" && pwd)/../../target/peers"

[ "$#" = 1 ] || {
    echo "peers: usage: nexmark.sh FOLDER" >&2
    exit 1
}

# Some queries keep all bids. A smaller heap is collected more often.
exec java -Xmx4g -XX:+UseParallelGC -cp "$out/flink/peer.jar:$out/flink/lib/*" flink.NexmarkPeer "$1"
