# SPDX-License-Identifier: Apache-2.0
# build.mk - the test runner, the ways to start it, and the proof that it notices what it should.

SUPERVISE := $(BUILD)/selftests/harness/supervise
RUN_TESTS := SINGVGPU_BUILD=$(B) selftests/harness/run-tests -l $(B)/logs $(SUPERVISE)
limit = $(or $(TIMEOUT_$(basename $(notdir $(1)))),120)
timed = $(foreach t,$(1),$(call limit,$(t)):$(t))

$(SUPERVISE): selftests/harness/supervise.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra $(WERROR) -o $@ $<

# What test-runner runs: a test program that leaks an fd and a mapping.
HOST_TESTS += selftests/harness/test-runner
TIMEOUT_test-runner := 60
TEST_PROGRAMS += $(B)/selftests/harness/leaky
$(B)/selftests/harness/leaky: selftests/harness/leaky.c selftests/harness/leaks.h $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) -o $@ $< $(LDFLAGS)

# Fragments look at what setup brings, so a second make builds and runs the tests. -j2 is for the
# building: the tests themselves run one after the other, so that each has the machine to itself.
again = +@$(MAKE) --no-print-directory -j2

.PHONY: check check-host check-vm check-long
check: setup
	$(again) run-check
check-host: setup
	$(again) run-check-host
check-vm: setup
	$(again) run-check-vm
check-long: setup
	$(again) run-check-long

.PHONY: run-check run-check-host run-check-vm run-check-long
run-check: tests
	@$(RUN_TESTS) $(call timed,$(HOST_TESTS) $(VM_PROGRAMS))
run-check-host: tests
	@$(RUN_TESTS) $(call timed,$(HOST_TESTS))
run-check-vm: tests
	@$(RUN_TESTS) $(call timed,$(VM_PROGRAMS))
run-check-long: tests
	@$(RUN_TESTS) $(call timed,$(LONG_TESTS))
