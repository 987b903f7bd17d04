# SPDX-License-Identifier: Apache-2.0
# build.mk - training scripts on Debian's PyTorch, which `make torch` unpacks; without it these tests
# are skipped.

ifeq ($(SAN),)
HOST_TESTS += selftests/torch/test-torch
LONG_TESTS += selftests/torch/test-torch-all
FULL_TESTS += selftests/torch/test-torch-all
TIMEOUT_test-torch := 1800
TIMEOUT_test-torch-all := 7200

.PHONY: check-torch run-check-torch
check-torch: setup torch
	$(again) run-check-torch
run-check-torch: all $(SUPERVISE)
	@$(RUN_TESTS) $(call timed,selftests/torch/test-torch-all) $(ours)
endif
