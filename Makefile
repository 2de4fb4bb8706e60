# Butterfly: everything a person or a machine runs. `make help` lists the targets.
# Recipes are one line where possible; what takes more thought is a script under tests/ that runs on its own too.

CARGO      ?= cargo
PREFIX     ?= /usr/local
SYSCONFDIR ?= /etc
UNITDIR    ?= $(PREFIX)/lib/systemd/system
# Below PREFIX/share. Debian's zsh looks for the completions of packages in zsh/vendor-completions.
ZSHDIR     ?= zsh/site-functions
KEEP       ?=
MINUTES    ?= 60

# The programs that tests and install use; another build can be tested by naming its directory.
BIN ?= $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/release
export BIN

# A build in CI must use the versions that are committed, and nobody builds after it what it could keep.
LOCKED := $(if $(CI),--locked)
ifdef CI
export CARGO_INCREMENTAL := 0
endif

PROGRAMS := butterflyd butterfly butterfly-bench
# By package: what tests add to a crate (features) is not in the programs.
PACKAGES := butterflyd butterfly butterfly-bench

# What the programs print about themselves, and where it goes.
SHARE     := $(PREFIX)/share
GENERATED := man/man1/butterfly.1 man/man8/butterflyd.8 man/man1/butterfly-bench.1 $(foreach program,$(PROGRAMS),bash-completion/completions/$(program) \
             $(ZSHDIR)/_$(program) fish/vendor_completions.d/$(program).fish)

# What `make test` runs, in this order: the quick and the likely to fail first.
# What is behind a + runs beside what is before it.
TEST_PARTS := unit scenarios terminal metrics contract attack link crash guests+lint hosts tunnel+instructions+fuzz dpdk demo

.DEFAULT_GOAL := build
# One target after the other, whatever -j says: they install packages and use what the one before built. cargo takes all cores.
.NOTPARALLEL:
.PHONY: help setup build test test-long demo bench compare soak mutation fuzz captures install install-files uninstall deb clean guest \
        test-lint test-unit test-scenarios test-terminal test-guests test-hosts test-tunnel test-dpdk test-instructions test-attack test-link test-crash test-demo test-kill-points test-fuzz test-metrics test-contract test-howto test-package

help: ## list the targets
	@echo 'Variables: KEEP=1 (demo), MINUTES=60 (test-long, soak), DESTDIR PREFIX SYSCONFDIR UNITDIR ZSHDIR (install), BIN=dir with other builds to test.'
	@echo '"root": needs root. Targets install missing Debian packages when run as root.'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## check the Rust toolchain, install missing Debian packages (root)
	@tests/lib/setup.sh test

build: ## build target/release/butterflyd, butterfly and butterfly-bench
	@tests/lib/setup.sh build
	$(CARGO) build --release $(LOCKED) $(PACKAGES:%=-p %) $(PROGRAMS:%=--bin %)

test: setup build ## all checks and tests, 30 to 45 minutes on two cores (root)
	@tests/run.sh $(TEST_PARTS)

test-lint: setup ## formatting, clippy and rustdoc without warnings, licences and duplicates of dependencies, shellcheck, imports that go down, unique names
	@tests/lib/setup.sh lint
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --test metrics $(LOCKED) -- -D warnings
	$(CARGO) clippy $(PACKAGES:%=-p %) $(LOCKED) -- -D warnings
	RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' $(CARGO) doc --quiet --workspace --no-deps --document-private-items $(LOCKED)
	tests/lib/shellcheck.sh
	tests/lib/named_tests.sh
	tests/lib/imports.py
	tests/lib/words.py
	tests/lib/names.py
	tests/lib/deny.sh
	@# Without --locked this would be mended here and then fail where it counts.
	$(CARGO) metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null

test-unit: setup ## unit and property tests, packet walks, the driver against testpmd, session table in every order (root)
	CARGO=$(CARGO) tests/unit.sh

test-scenarios: setup build ## whole daemons with simulated guests, of one and of two workers, or WORKERS=N (root)
	CARGO=$(CARGO) tests/scenarios.sh

test-terminal: setup build ## what butterfly top shows, in a real terminal; outputs in docs/ against those of the client (root)
	tests/terminal/run.sh
	tests/captures/run.sh --check

captures: setup build ## write the client's outputs in docs/ anew, where they changed (root)
	tests/captures/run.sh

