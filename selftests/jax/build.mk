# SPDX-License-Identifier: Apache-2.0
# build.mk - training scripts on PyPI's JAX, which `make frameworks` unpacks; without it these tests
# are skipped.

ifeq ($(SAN),)
HOST_TESTS += selftests/jax/test-jax
LONG_TESTS += selftests/jax/test-jax-all
FULL_TESTS += selftests/jax/test-jax-all
TIMEOUT_test-jax := 900
TIMEOUT_test-jax-all := 7200

.PHONY: check-jax run-check-jax
check-jax: setup
	@tools/setup/setup frameworks
	$(again) run-check-jax
run-check-jax: all $(SUPERVISE)
	@$(RUN_TESTS) $(call timed,selftests/jax/test-jax-all) $(ours)
endif
