# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of the ring, over both backends; on the host and, with the module, in the VM.

RING_TESTS := attach records answers journal freeze idle
RING_TEST_BIN := $(RING_TESTS:%=$(B)/selftests/ringbuf/%)

$(RING_TEST_BIN): $(B)/selftests/ringbuf/%: selftests/ringbuf/%.c $(RINGBUF) $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(RINGBUF_CFLAGS) -MMD -MP -pthread -o $@ $< $(RINGBUF) $(LDFLAGS)

HOST_TESTS += $(RING_TEST_BIN)
VM_TESTS += $(RING_TEST_BIN)
