#!/usr/bin/env bash
# setup.sh run|test|bench|package: installs the requirements of that target of the Makefile.
# Changes nothing, and takes no time, where nothing is missing. Asks before it installs Debian packages, unless CI=true.
# setup.sh has-mpi: whether ranks that are processes can be built.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    echo "setup: $*" >&2
    exit 1
}

missing_packages=()

# need COMMAND PACKAGE...: notes the Debian packages that bring the command, unless it is there.
need() {
    command -v "$1" >/dev/null || missing_packages+=("${@:2}")
}

# Tests and measurements of ranks that are processes need MPI; without MPI they are skipped.
need_mpi() {
    command -v mpicc >/dev/null && has_libclang && return
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        missing_packages+=(libopenmpi-dev openmpi-bin libclang-dev)
    else
        echo "setup: there is no MPI here: ranks that are processes are left out (libopenmpi-dev, openmpi-bin, libclang-dev)" >&2
    fi
}

# Root starts a cluster for its tests alone; without SLURM they are skipped.
need_slurm() {
    command -v munged >/dev/null && command -v slurmctld >/dev/null && command -v slurmd >/dev/null &&
        command -v srun >/dev/null && return
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        missing_packages+=(munge slurmctld slurmd slurm-client)
    else
        echo "setup: there is no SLURM here: its tests are left out (munge, slurmctld, slurmd, slurm-client)" >&2
    fi
}

# Rust's bindings of MPI are made from its header, with clang's library.
has_libclang() {
    compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null || [ -n "${LIBCLANG_PATH:-}" ]
}

# The installation starts no daemon: the tests start their own.
keep_services_off() {
    local policy=/usr/sbin/policy-rc.d
    [ -e "$policy" ] && return
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
}

# may_install PACKAGES: asks on the terminal, since this changes the machine. CI has agreed.
may_install() {
    [ "${CI:-}" = true ] && return
    [ -t 0 ] && [ -t 2 ] || return
    local answer
    read -r -p "setup: install the Debian packages $1? [y/N] " answer || return
    [[ $answer == [yY] || $answer == [yY]es ]]
}

install_missing_packages() {
    [ "${#missing_packages[@]}" -gt 0 ] || return 0
    local packages="${missing_packages[*]}"
    command -v apt-get >/dev/null ||
        fail "this needs the Debian packages $packages, and there is no apt-get here: install their like, then run make again"
    [ "$(id -u)" = 0 ] ||
        fail "this needs the packages $packages: run 'apt-get install $packages' as root, then run make again"
    may_install "$packages" ||
        fail "this needs the packages $packages: run 'apt-get install $packages', or set CI=true to let make do it"
    echo "setup: installing $packages" >&2
    export DEBIAN_FRONTEND=noninteractive
    keep_services_off
    apt-get update -qq || fail "apt-get update failed (see above)"
    apt-get install -qq --no-install-recommends "${missing_packages[@]}" >&2 ||
        fail "apt-get could not install $packages (see above)"
}

need_rust() {
    command -v cargo >/dev/null ||
        fail "cargo is missing: install Rust's toolchain as https://rustup.rs tells, then run make again"
    need cc gcc libc6-dev
}

# need_rust_component SUBCOMMAND COMPONENT: a cargo subcommand that a minimal toolchain lacks.
need_rust_component() {
    cargo "$1" --version >/dev/null 2>&1 && return
    command -v rustup >/dev/null ||
        fail "'cargo $1' is missing, and there is no rustup to add it: install it, then run make again"
    rustup component add "$2" || fail "rustup could not add $2 (see above)"
}

# install_npm_packages FOLDER: installs the packages of its lock file, unless they are installed already.
install_npm_packages() {
    [ "$1/node_modules/.package-lock.json" -nt "$1/package-lock.json" ] ||
        npm --prefix "$1" ci --no-audit --no-fund --loglevel=error >&2 ||
        fail "npm ci in $1 failed (see above)"
}

# install_python_packages FOLDER VENV: installs the packages of its requirements, unless they are installed already.
install_python_packages() {
    cmp -s "$1/requirements.txt" "$2/requirements.txt" && return
    rm -rf "$2"
    python3 -m venv "$2" >&2 || fail "python3 could not make $2 (see above)"
    "$2/bin/pip" install --quiet --disable-pip-version-check --requirement "$1/requirements.txt" >&2 ||
        fail "pip could not install $1/requirements.txt (see above)"
    cp "$1/requirements.txt" "$2/requirements.txt"
}

# is_newer FILE FOLDER: whether FILE was made after everything in FOLDER was last changed.
is_newer() {
    [ -e "$1" ] && [ -z "$(find "$2" -newer "$1" -print -quit)" ]
}

# build_java FOLDER NAME [PROPERTY]: builds the Java sources and dependencies of tests/clients/FOLDER into
# target/clients/NAME, unless they are there already.
build_java() {
    is_newer "target/clients/$2/built" "tests/clients/$1" && return
    echo "setup: building tests/clients/$1, $2" >&2
    rm -rf "target/clients/$2"
    mvn --quiet --batch-mode --file "tests/clients/$1" "${@:3}" package >&2 ||
        fail "Maven could not build tests/clients/$1 (see above)"
    touch "target/clients/$2/built"
}

# Debian's Go is too old for franz-go; without a newer one these tests are skipped.
build_go_tests() {
    PATH="$PATH:/usr/local/go/bin"
    if ! command -v go >/dev/null; then
        echo "setup: there is no Go here: the tests of franz-go are left out (https://go.dev/dl)" >&2
        return
    fi
    (cd tests/clients/go && go test -c -o ../../../target/clients/franz.test .) >&2 ||
        fail "go could not build tests/clients/go (see above)"
}

case "${1:-}" in
run)
    need_rust
    install_missing_packages
    ;;
package)
    need_rust
    need objcopy binutils
    need systemd-analyze systemd
    install_missing_packages
    ;;
bench)
    need_rust
    need valgrind valgrind
    need_mpi
    install_missing_packages
    ;;
test)
    need_rust
    need kcat kcat
    need openssl openssl
    need javac openjdk-17-jdk-headless
    need mvn maven
    need_mpi
    need_slurm
    # Debian's python3 cannot make a venv by itself.
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing_packages+=(python3 python3-venv)
    if [ -f tests/browser/package.json ]; then
        need node nodejs
        need npm npm
        need chromium chromium
    fi
    install_missing_packages
    need_rust_component fmt rustfmt
    need_rust_component clippy clippy
    install_python_packages tests/clients target/clients/venv
    build_java java java-4.3.1 -Dkafka.version=4.3.1
    build_java java java-3.9.2 -Dkafka.version=3.9.2
    build_java streams java-streams
    build_java tools tools
    build_java connect connect
    build_java registry registry
    build_go_tests
    if [ -f tests/browser/package.json ]; then
        install_npm_packages tests/browser
    fi
    ;;
has-mpi)
    command -v mpicc >/dev/null && has_libclang
    ;;
*)
    echo "usage: scripts/setup.sh run|test|bench|package|has-mpi" >&2
    exit 2
    ;;
esac
