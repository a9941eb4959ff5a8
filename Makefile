# jvmprobe: see `make help`.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
TOOLS := javaclass javagc javaobjnew javaprof javastack javawait jvmprobed
# Runs on the user's machine, so it is installed to bin.
PLUGIN := kubectl-jvm

# Like release, but faster to build: see Cargo.toml.
TESTED := --profile tested --locked
# The agent has no standard library and cannot unwind, so it is excluded from builds in which panics unwind.
EXCLUDE_AGENT := --exclude jvmprobe-agent

.DEFAULT_GOAL := help

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the tools (installs what is missing through apt)
	@tests/setup build
	$(CARGO) build --release --locked

demo: ## Run each tool for a few seconds on a small Java program (root)
	@tests/setup demo
	$(CARGO) build --profile demo --locked $(TOOLS:%=-p %)
	@tests/demo

test: ## Check the style, then run every test against real JVMs (root)
	@tests/setup test
	@tests/runtimes
	@tests/programs
	@tests/receivers >/dev/null
	@tests/deployers >/dev/null
	@$(MAKE) --no-print-directory lint
	@# Build everything at once. Builds of a part of it would select other features of dependencies, and compile
	@# what depends on them again.
	$(CARGO) build $(TESTED) --workspace $(EXCLUDE_AGENT) --bins --tests
	@# Tests that need neither root nor a JVM run first, because they take only seconds.
	$(CARGO) test $(TESTED) --workspace $(EXCLUDE_AGENT) --lib --bins --test recordings
	@# Run all test files, even after a failure, so that one run reports every failure.
	TOOLS_ARE_BUILT=1 CARGO="$(CARGO)" tests/run $(TESTED) --workspace $(EXCLUDE_AGENT)

test-all: test ## Run all tests, including those that take long (root)
	@tests/setup test-all
	TOOLS_ARE_BUILT=1 CARGO="$(CARGO)" tests/run $(TESTED) --workspace $(EXCLUDE_AGENT) -- --ignored

fuzz: ## Fuzz all parsers of foreign bytes (takes hours; FUZZ_SECONDS=60: one minute per fuzzer)
	@tests/setup build
	@tests/fuzz/run

soak: ## Run each tool for an hour (SOAK_SECONDS) while JVMs start and exit; print its resource usage (root)
	@tests/setup test
	@tests/runtimes >/dev/null
	$(CARGO) build --release --locked
	@tests/soak

soak-daemon: ## Run jvmprobed for an hour (SOAK_SECONDS) with 200 JVMs (SOAK_JVMS); print its resource usage and the data that it sends (root)
	@tests/setup test
	@tests/runtimes >/dev/null
	$(CARGO) build --release --locked
	@tests/soak-daemon

many: ## Run each tool on 1, 10 and 100 JVMs; print the time to attach, the delay at the end, and peak memory (root)
	@tests/setup test
	@tests/runtimes >/dev/null
	$(CARGO) build --release --locked
	@tests/many

kernels: ## Boot Debian's kernels, 5.10 to the newest, and run each tool in each of them (root)
	@tests/setup kernels
	$(CARGO) build --release --locked
	@tests/kernels/run

aarch64: ## Build the tools for aarch64 and test them under an emulated arm64 kernel (root, x86-64, Debian)
	@tests/setup aarch64
	@tests/aarch64/check

lint: ## Check formatting, clippy, documentation and dependencies; fail on warnings
	$(CARGO) fmt --all --check
	@# The functions that the fuzzers call exist only with this feature. A second run without it would take half a minute.
	$(CARGO) clippy $(TESTED) --workspace $(EXCLUDE_AGENT) --all-targets --features libjvmprobe/fuzzing -- -D warnings
	$(CARGO) clippy --release --locked -p jvmprobe-agent -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(TESTED) --workspace $(EXCLUDE_AGENT) --no-deps --document-private-items --quiet
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --locked -p jvmprobe-agent --no-deps --document-private-items --quiet
	@# Licences, sources and duplicate versions; `make audit` also checks for known vulnerabilities.
	PATH="$$(tests/auditors deny):$$PATH" $(CARGO) deny --config tests/deny.toml check licenses bans sources

