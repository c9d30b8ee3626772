#!/usr/bin/env bash
# check.sh FOLDER [BYTES]: installs the package in FOLDER into an empty root, starts the server, upgrades and removes
# it, and checks that the data outlives all of it. Fails if the program is larger than BYTES.
set -euo pipefail
package=$(realpath "$1"/millstream_*.deb)
bytes_max=${2:-$((30 << 20))}
root=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null; rm -rf "$root"' EXIT

fail() {
    echo "check: $*" >&2
    exit 1
}

# The dependencies are those of this machine, and the scripts of the package keep to the root.
in_root() {
    dpkg --root="$root" --force-script-chrootless --force-depends --log=/dev/null "$@" >"$root/dpkg.log" 2>&1 ||
        fail "dpkg $*: $(cat "$root/dpkg.log")"
}

mkdir -p "$root"/var/lib/dpkg/{info,updates} "$root/etc"
touch "$root"/var/lib/dpkg/{status,available}
in_root --install "$package"
grep -q '^millstream:' "$root/etc/passwd" || fail "the user millstream is missing"

program=$root/usr/bin/millstream
bytes=$(stat -c %s "$program")
[ "$bytes" -le "$bytes_max" ] || fail "the program has $bytes bytes, more than $bytes_max"

# The unit names the program and its user, which exist in the root alone.
sed "s|/usr/bin/millstream|$program|; s|=millstream$|=root|" "$root/lib/systemd/system/millstream.service" \
    >"$root/millstream.service"
systemd-analyze verify --man=no "$root/millstream.service" || fail "the unit is wrong (see above)"

# start: serves the data of the root, as the unit does, on a free port; sets $server and $address.
start() {
    rm -f "$root/started.json"
    "$program" start --config "$root/etc/millstream/millstream.toml" --data "$root/var/lib/millstream" \
        --listen 127.0.0.1:0 --json >"$root/started.json" &
    server=$!
    for _ in {1..600}; do
        [ -s "$root/started.json" ] && break
        kill -0 "$server" 2>/dev/null || fail "the server does not start"
        sleep 0.1
    done
    address=$(sed 's/.*"listen": *"\([^"]*\)".*/\1/' "$root/started.json")
}

stop() {
    kill -TERM "$server"
    wait "$server" || fail "the server ended with exit code $?"
    server=
}

start
"$program" stream create orders --server "$address" >/dev/null
printf 'one\ntwo\n' | "$program" produce orders --server "$address" >/dev/null
stop

echo '#log_level = "info"' >>"$root/etc/millstream/millstream.toml"
in_root --force-confold --install "$package"
tail -n 1 "$root/etc/millstream/millstream.toml" | grep -q info || fail "an upgrade lost a changed settings file"
start
[ "$("$program" consume orders --server "$address")" = $'one\ntwo' ] || fail "an upgrade lost records"
stop

in_root --remove millstream
[ ! -e "$program" ] || fail "a removed package left its program"
[ -e "$root/etc/millstream/millstream.toml" ] || fail "a removed package took its settings file"
in_root --purge millstream
[ ! -e "$root/etc/millstream/millstream.toml" ] || fail "a purged package left its settings file"
[ -n "$(ls -A "$root/var/lib/millstream")" ] || fail "the data is gone"
echo "check: $(basename "$package") installs, serves, upgrades and goes; the program has $bytes bytes"
