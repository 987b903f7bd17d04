# SPDX-License-Identifier: Apache-2.0
# build.mk - the rules of collectives, of the cut and of slices, as two Promela models that spin explores whole.

TIMEOUT_test-model := 900
TIMEOUT_test-model-needed := 900
TIMEOUT_test-model-slices := 900
ifeq ($(SAN),)
HOST_TESTS += selftests/model/test-model
LONG_TESTS += selftests/model/test-model-needed selftests/model/test-model-slices
FULL_TESTS += selftests/model/test-model-slices
endif
