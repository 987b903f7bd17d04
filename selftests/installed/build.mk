# SPDX-License-Identifier: Apache-2.0
# build.mk - an installed singvgpu, used without the tree; PyTorch, JAX and Jupyter are what `make torch`,
# `make frameworks` and `make jupyter` unpack.

ifeq ($(SAN),)
LONG_TESTS += selftests/installed/test-places selftests/installed/test-container
FULL_TESTS += selftests/installed/test-places selftests/installed/test-container
TIMEOUT_test-places := 1800
TIMEOUT_test-container := 1800
.PHONY: jupyter-if-reached
jupyter-if-reached: setup
	@tools/setup/setup -o jupyter
check-full: jupyter-if-reached
endif
