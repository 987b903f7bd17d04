# SPDX-License-Identifier: Apache-2.0
# build.mk - a program on each of some packages of PyPI, which `make pypi` unpacks; without them this
# test is skipped.

ifeq ($(SAN),)
LONG_TESTS += selftests/pypi/test-pypi
FULL_TESTS += selftests/pypi/test-pypi
TIMEOUT_test-pypi := 3600

.PHONY: check-pypi run-check-pypi
check-pypi: setup pypi torch trainers
	$(again) run-check-pypi
run-check-pypi: all $(SUPERVISE)
	@$(RUN_TESTS) $(call timed,selftests/pypi/test-pypi selftests/torch/test-torch-trainers) $(ours)
endif
