#!/usr/bin/env bash
# run.sh RATE SECONDS: starts Hazelcast with a Jet job that keeps the number of the last event of each of ten keys. Puts
# RATE events in a second into its map for ten seconds to warm up, and for SECONDS that count. Prints one line of JSON: the
# percentiles of the time from the moment when the map has accepted an event until an answer shows it, and whether the
# rate was reached.
set -euo pipefail

out="$(cd "$(dirname "$0")" && pwd)/../../../target/peers"

[ "$#" = 2 ] || {
    echo "peers: usage: hazelcast/run.sh RATE SECONDS" >&2
    exit 1
}

# The packages that Hazelcast's manual opens.
opened=(--add-modules java.se --add-exports java.base/jdk.internal.ref=ALL-UNNAMED)
for package in java.base/java.lang java.base/sun.nio.ch java.management/sun.management \
    jdk.management/com.sun.management.internal; do
    opened+=("--add-opens=$package=ALL-UNNAMED")
done

# More than the work needs: memory is not compared, and a larger heap is collected less often. The parallel collector
# pauses less often than Java's default here.
exec java -Xms2g -Xmx2g -XX:+UseParallelGC "${opened[@]}" -cp "$out/hazelcast/peer.jar:$out/hazelcast/lib/*" \
    hazelcast.FreshnessPeer "$@"
