# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of the module, run in the VM on each kernel; they skip where it is not loaded.

KMOD_TESTS := ioctls waiting hangup memory
KMOD_TEST_BIN := $(KMOD_TESTS:%=$(B)/selftests/kmod/%)

$(KMOD_TEST_BIN): $(B)/selftests/kmod/%: selftests/kmod/%.c $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) -Ikmod/include/uapi -MMD -MP -pthread -o $@ $< $(LDFLAGS) $(LDLIBS)

$(B)/selftests/kmod/memory: LDLIBS := -luring

VM_TESTS += $(KMOD_TEST_BIN)