audit: ## Check the dependencies for known vulnerabilities (needs the network)
	PATH="$$(tests/auditors deny):$$PATH" $(CARGO) deny --config tests/deny.toml check

bench: ## Measure accuracy, overhead, start-up time, throughput and memory (root)
	@tests/setup test
	@tests/runtimes
	$(CARGO) bench --locked -p jvmprobe-tests

install: ## Install self-contained binaries and man pages under PREFIX
	@tests/setup build
	@built=$$(CARGO="$(CARGO)" tests/static $(TOOLS) $(PLUGIN)) || exit 1; \
	install -D -m 755 $$built/$(PLUGIN) $(DESTDIR)$(PREFIX)/bin/$(PLUGIN) && \
	install -D -m 644 man/$(PLUGIN).8 $(DESTDIR)$(PREFIX)/share/man/man8/$(PLUGIN).8 || exit 1; \
	for tool in $(TOOLS); do \
		install -D -m 755 $$built/$$tool $(DESTDIR)$(PREFIX)/sbin/$$tool && \
		install -D -m 644 man/$$tool.8 $(DESTDIR)$(PREFIX)/share/man/man8/$$tool.8 && \
		install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions && \
		$(DESTDIR)$(PREFIX)/sbin/$$tool --completions bash \
			> $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$tool || exit 1; \
		echo "installed $(DESTDIR)$(PREFIX)/sbin/$$tool"; \
	done

packages: ## Build .deb and .rpm of all tools and of the service jvmprobed, with SBOMs, below target/packages; also for aarch64 if tests/aarch64 has a cross compiler
	@tests/packagers >/dev/null
	rm -rf target/package target/packages && mkdir -p target/packages
	@$(MAKE) --no-print-directory install DESTDIR=$(CURDIR)/target/package PREFIX=/usr
	@for tool in $(TOOLS); do \
		install -d target/package/usr/share/zsh/vendor-completions target/package/usr/share/fish/vendor_completions.d && \
		target/package/usr/sbin/$$tool --completions zsh > target/package/usr/share/zsh/vendor-completions/_$$tool && \
		target/package/usr/sbin/$$tool --completions fish > target/package/usr/share/fish/vendor_completions.d/$$tool.fish || exit 1; \
	done
	@# Lists of the crates in each binary, in CycloneDX's format.
	@tests/sbom target/package/usr/share/doc/jvmprobe/sbom
	@tests/packagers target/packages
	@cp target/package/usr/share/doc/jvmprobe/sbom/* target/packages/
	@tests/aarch64/pack packages

image: ## Build a container image of the static binaries, with podman or buildah; also for aarch64 if tests/aarch64 has a cross compiler
	rm -rf target/image
	@$(MAKE) --no-print-directory install DESTDIR=$(CURDIR)/target/image PREFIX=/usr
	@tests/image
	@tests/aarch64/pack image

release: ## Build the files of a release twice, below target/release-files, and compare them (RELEASE_ONCE=1: once)
	@tests/release

uninstall: ## Remove the files that install has installed
	@for tool in $(TOOLS); do \
		rm -fv $(DESTDIR)$(PREFIX)/sbin/$$tool $(DESTDIR)$(PREFIX)/share/man/man8/$$tool.8 \
			$(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$tool; \
	done
	@rm -fv $(DESTDIR)$(PREFIX)/bin/$(PLUGIN) $(DESTDIR)$(PREFIX)/share/man/man8/$(PLUGIN).8

clean: ## Remove all build output
	$(CARGO) clean

.PHONY: help build demo test test-all fuzz soak soak-daemon many kernels aarch64 lint audit bench install packages image release uninstall clean