test-metrics: setup build ## a real Prometheus: alert rules, every query of the dashboard, a scrape of 1,000 nics (root)
	CARGO=$(CARGO) tests/metrics/run.sh

test-contract: setup build ## the API as its contract has it, by a client in Python that shares no code, clear and encrypted (root)
	tests/contract/run.sh

test-howto: setup build guest ## the how-tos in docs/, carried out: QEMU and libvirt, live migration, migration, tuning, containers, an orchestrator, encryption, tracing (root)
	@tests/lib/setup.sh more
	tests/howto/run.sh

test-guests: setup build guest ## real QEMU guests: both roles, offloads, crashes, restarts (root)
	tests/guest/run.sh

test-tunnel: setup build guest ## networks that span hosts: real guests on namespaces, kernel VXLAN, three uplinks (root)
	tests/tunnel/run.sh

test-hosts: setup build guest ## two hosts and four real guests by commands, options and outputs of butterfly 0.13 alone (root)
	tests/hosts/run.sh
	UPLINK=dpdk-args tests/hosts/run.sh

test-dpdk: setup build ## a foreign driver (DPDK virtio-user), every byte and every packet accounted for (root)
	tests/dpdk/run.sh

test-instructions: setup ## instructions per packet against the committed figures
	tests/instructions/run.sh

test-crash: setup build ## a daemon that is killed or upgraded under load, a thousand deaths inside one process, and one at each kill point, also while rings go from worker to worker
	tests/crash/run.sh
	tests/crash/run.sh --pairs 10 --rounds 10 --sessions 20000 --upgrades
	CARGO=$(CARGO) tests/kill-points/run.sh --inside 1000
	CARGO=$(CARGO) tests/kill-points/run.sh --short

test-kill-points: setup build ## whole daemons that die between each two steps of publication, of control messages and of commits
	CARGO=$(CARGO) tests/kill-points/run.sh

test-link: setup ## the link emulator between two kernels (root)
	tests/link/run.sh

test-attack: setup build ## a hostile guest for 60 seconds (root)
	tests/attack/run.sh

test-fuzz: setup ## replay the fuzzing corpus
	tests/fuzz/run.sh replay

test-demo: demo ## the demo, which has to go on working (root)

demo: setup build guest ## two hosts with real guests, step by step; KEEP=1 leaves it running (root)
	@KEEP=$(KEEP) tests/demo/demo.sh

guest: setup ## build the test guest (kernel and initramfs) in build/guest
	@tests/guest/build.sh

bench: setup build ## speed against dpdk-testpmd, as ratios of medians; wants a quiet machine (root)
	tests/bench/run.sh

compare: setup build ## Butterfly beside testpmd, OVS-DPDK and the kernel, half an hour: writes docs/figures.md; wants a quiet machine (root)
	@tests/lib/setup.sh compare
	tests/bench/compare.py

test-long: setup build ## what takes hours: MINUTES=60 each of model, attacker, fuzzing and soak, and the long tests (root)
	CARGO=$(CARGO) MINUTES=$(MINUTES) tests/long.sh

soak: MINUTES := $(if $(filter file,$(origin MINUTES)),120,$(MINUTES))
soak: setup build ## MINUTES=120 of two hosts, 50 guests, a bad link, deaths and upgrades; then an eighth of that on one host where vnics come and go (root)
	tests/soak/hosts.sh
	MINUTES=$$((MINUTES / 8 + 1)) tests/soak/run.sh

mutation: setup ## 300 mistakes in the packet path, drawn by SEED (2): which test notices each; about an hour
	CARGO=$(CARGO) SEED=$(or $(SEED),2) tests/mutation/run.sh

fuzz: setup ## coverage-guided fuzzing of rings and control messages
	tests/fuzz/run.sh

install: build install-files ## install programs, manual, completions, sample configuration, systemd unit; DESTDIR, PREFIX

