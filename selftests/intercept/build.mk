# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of the interposer, which need the headers of $(CUDA_HOME).

IC_TEST_DIR := $(B)/selftests/intercept
IC_TEST_CFLAGS = $(KSELFTEST_CFLAGS) -Ilibintercept -Ilibintercept/memory $(GEN_CFLAGS) $(RINGBUF_CFLAGS)
IC_TESTS := $(addprefix $(IC_TEST_DIR)/,space locks)

$(IC_TEST_DIR)/space: libintercept/memory/space.c
$(IC_TEST_DIR)/locks: libintercept/lock_check.c
$(IC_TEST_DIR)/locks: IC_TEST_CFLAGS += -DDEBUG_LOCKS

$(IC_TESTS): $(IC_TEST_DIR)/%: selftests/intercept/%.c $(KSELFTEST_H) $(GEN)/cuda.stamp
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(IC_TEST_CFLAGS) -MMD -MP -pthread -o $@ $(filter %.c,$^) $(LDFLAGS)

HOST_TESTS += $(IC_TESTS)

# The stand-in against a proxy that the test plays.
IC_LIAR := $(IC_TEST_DIR)/liar
$(IC_LIAR): selftests/intercept/liar.c $(RINGBUF) $(LIBCUDA) $(KSELFTEST_H) $(GEN)/cuda.stamp
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(IC_TEST_CFLAGS) -MMD -MP -pthread -o $@ $< $(RINGBUF) $(LDFLAGS) -ldl

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
HOST_TESTS += $(IC_LIAR) selftests/intercept/test-intercept selftests/intercept/test-statics
TEST_PROGRAMS += $(addprefix $(IC_TEST_DIR)/,probe linked) $(CHECKED)/libcuda.so.1
TIMEOUT_test-intercept := 400
endif
