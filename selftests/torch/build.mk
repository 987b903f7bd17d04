# SPDX-License-Identifier: Apache-2.0
# build.mk - training scripts on Debian's PyTorch, which `make torch` unpacks; without it these tests
# are skipped.

ifeq ($(SAN),)
HOST_TESTS += selftests/torch/test-torch selftests/torch/test-torch-ranks
LONG_TORCH := selftests/torch/test-torch-coverage \
	$(addprefix selftests/torch/test-,torch-all torch-ranks-all torch-trainers torchrun-restart)
LONG_TESTS += $(LONG_TORCH)
FULL_TESTS += $(LONG_TORCH)
TIMEOUT_test-torch := 1800
TIMEOUT_test-torch-all := 7200
TIMEOUT_test-torch-ranks := 1800
TIMEOUT_test-torch-ranks-all := 7200
TIMEOUT_test-torch-trainers := 3600
TIMEOUT_test-torchrun-restart := 1800

.PHONY: check-torch run-check-torch
check-torch: setup torch
	$(again) run-check-torch
run-check-torch: all $(SUPERVISE)
	@$(RUN_TESTS) $(call timed,selftests/torch/test-torch-all selftests/torch/test-torch-ranks-all \
		selftests/torch/test-torchrun-restart) $(ours)

# docs/torch-coverage.md: PyTorch's operators, against the CPU. It takes hours, and goes on where it was
# ended. COVERAGE has options of drive.py, as "--minutes 60".
COVERAGE ?=
.PHONY: torch-coverage run-torch-coverage
torch-coverage: setup torch
	$(again) run-torch-coverage
run-torch-coverage: all
	@SINGVGPU_BUILD=$(B) build/torch/python3 selftests/torch/coverage/drive.py \
		--page docs/torch-coverage.md $(COVERAGE)
endif
