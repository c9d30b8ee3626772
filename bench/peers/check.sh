#!/usr/bin/env bash
# check.sh [NAME...]: holds the answers of all peers, or of those named, against a dumb count, on
# files that are easily got wrong. Run setup.sh first.
set -euo pipefail
cd "$(dirname "$0")"

names=("$@")
[ "$#" -gt 0 ] || names=(flink spark timely duckdb polars)

files="$(mktemp -d)"
trap 'rm -rf "$files"' EXIT

# repeat TEXT BYTES: prints BYTES bytes of repeated TEXT.
repeat() {
    head -c "$2" < <(yes "$1" | tr -d '\n')
}

: >"$files/empty"
printf 'an apple; banana and' >"$files/no-final-newline"
printf ' \n\n  \n' >"$files/no-word"
printf 'an\tapple\r\n\fand\vas a\r\n\r\n ba a.b abc  a. a\r\n' >"$files/white-space"
printf 'an\rapple\fa\tb\vc\n a\r\ra \n' >"$files/carriage-returns"
printf 'ähnlich a\xc2\xa0b “all” a\n' >"$files/unicode"
{ printf 'a\n'; repeat 'some more apples, and ' 10000000; printf '\na'; } >"$files/long-line"
{ printf 'a '; repeat 'a' 10000000; printf ' b a'; } >"$files/long-word"
# More than Flink reads at once; line ends fall on every position.
head -c 150000001 < <(yes 'as many apples, as there are ') >"$files/large"

dumb_count() {
    tr -s ' \t\n\f\r' '\n' <"$1" | PREFIX="$2" LC_ALL=C awk 'index($0, ENVIRON["PREFIX"]) == 1' | wc -l
}

wrong=0
for file in "$files"/*; do
    prefixes=(a)
    # For a pattern, a point would stand for any letter.
    [ "${file##*/}" != white-space ] || prefixes+=(a.)
    for prefix in "${prefixes[@]}"; do
        expected="$(dumb_count "$file" "$prefix")"
        for name in "${names[@]}"; do
            result="$(./run.sh "$name" "$file" "$prefix")" || result="nothing"
            [[ "$result" == *"\"count\":$expected,"* ]] && continue
            echo "$name counts wrong: ${file##*/} has $expected words with $prefix, it says $result" >&2
            wrong=1
        done
    done
done
[ "$wrong" = 0 ] && echo "all peers count right: ${names[*]}"
exit "$wrong"
