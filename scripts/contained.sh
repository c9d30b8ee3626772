#!/usr/bin/env bash
# contained.sh SECONDS COMMAND…: runs the command with a time limit. All processes and mounts that it leaves end with
# it, and also when the limit is reached or the caller ends, even by kill -9: the command runs in a process and a mount
# name space of its own, whose first process dies with the caller.
set -euo pipefail

# The first process of the name space. It waits for the orphans, too.
if [ "${1:-}" = --inside ]; then
    shift
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    timeout --kill-after=10 "$@" &
    wait $! && exit
    code=$?
    [ "$code" != 124 ] || echo "make: ended after the limit of $1 s: ${*:2}" >&2
    exit "$code"
fi

# A user other than root gets the right to make name spaces from a user name space.
spaces=(unshare --mount --propagation private --pid --fork --kill-child=KILL --mount-proc)
[ "$(id -u)" = 0 ] || spaces=(unshare --user --map-current-user --keep-caps setpriv --pdeathsig KILL "${spaces[@]}")
if "${spaces[@]}" true 2>/dev/null; then
    exec setpriv --pdeathsig KILL "${spaces[@]}" bash "$0" --inside "$@"
fi
echo "make: no name spaces here: processes that a killed run leaves behind go on" >&2
exec setpriv --pdeathsig KILL timeout --kill-after=10 "$@"
