#!/usr/bin/env bash
# state.sh FOLDER: starts Flink, which counts events by key with its state in RocksDB. Its state and its checkpoints are in
# FOLDER. It reads orders from its input, a line each, and prints a line of JSON for each:
#     count KEYS EVENTS            counts EVENTS, with a checkpoint every second
#     recover KEYS CHECKPOINTS     counts until CHECKPOINTS are stored, ends, and starts again from the last one
set -euo pipefail

out="$(cd "$(dirname "$0")" && pwd)/../../target/peers"

[ "$#" = 1 ] || {
    echo "peers: usage: state.sh FOLDER" >&2
    exit 1
}

# More than the work needs: memory is not compared, and a larger heap is collected less often.
exec java -Xmx2g -XX:+UseParallelGC -cp "$out/flink/peer.jar:$out/flink/lib/*" flink.StatePeer "$1"
