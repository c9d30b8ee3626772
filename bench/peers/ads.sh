#!/usr/bin/env bash
# ads.sh NAME [BUFFERS_WAIT_MS]: starts a peer that counts ads in windows; for Flink, with the time that a buffer of the
# exchange waits to be full. It reads orders from its input, a line each:
#     swa|ysb|ysb-star RATE DURATION_MS WINDOW_MS START_MS
# and prints a line of JSON for each: its duration, the events that each instance made by window, and the results with
# the times of their release. A rate is in events per second of all instances together, 0 is as many as can be; START_MS
# is the time of the first events, in milliseconds since 1970.
set -euo pipefail

out="$(cd "$(dirname "$0")" && pwd)/../../target/peers"

fail() {
    echo "peers: $*" >&2
    exit 1
}

[ "$#" = 1 ] || [ "$#-$1" = 2-flink ] || fail "usage: ads.sh flink BUFFERS_WAIT_MS|spark|timely"

# More than the work needs: here memory is not compared, and a larger heap is collected less often.
java=(java -Xmx2g -XX:+UseParallelGC)
# The packages that Spark's own script opens, as far as this peer needs them.
opened=()
for package in java.lang java.lang.invoke java.io java.net java.nio java.util java.util.concurrent sun.nio.ch sun.util.calendar; do
    opened+=("--add-opens=java.base/$package=ALL-UNNAMED")
done
case "$1" in
flink) exec "${java[@]}" -cp "$out/flink/peer.jar:$out/flink/lib/*" flink.AdsPeer "${2:?usage: ads.sh flink BUFFERS_WAIT_MS}" ;;
spark) exec "${java[@]}" "${opened[@]}" -cp "$out/spark/peer.jar:$out/spark/lib/*" spark.AdsPeer ;;
timely) exec "$out/timely/release/timely-ads" ;;
*) fail "there is no peer $1" ;;
esac
