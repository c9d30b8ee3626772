#!/usr/bin/env bash
# run.sh NAME FILE PREFIX: has a peer count the words of FILE that start with PREFIX, and prints its answer, time and
# memory as one line of JSON. Before the timing it counts a sample of the file, so that all code is compiled and
# loaded.
set -euo pipefail

peers="$(cd "$(dirname "$0")" && pwd)"
out="$peers/../../target/peers"
sample_bytes=$((64 << 20))

fail() {
    echo "peers: $*" >&2
    exit 1
}

[ "$#" = 3 ] || fail "usage: run.sh flink|spark|timely|duckdb|polars FILE PREFIX"
name="$1" file="$(realpath "$2")" prefix="$3"
[ -r "$file" ] && [ -f "$file" ] || fail "cannot read the file $2"
[[ -n "$prefix" && "$prefix" != *[$' \t\n\f\r']* ]] || fail "the prefix must be the start of a word"

# Heaps of the size that the work needs, since memory is compared, too. Flink takes no more processor time with 256 MiB
# than with 1 GiB, and more with 128 MiB; Spark refuses to start with less than 450 MiB. The parallel collector takes less
# processor time for either than Java's default.
java=(java -XX:+UseParallelGC)
case "$name" in
flink) peer=("${java[@]}" -Xmx256m -cp "$out/flink/peer.jar:$out/flink/lib/*" flink.Peer) ;;
spark) peer=("${java[@]}" -Xmx512m --add-opens=java.base/sun.nio.ch=ALL-UNNAMED -cp "$out/spark/peer.jar:$out/spark/lib/*" spark.Peer) ;;
timely) peer=("$out/timely/release/timely-peer") ;;
duckdb | polars) peer=(env "PYTHONPATH=$peers/measure" PYTHONDONTWRITEBYTECODE=1 "$out/$name/bin/python" "$peers/$name/peer.py") ;;
*) fail "there is no peer $name" ;;
esac

sample="$(mktemp)"
trap 'rm -f "$sample"' EXIT
head -c "$sample_bytes" "$file" >"$sample"

started="$(date +%s.%N)"
# The peer ends with this script, also by kill -9.
setpriv --pdeathsig KILL -- "${peer[@]}" "$file" "$prefix" "$sample" "$started"
