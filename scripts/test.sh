#!/usr/bin/env bash
# test.sh: the steps of `make test`, the cheapest first. Each step has a time limit. At the end a line for each group of
# tests says how many passed, failed and were left out. The output of each step is also in target/test.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
output=$target/test
mkdir -p "$output"
rm -f "$output"/*.log
export PYTHONDONTWRITEBYTECODE=1
# Property tests draw the same cases in every run, as under cargo (.cargo/config.toml).
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-1}

# The tests outside of cargo start this program.
program=MILLSTREAM_BIN=$target/debug/millstream

# The groups, each with its results.
groups=()

# step NAME SECONDS COMMAND…: runs the command with a time limit.
step() {
    local name=$1 seconds=$2 began=$SECONDS
    shift 2
    echo "make: $name: $*"
    timeout --kill-after=10 "$seconds" "$@" 2>&1 | tee "$output/$name.log" || failed "$name" "$seconds" "${PIPESTATUS[0]}"
    echo "make: $name: $((SECONDS - began)) s"
}

# failed NAME SECONDS CODE: says why the step failed, and ends.
failed() {
    local reason="failed with the exit code $3"
    [[ $3 != 124 && $3 != 137 ]] || reason="was ended after its limit of $2 s"
    echo "make: the step '$1' $reason; its output is in $output/$1.log" >&2
    print_groups
    exit 1
}

# count GROUP STEP: notes the results of a group, which the output of a step ends with.
count() {
    groups+=("$1: $(results <"$output/$2.log")")
}

# Sums the results of cargo, pytest and node's runner.
results() {
    awk '
        /^test result: / || / in [0-9.]+s.*=+$/ || /^[0-9]+ passed, / {
            for (word = 2; word <= NF; word++) sums[$word] += $(word - 1)
        }
        /^# (pass|fail|skipped) / { sums[$2] += $3 }
        function sum(a, b, c, d) { return sums[a] + sums[b] + sums[c] + sums[d] }
        END {
            passed = sum("passed", "passed;", "passed,", "pass")
            failed = sum("failed", "failed;", "failed,", "fail")
            skipped = sum("skipped", "skipped,", "ignored;", "skipped;")
            printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
        }'
}

print_groups() {
    [ "${#groups[@]}" = 0 ] || printf '%s\n' "${groups[@]}"
}

# Ranks that are processes are tested where there is MPI.
mpi=()
if scripts/setup.sh has-mpi; then
    mpi=(--features millstream-cli/mpi,millstream-exchange/mpi,millstream-bench/mpi)
fi

step format 60 cargo fmt --all --check
step clippy 1200 cargo clippy --workspace --all-targets --locked "${mpi[@]}" -- -D warnings
step build 2700 bash -c 'cargo test --workspace --locked --no-run --message-format=json-render-diagnostics "${@:2}" >"$1"' \
    _ "$output/programs.json" "${mpi[@]}"
step rust 2400 "$target/debug/xtask" tests "$output/programs.json"
count rust rust
step documentation 600 cargo test --workspace --doc --locked "${mpi[@]}"
step exchange 300 cargo test --locked -p millstream-exchange
step loom 900 env RUSTFLAGS="--cfg loom" cargo test --release --locked --target-dir "$target/loom" \
    -p millstream-ring -p millstream-share --test loom
count models loom
if cargo +nightly miri --version >/dev/null 2>&1; then
    step miri 900 cargo +nightly miri test --locked --target-dir "$target/miri" -p millstream-ring
fi
step tidy 600 env "$program" "$target/debug/xtask" tidy
step clients 900 env "$program" target/clients/venv/bin/pytest tests/clients
count clients clients
step slurm 600 env "$program" target/clients/venv/bin/pytest tests/slurm
count slurm slurm
if [ -f tests/browser/package.json ]; then
    step browser 300 env "$program" npm --prefix tests/browser test
    count browser browser
fi
print_groups
