# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of the ring, over both backends; on the host and, with the module, in the VM.

RING_TESTS := patience pass attach records answers journal freeze idle signals death hostile streams
RING_TEST_DIR := $(B)/selftests/ringbuf
RING_TEST_BIN := $(RING_TESTS:%=$(RING_TEST_DIR)/%)

$(RING_TEST_BIN): $(RING_TEST_DIR)/%: selftests/ringbuf/%.c $(RINGBUF) $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(RINGBUF_CFLAGS) -MMD -MP -pthread -o $@ $< $(RINGBUF) $(LDFLAGS)

# The same where the C library registers no restartable sequences: the fallback path.
RING_NORSEQ := $(addsuffix -norseq,answers records signals death streams)
$(RING_NORSEQ:%=$(RING_TEST_DIR)/%): $(RING_TEST_DIR)/%-norseq: $(RING_TEST_DIR)/% selftests/ringbuf/build.mk
	@printf '#!/bin/sh\nexec env GLIBC_TUNABLES=glibc.pthread.rseq=0 %s "$$@"\n' '$<' >$@
	@chmod +x $@

# The same, more often: SINGVGPU_SCALE times.
RING_LONG := $(patsubst %,%-long,$(filter-out patience pass,$(RING_TESTS))) $(RING_NORSEQ:%=%-long)
$(RING_LONG:%=$(RING_TEST_DIR)/%): $(RING_TEST_DIR)/%-long: $(RING_TEST_DIR)/% selftests/ringbuf/build.mk
	@printf '#!/bin/sh\nexec env SINGVGPU_SCALE=20 %s\n' '$<' >$@
	@chmod +x $@

$(foreach t,$(RING_TESTS) $(RING_NORSEQ),$(eval TIMEOUT_$(t) := 900))
$(foreach t,$(RING_LONG),$(eval TIMEOUT_$(t) := 3600))
# The fallback is all that ThreadSanitizer gets to see, by its own name; to the other sanitizers the
# reservation is what differs.
ifeq ($(SAN),)
RING_RUN := $(RING_TESTS) $(RING_NORSEQ)
else ifeq ($(SAN),thread)
RING_RUN := $(RING_TESTS)
else
RING_RUN := $(RING_TESTS) records-norseq signals-norseq
endif
HOST_TESTS += $(RING_RUN:%=$(RING_TEST_DIR)/%)
# In the VM over the module alone: the emulator is slow, and the host runs the memfd's rings. The fallback is
# the same on every kernel. rings-KERNEL, in check-long, has all of them in the VM.
RING_VM := $(addprefix $(RING_TEST_DIR)/,$(RING_TESTS) signals-norseq)
$(RING_VM:%=%-kmod): %-kmod: % selftests/ringbuf/build.mk
	@printf '#!/bin/sh\nexec %s -V memfd\n' '$<' >$@
	@chmod +x $@
$(foreach t,$(RING_TESTS) signals-norseq,$(eval TIMEOUT_$(t)-kmod := 900))
VM_TESTS += $(RING_VM:%=%-kmod)
LONG_TESTS += $(RING_LONG:%=$(RING_TEST_DIR)/%)

# The decoder's fuzzer needs clang's; without it the test says so and skips. It is built once, not
# for each sanitizer.
FUZZ_DECODE := $(BUILD)/selftests/ringbuf/fuzz_decode
$(FUZZ_DECODE): selftests/ringbuf/fuzz_decode.c $(RINGBUF_SRC) $(wildcard ringbuf/*.h)
	@mkdir -p $(@D)
	$(FUZZCC) -O1 -g -std=gnu11 -Wall -Wextra $(WERROR) -Iringbuf/lock -fsanitize=fuzzer,address,undefined \
		-fno-sanitize-recover=all $(RINGBUF_CFLAGS) -pthread -o $@ $(filter %.c,$^)

$(eval $(call FUZZER,ringbuf,decode,600,900))
