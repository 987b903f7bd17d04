# SPDX-License-Identifier: Apache-2.0
# build.mk - `make mutants`: lines of the product broken one at a time, each with the test that must notice.
#
# MUTANTS='-j 1 -o window.c' for other lanes than two, or for some of the mutations alone.

MUTANT_LISTS := $(sort $(wildcard selftests/mutants/*.list))
MUTANTS ?= -j 2

.PHONY: mutants run-mutants mutant-tests
mutants: setup
	$(again) run-mutants
run-mutants: tests
	@$(SUDO) env SINGVGPU_BUILD=$(BUILD) selftests/mutants/run-mutants $(MUTANTS) $(SUPERVISE) \
		$(MUTANT_LISTS) $(ours)

# What a list may name, a line each; for test-mutants, which reads the lists in `make check`.
mutant-tests:
	@printf '%s\n' $(HOST_TESTS) $(VM_TESTS)
HOST_TESTS += selftests/mutants/test-mutants
