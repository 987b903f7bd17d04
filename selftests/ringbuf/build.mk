# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of the ring, over both backends; on the host and, with the module, in the VM.

RING_TESTS := attach records answers journal freeze idle signals death
RING_TEST_DIR := $(B)/selftests/ringbuf
RING_TEST_BIN := $(RING_TESTS:%=$(RING_TEST_DIR)/%)

$(RING_TEST_BIN): $(RING_TEST_DIR)/%: selftests/ringbuf/%.c $(RINGBUF) $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(RINGBUF_CFLAGS) -MMD -MP -pthread -o $@ $< $(RINGBUF) $(LDFLAGS)

# The same where the C library registers no restartable sequences: the fallback path.
RING_NORSEQ := $(addsuffix -norseq,records signals death)
$(RING_NORSEQ:%=$(RING_TEST_DIR)/%): $(RING_TEST_DIR)/%-norseq: $(RING_TEST_DIR)/% selftests/ringbuf/build.mk
	@printf '#!/bin/sh\nexec env GLIBC_TUNABLES=glibc.pthread.rseq=0 %s\n' '$<' >$@
	@chmod +x $@

# The same, more often: SINGVGPU_SCALE times.
RING_LONG := $(RING_TESTS:%=%-long) $(RING_NORSEQ:%=%-long)
$(RING_LONG:%=$(RING_TEST_DIR)/%): $(RING_TEST_DIR)/%-long: $(RING_TEST_DIR)/% selftests/ringbuf/build.mk
	@printf '#!/bin/sh\nexec env SINGVGPU_SCALE=20 %s\n' '$<' >$@
	@chmod +x $@

$(foreach t,$(RING_LONG),$(eval TIMEOUT_$(t) := 3600))
HOST_TESTS += $(RING_TEST_BIN) $(RING_NORSEQ:%=$(RING_TEST_DIR)/%)
VM_TESTS += $(RING_TEST_BIN) $(RING_NORSEQ:%=$(RING_TEST_DIR)/%)
LONG_TESTS += $(RING_LONG:%=$(RING_TEST_DIR)/%)
