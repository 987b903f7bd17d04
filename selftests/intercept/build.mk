# SPDX-License-Identifier: Apache-2.0
# build.mk - unit tests of the interposer's parts that need no proxy, but the headers of $(CUDA_HOME).

IC_TEST_DIR := $(B)/selftests/intercept
IC_TEST_CFLAGS = $(KSELFTEST_CFLAGS) -Ilibintercept $(GEN_CFLAGS) $(RINGBUF_CFLAGS)
IC_TESTS := $(addprefix $(IC_TEST_DIR)/,space)

$(IC_TEST_DIR)/space: libintercept/space.c

$(IC_TESTS): $(IC_TEST_DIR)/%: selftests/intercept/%.c $(KSELFTEST_H) $(GEN)/cuda.stamp
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(IC_TEST_CFLAGS) -MMD -MP -pthread -o $@ $(filter %.c,$^) $(LDFLAGS)

HOST_TESTS += $(IC_TESTS)

# End to end: a program of the driver API under `singvgpu run`.
$(IC_TEST_DIR)/probe: selftests/intercept/probe.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CUDA_CFLAGS) $(LDFLAGS) $< -ldl -pthread -o $@

# The same, linked with libcuda.
$(IC_TEST_DIR)/linked: selftests/intercept/probe.c $(LIBCUDA)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CUDA_CFLAGS) $(LDFLAGS) $< -o $@ -L$(dir $(LIBCUDA)) -Wl,--no-as-needed -lcuda \
		-ldl -pthread

ifeq ($(SAN),)
HOST_TESTS += selftests/intercept/test-intercept
TEST_PROGRAMS += $(addprefix $(IC_TEST_DIR)/,probe linked)
TIMEOUT_test-intercept := 400
endif
