# SPDX-License-Identifier: Apache-2.0
# build.mk - training scripts on PyPI's TensorFlow, which `make tensorflow` unpacks; without it these
# tests are skipped.

ifeq ($(SAN),)
HOST_TESTS += selftests/tensorflow/test-tensorflow
LONG_TESTS += selftests/tensorflow/test-tensorflow-all
FULL_TESTS += selftests/tensorflow/test-tensorflow-all
TIMEOUT_test-tensorflow := 900
TIMEOUT_test-tensorflow-all := 7200

.PHONY: check-tf run-check-tf
check-tf: setup tensorflow
	$(again) run-check-tf
run-check-tf: all $(SUPERVISE)
	@$(RUN_TESTS) $(call timed,selftests/tensorflow/test-tensorflow-all) $(ours)
endif
