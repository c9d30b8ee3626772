# The targets for users and developers. Every target first brings what it needs onto the machine
# (scripts/setup.sh), so that a fresh Debian with Rust, gcc and Node needs nothing by hand. It asks
# before it installs Debian packages, except in CI (CI=true).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run test bench package

# rustup puts cargo there, and a shell without a login does not know.
export PATH := $(PATH):$(HOME)/.cargo/bin

ifeq ($(CI),true)
export CARGO_INCREMENTAL := 0
# Lines of backtraces alone would need this information; without it the build takes a fifth less time.
export CARGO_PROFILE_DEV_DEBUG := 0
export CARGO_TERM_COLOR := never
export CARGO_TERM_PROGRESS_WHEN := never
export NO_COLOR := 1
export TERM := dumb
export npm_config_progress := false
endif

# LIMIT SECONDS COMMAND: ends a command that takes longer. It may ask questions on the terminal.
LIMIT := timeout --foreground --kill-after=10

TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))

# `make run` builds and starts the program, or starts the one that MILLSTREAM_BIN names: so the
# documentation's commands are executed without a second build.
MILLSTREAM := $(or $(MILLSTREAM_BIN),cargo run --release --locked -p millstream-cli --)

# Ranks that are processes are tested, and measured, where there is MPI, which setup.sh may have just installed.
MPI := $$(scripts/setup.sh has-mpi && echo --features millstream-cli/mpi,millstream-exchange/mpi,millstream-bench/mpi || true)

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: ## build the program and run `millstream quickstart`; more words in ARGS="--for 20s"
	@$(LIMIT) 1200 scripts/setup.sh run
	@$(MILLSTREAM) quickstart $(ARGS)

test: ## everything CI checks: formatting, clippy, all tests, tidy, Kafka's clients, SLURM, the browser test
	@$(LIMIT) 1200 scripts/setup.sh test
	@exec scripts/contained.sh 4800 scripts/test.sh

# `ranks`, and the run of all benchmarks, measure the program with MPI, where it is installed. Any other benchmark by
# itself measures the program without MPI.
bench: ## all benchmarks, or one: NAME=log, NAME=keys, NAME=engine, NAME=broker, NAME=push, NAME=swa, NAME=ysb, NAME=ysb-star, NAME=windows, NAME=state, NAME=nexmark, NAME=ranks, NAME=serving, NAME=slo, NAME=soak, NAME=torture, NAME=librdkafka; more words in ARGS="--for 2h"
	@$(LIMIT) 1200 scripts/setup.sh bench
	@$(if $(NAME),,scripts/setup.sh has-mpi && echo "all benchmarks measure the program with MPI; NAME=… measures one without it, except for ranks" || true)
	@cargo build --profile profiling --locked -p millstream-cli -p millstream-bench $(if $(filter-out ranks,$(NAME)),,$(MPI))
	@$(TARGET)/profiling/millstream-bench $(NAME) $(ARGS)

package: ## Debian packages in target/package: the program with its service, and its debug symbols
	@$(LIMIT) 1200 scripts/setup.sh package
	cargo build --profile profiling --locked -p millstream-cli
	rm -rf $(TARGET)/package
	packaging/deb.sh $(TARGET)/profiling/millstream $(TARGET)/package
	packaging/check.sh $(TARGET)/package