# Pages and completions are printed by the programs themselves, from what --help shows.
install-files:
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(SYSCONFDIR)/butterfly $(DESTDIR)$(UNITDIR) $(addprefix $(DESTDIR)$(SHARE)/,$(dir $(GENERATED)))
	install -s -m 755 $(PROGRAMS:%=$(BIN)/%) $(DESTDIR)$(PREFIX)/bin/
	$(BIN)/butterfly generate manual >$(DESTDIR)$(SHARE)/man/man1/butterfly.1
	$(BIN)/butterflyd --generate manual >$(DESTDIR)$(SHARE)/man/man8/butterflyd.8
	$(BIN)/butterfly-bench --generate manual >$(DESTDIR)$(SHARE)/man/man1/butterfly-bench.1
	$(BIN)/butterfly generate bash >$(DESTDIR)$(SHARE)/bash-completion/completions/butterfly
	$(BIN)/butterflyd --generate bash >$(DESTDIR)$(SHARE)/bash-completion/completions/butterflyd
	$(BIN)/butterfly-bench --generate bash >$(DESTDIR)$(SHARE)/bash-completion/completions/butterfly-bench
	$(BIN)/butterfly generate zsh >$(DESTDIR)$(SHARE)/$(ZSHDIR)/_butterfly
	$(BIN)/butterflyd --generate zsh >$(DESTDIR)$(SHARE)/$(ZSHDIR)/_butterflyd
	$(BIN)/butterfly-bench --generate zsh >$(DESTDIR)$(SHARE)/$(ZSHDIR)/_butterfly-bench
	$(BIN)/butterfly generate fish >$(DESTDIR)$(SHARE)/fish/vendor_completions.d/butterfly.fish
	$(BIN)/butterflyd --generate fish >$(DESTDIR)$(SHARE)/fish/vendor_completions.d/butterflyd.fish
	$(BIN)/butterfly-bench --generate fish >$(DESTDIR)$(SHARE)/fish/vendor_completions.d/butterfly-bench.fish
	chmod 644 $(GENERATED:%=$(DESTDIR)$(SHARE)/%)
	# The operator's own configuration is never replaced.
	test -e $(DESTDIR)$(SYSCONFDIR)/butterfly/butterflyd.ini || \
	  install -m 644 packaging/butterflyd.ini $(DESTDIR)$(SYSCONFDIR)/butterfly/butterflyd.ini
	for unit in butterflyd butterfly-holder; do \
	  sed -e 's|@bindir@|$(PREFIX)/bin|' -e 's|@libdir@|$(PREFIX)/lib|' -e 's|@sysconfdir@|$(SYSCONFDIR)|' packaging/$$unit.service.in \
	    >$(DESTDIR)$(UNITDIR)/$$unit.service && chmod 644 $(DESTDIR)$(UNITDIR)/$$unit.service || exit 1; \
	done
	install -d $(DESTDIR)$(PREFIX)/lib/butterfly
	sed -e 's|@sysconfdir@|$(SYSCONFDIR)|' packaging/ask.in >$(DESTDIR)$(PREFIX)/lib/butterfly/ask
	chmod 755 $(DESTDIR)$(PREFIX)/lib/butterfly/ask
	install -D -m 644 packaging/sysctl.conf $(DESTDIR)$(PREFIX)/lib/sysctl.d/50-butterfly.conf
	install -D -m 644 packaging/sysusers.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/butterfly.conf
	# Read from there alone. A line that an operator changed stays.
	test -e $(DESTDIR)$(SYSCONFDIR)/needrestart/conf.d/butterfly.conf || \
	  install -D -m 644 packaging/needrestart.conf $(DESTDIR)$(SYSCONFDIR)/needrestart/conf.d/butterfly.conf

uninstall: ## remove what install put there, except the configuration
	rm -f $(PROGRAMS:%=$(DESTDIR)$(PREFIX)/bin/%) $(DESTDIR)$(UNITDIR)/butterflyd.service $(DESTDIR)$(UNITDIR)/butterfly-holder.service $(DESTDIR)$(PREFIX)/lib/butterfly/ask $(DESTDIR)$(PREFIX)/lib/sysusers.d/butterfly.conf $(DESTDIR)$(PREFIX)/lib/sysctl.d/50-butterfly.conf $(GENERATED:%=$(DESTDIR)$(SHARE)/%)

deb: build ## build the Debian package in build/deb
	rm -f build/deb/butterfly_*.deb
	packaging/deb/build.sh

test-package: setup build guest ## the package in a Debian with systemd, under QEMU or with BOOT=container: install, upgrade, purge (root)
	@tests/lib/setup.sh more
	tests/package/run.sh $(BOOT)

clean: ## remove everything that was built
	$(CARGO) clean
	rm -rf build
