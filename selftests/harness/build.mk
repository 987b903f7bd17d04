# SPDX-License-Identifier: Apache-2.0
# build.mk - the test runner, the ways to start it, and the proof that it notices what it should.

SUPERVISE := $(BUILD)/selftests/harness/supervise
# Tests run as root: CRIU and the VM need it. What they leave in the tree is ours again.
SUDO := $(if $(filter-out 0,$(shell id -u)),sudo -n)
# The limits are for a machine of any kind that has nothing else to do; -x for what we do at once.
RUN_TESTS = $(SUDO) env SINGVGPU_BUILD=$(B) \
	selftests/harness/run-tests -x 3 -l $(B)/logs $(SUPERVISE)
ours = ; status=$$?; $(if $(SUDO),$(SUDO) chown -R $(shell id -u) $(BUILD);) exit $$status
limit = $(or $(TIMEOUT_$(basename $(notdir $(1)))),300)
timed = $(foreach t,$(1),$(call limit,$(t)):$(t))

$(SUPERVISE): selftests/harness/supervise.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra $(WERROR) -o $@ $<

# What test-runner runs: a test program that leaks an fd and a mapping.
HOST_TESTS += selftests/harness/test-runner
TIMEOUT_test-runner := 300
TEST_PROGRAMS += $(B)/selftests/harness/leaky
$(B)/selftests/harness/leaky: selftests/harness/leaky.c selftests/harness/leaks.h $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) -o $@ $< $(LDFLAGS)

HOST_TESTS += selftests/harness/test-style selftests/harness/test-wire \
	selftests/harness/test-cuda selftests/harness/test-step-cuda selftests/harness/test-step-torch \
	selftests/harness/test-index selftests/harness/test-supported \
	selftests/harness/test-floors
SIDE_TESTS += selftests/harness/test-style
TIMEOUT_test-style := 600

# Fragments look at what setup brings, so a second make builds and runs the tests. -j2 is for the
# building. Tests wait most of the time, and an emulated machine keeps one processor busy, so
# `make check` runs them in three lanes: one VM, what is named in SIDE_TESTS and a sanitizer's build;
# the other VMs and the other build; and all other tests of the host, from which each lane takes when
# it has run its own. No test may depend on the time that it takes, nor on what else there is on the
# machine.
again = +@$(MAKE) --no-print-directory -j2

# The test programs (not the scripts, nor the VM) under sanitizers, each build one program to the
# runner. gcc 12's TSan does not know the address space of newer kernels.
SAN_PROGRAMS := $(foreach s,asan tsan,$(BUILD)/$(s)/selftests/harness/$(s)-tests)
SAN_LIMIT ?= 900
TIMEOUT_asan-tests := $(SAN_LIMIT)
TIMEOUT_tsan-tests := $(SAN_LIMIT)
.PHONY: san san-asan san-tsan setup-torch
san: san-tsan
# With -O2 -g gcc takes twice as long. With -O1 it warns of variables that it cannot follow: warnings are the plain build's.
san-asan:
	+@$(MAKE) --no-print-directory SAN=address,undefined B=$(BUILD)/asan CFLAGS='-O1 -g1' WERROR=-w san-tests
# One after the other, since some of what they make is shared.
san-tsan: san-asan
	+@$(MAKE) --no-print-directory SAN=thread B=$(BUILD)/tsan CC=clang-19 san-tests
setup-torch:
	@tools/setup/setup -o torch

.PHONY: check check-host check-vm check-san check-long check-full
check: setup
	+@$(MAKE) --no-print-directory -j3 setup-torch san
	$(again) run-check
check-host: setup
	$(again) run-check-host
check-vm: setup
	$(again) run-check-vm
check-san: setup
	$(again) san
	$(again) run-check-san
check-long: setup
	$(again) run-check-long
# All of CUDA and of NVIDIA's libraries, every shape, type and image: an hour and more.
check-full: setup
	$(again) run-check-full

.PHONY: run-check run-check-host run-check-vm run-check-san run-check-long run-check-full
run-check: LAST_VM = $(lastword $(VM_PROGRAMS))
run-check: tests
	@$(RUN_TESTS) $(call timed,$(or $(VM_MOST),$(LAST_VM)) $(filter $(SIDE_TESTS),$(HOST_TESTS)) \
			$(firstword $(SAN_PROGRAMS))) -- \
		$(call timed,$(filter-out $(LAST_VM),$(VM_PROGRAMS)) $(lastword $(SAN_PROGRAMS))) -- \
		++ $(call timed,$(filter-out $(SIDE_TESTS),$(HOST_TESTS))) $(ours)
run-check-host: tests
	@$(RUN_TESTS) $(call timed,$(HOST_TESTS)) $(ours)
run-check-vm: tests
	@$(RUN_TESTS) $(call timed,$(VM_PROGRAMS)) $(ours)
run-check-san:
	@$(RUN_TESTS) $(call timed,$(SAN_PROGRAMS)) $(ours)
# It takes hours, so it goes on where the last one of the same sources was stopped; ANEW=1 begins anew.
LONG_DONE := $(B)/logs/check-long.done
run-check-long: tests
	@mkdir -p $(B)/logs
	@$(if $(ANEW),rm -f $(LONG_DONE))
	@$(subst -x 3,-x 3 -r $(LONG_DONE) -k $$({ git ls-files -z || \
		find . -path ./$(BUILD) -prune -o -type f -print0; } 2>/dev/null | sort -z | \
		xargs -0 cat 2>/dev/null | sha256sum | cut -c 1-32), \
		$(RUN_TESTS)) $(call timed,$(LONG_TESTS)) $(ours)
run-check-full: tests
	@$(RUN_TESTS) $(call timed,$(HOST_TESTS) $(FULL_TESTS)) $(ours)

# A bench prints its table and writes $(BUILD)/bench/NAME.json; make bench-NAME runs one.
.PHONY: bench run-bench demo run-demo check-fresh
bench: setup
	$(again) run-bench
bench-%: setup
	$(again) run-bench BENCHES='$(filter %/$*,$(BENCHES))'
run-bench: all $(BENCHES)
	@mkdir -p $(BUILD)/bench
	@$(if $(BENCHES),,echo "there is no such bench" >&2; exit 1)
	@set -e; for bench in $(BENCHES); do $$bench; done

demo: setup
	$(again) run-demo-torch
run-demo: all $(DEMOS)
	@$(if $(DEMOS),,echo "there is no demo" >&2; exit 1)
	@mkdir -p $(BUILD)/bench
	@set -e; for demo in $(DEMOS); do $$demo; done

# docs/supported.md, from what the last checks of frameworks said.
.PHONY: supported-page
supported-page:
	selftests/harness/supported >docs/supported.md.new
	mv docs/supported.md.new docs/supported.md

# What a newcomer sees: README's commands in a minimal Debian of their own.
check-fresh:
	@selftests/harness/check-fresh

# clang-format has no say in what it lays out worse than the kernel's programmers do.
.PHONY: style format-check
style: setup
	@selftests/harness/test-style
format-check: setup
	@clang-format-19 --dry-run $(shell git ls-files '*.c' '*.h')
	@perl -CSD -ne 'chomp; 1 while s/\t/" " x (8 - length($$`) % 8)/e; \
		print "$$ARGV:$$.: wider than 100\n" if length > 100; close ARGV if eof' \
		$(shell git ls-files '*.c' '*.h' '*.mk')
