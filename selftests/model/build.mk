# SPDX-License-Identifier: Apache-2.0
# build.mk - the rules of collectives and of the cut, as a Promela model that spin explores whole.

TIMEOUT_test-model := 600
TIMEOUT_test-model-needed := 600
ifeq ($(SAN),)
HOST_TESTS += selftests/model/test-model
LONG_TESTS += selftests/model/test-model-needed
endif
