# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of the module, run in the VM on each kernel; they skip where it is not loaded.
# Of the ring they use nothing but how an fd is passed.

KMOD_TESTS := ioctls waiting hangup memory storm fuzz_ioctl icount_handoff
KMOD_TEST_BIN := $(KMOD_TESTS:%=$(B)/selftests/kmod/%)

$(KMOD_TEST_BIN): $(B)/selftests/kmod/%: selftests/kmod/%.c $(RINGBUF) $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(RINGBUF_CFLAGS) -MMD -MP -pthread -o $@ $< \
		$(RINGBUF) $(LDFLAGS) $(LDLIBS)

$(B)/selftests/kmod/memory: LDLIBS := -luring

VM_TESTS += $(filter-out %/icount_handoff,$(KMOD_TEST_BIN)) selftests/kmod/unload
# What hangs is found by the tests themselves, see selftests/harness/patience.h.
$(foreach t,$(filter-out icount_handoff,$(KMOD_TESTS)) unload,$(eval TIMEOUT_$(t) := 1000))

# A machine of its own, that counts instructions.
$(B)/selftests/kmod/icount: selftests/kmod/icount $(B)/selftests/kmod/icount_handoff
	@ln -sf $(CURDIR)/$< $@
VM_PROGRAMS += $(B)/selftests/kmod/icount
TIMEOUT_icount := 900

LONG_TESTS += selftests/kmod/fuzz-long
TIMEOUT_fuzz-long := 1800
