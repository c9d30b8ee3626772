#!/usr/bin/env bash
# deb.sh PROGRAM FOLDER: makes Debian packages of a program that was built with its symbols: millstream, and
# millstream-dbgsym with the symbols, which debuggers, perf and the program's own backtraces find by themselves.
set -euo pipefail
program=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "$0")/.."

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
architecture=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

# pack NAME DEPENDS SUMMARY: makes the package of the files in $work/NAME.
pack() {
    local root=$work/$1
    mkdir -p "$root/DEBIAN"
    cat >"$root/DEBIAN/control" <<CONTROL
Package: $1
Version: $version
Architecture: $architecture
Maintainer: Millstream
Section: database
Priority: optional
Depends: $2
Installed-Size: $(du -sk "$root" | cut -f1)
Description: $3
CONTROL
    dpkg-deb --root-owner-group --build "$root" "$out/$1_${version}_$architecture.deb"
}

main=$work/millstream
install -D -m 755 "$program" "$main/usr/bin/millstream"
symbols=$work/millstream-dbgsym/usr/lib/debug/usr/bin/millstream.debug
mkdir -p "$(dirname "$symbols")"
objcopy --only-keep-debug --compress-debug-sections "$main/usr/bin/millstream" "$symbols"
chmod 644 "$symbols"
objcopy --strip-all --add-gnu-debuglink="$symbols" "$main/usr/bin/millstream"

install -D -m 644 packaging/millstream.service "$main/lib/systemd/system/millstream.service"
install -D -m 644 packaging/millstream.sysusers "$main/usr/lib/sysusers.d/millstream.conf"
install -D -m 644 packaging/millstream.toml "$main/etc/millstream/millstream.toml"
install -D -m 644 LICENSE "$main/usr/share/doc/millstream/copyright"
install -D -m 644 CHANGELOG.md "$main/usr/share/doc/millstream/CHANGELOG.md"
mkdir -p "$main/DEBIAN"
install -m 755 packaging/debian/* "$main/DEBIAN/"
echo /etc/millstream/millstream.toml >"$main/DEBIAN/conffiles"

pack millstream "libc6 (>= 2.34), libgcc-s1, systemd" "server of streams and dataflows, compatible with Kafka's clients"
pack millstream-dbgsym "millstream (= $version)" "debug symbols of millstream"
