# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of the interposer, which need the headers of $(CUDA_HOME).

IC_TEST_DIR := $(B)/selftests/intercept
IC_TEST_CFLAGS = $(KSELFTEST_CFLAGS) -Ilibintercept -Ilibintercept/memory $(GEN_CFLAGS) $(RINGBUF_CFLAGS)
IC_TESTS := $(addprefix $(IC_TEST_DIR)/,space locks)

$(IC_TEST_DIR)/space: libintercept/memory/space.c
$(IC_TEST_DIR)/locks: ringbuf/lock/lock_check.c
$(IC_TEST_DIR)/locks: IC_TEST_CFLAGS += -DDEBUG_LOCKS

$(IC_TESTS): $(IC_TEST_DIR)/%: selftests/intercept/%.c $(KSELFTEST_H) $(GEN)/cuda.stamp
	@mkdir -p $(@D)
	$(call cc_several,$(CFLAGS) $(IC_TEST_CFLAGS) -pthread) $(wildcard $(filter %.c,$^)) $(LDFLAGS)

HOST_TESTS += $(IC_TESTS)

# The stand-in against a proxy that the test plays.
IC_LIAR := $(IC_TEST_DIR)/liar
$(IC_LIAR): selftests/intercept/liar.c $(RINGBUF) $(LIBCUDA) $(KSELFTEST_H) $(GEN)/cuda.stamp
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(IC_TEST_CFLAGS) -MMD -MP -pthread -o $@ $< $(RINGBUF) $(LDFLAGS) -ldl

# The preloaded libraries, which a program may as well be linked with, in front of fake ones.
IC_CUPTIS := $(addprefix $(IC_TEST_DIR)/libcupti.so.,12 13 other)
$(IC_CUPTIS): selftests/intercept/cupti_fake.c selftests/intercept/build.mk
	@mkdir -p $(@D)
	echo '$(@F) { global: *; };' >$@.map
	$(CC) -O2 -Wall -Werror -shared -fPIC -DCUPTI_FAILS_WITH=$(if $(findstring 12,$@),15,999) \
		-Wl,-soname,$(@F),--version-script,$@.map -o $@ $<

$(IC_TEST_DIR)/cupti: selftests/intercept/cupti.c $(LIBRTC) $(KSELFTEST_H) | $(IC_CUPTIS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(IC_TEST_CFLAGS) -MMD -MP -o $@ $< $(LDFLAGS) -Wl,--no-as-needed $(LIBRTC) \
		-Wl,-rpath,$(abspath $(dir $(LIBRTC))) -ldl

# As wheels of PyPI place NVIDIA's libraries; and one of the same name elsewhere.
IC_WHEELS := $(addprefix $(IC_TEST_DIR)/,nvidia/first/lib/libcufirst.so.1 \
	nvidia/second/lib/libnvsecond.so.1 elsewhere/libnvsecond.so.1)
$(IC_WHEELS): selftests/intercept/build.mk
	@mkdir -p $(@D)
	echo 'int where = $(if $(findstring elsewhere,$@),2,1);' | \
		$(CC) -shared -fPIC -Wl,-soname,$(@F) -x c - -o $@

$(IC_TEST_DIR)/wheels: selftests/intercept/wheels.c $(LIBRTC) $(KSELFTEST_H) | $(IC_WHEELS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(IC_TEST_CFLAGS) -MMD -MP -o $@ $< $(LDFLAGS) -Wl,--no-as-needed $(LIBRTC) \
		-Wl,-rpath,$(abspath $(dir $(LIBRTC))) -ldl

$(IC_TEST_DIR)/nodes: selftests/intercept/nodes.c $(LIBFILES) $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -U_FORTIFY_SOURCE $(IC_TEST_CFLAGS) -MMD -MP -o $@ $< $(LDFLAGS) -Wl,--no-as-needed \
		$(LIBFILES) -Wl,-rpath,$(abspath $(dir $(LIBFILES))) -ldl

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
HOST_TESTS += $(IC_LIAR) $(addprefix $(IC_TEST_DIR)/,cupti nodes wheels) selftests/intercept/test-intercept selftests/intercept/test-statics
TEST_PROGRAMS += $(addprefix $(IC_TEST_DIR)/,probe linked) $(CHECKED)/libcuda.so.1
TIMEOUT_test-intercept := 400
endif
