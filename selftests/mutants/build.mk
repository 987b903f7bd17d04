# SPDX-License-Identifier: Apache-2.0
# build.mk - `make mutants`: lines of the product broken one at a time, each with the test that must notice.
#
# MUTANTS='-j 1 -o window.c' for other lanes than two, or for some of the mutations alone. It takes hours, so a call
# goes on where the last one was stopped; ANEW=1 begins anew.

MUTANT_LISTS := $(sort $(wildcard selftests/mutants/*.list))
MUTANTS ?= -j 2

.PHONY: mutants run-mutants mutant-tests
mutants: setup
	$(again) run-mutants
MUTANTS_DONE := $(BUILD)/logs/mutants.done
run-mutants: tests
	@mkdir -p $(BUILD)/logs
	@$(if $(ANEW),rm -f $(MUTANTS_DONE))
	@$(SUDO) env SINGVGPU_BUILD=$(BUILD) selftests/mutants/run-mutants -r $(MUTANTS_DONE) $(MUTANTS) $(SUPERVISE) \
		$(MUTANT_LISTS) $(ours)

# What a list may name, a line each; for test-mutants, which reads the lists in `make check`.
mutant-tests:
	@printf '%s\n' $(HOST_TESTS) $(VM_TESTS)
HOST_TESTS += selftests/mutants/test-mutants
