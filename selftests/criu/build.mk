# SPDX-License-Identifier: Apache-2.0
# build.mk - jobs that CRIU dumps and restores in the middle of their traffic.

CRIU_CLIENT := $(B)/selftests/criu/client
CRIU_TESTS := $(B)/selftests/criu/moves $(B)/selftests/criu/plugin

$(B)/selftests/criu/%.o: selftests/criu/%.c $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(RINGBUF_CFLAGS) -MMD -MP -c -o $@ $<

# The harness keeps what it changes between setjmp and longjmp in a local variable: optimized, a
# test that fails an ASSERT would not be torn down, and its processes and files stay.
$(CRIU_TESTS:%=%.o): override CFLAGS += -O0

$(CRIU_CLIENT): $(B)/selftests/criu/client.o $(RINGBUF)
	$(CC) -pthread -o $@ $^ $(LDFLAGS)

$(CRIU_TESTS): %: %.o $(B)/selftests/criu/driver.o $(B)/selftests/criu/proxy.o $(RINGBUF)
	$(CC) -pthread -o $@ $^ $(LDFLAGS)

VM_TESTS += selftests/criu/moves-vm $(B)/selftests/criu/plugin
TIMEOUT_moves := 1000
TIMEOUT_moves-vm := 1000
TIMEOUT_plugin := 1000
# CRIU does not know the mappings of a sanitizer's shadow memory.
ifeq ($(SAN),)
TEST_PROGRAMS += $(CRIU_CLIENT) $(CRIU_TESTS)
HOST_TESTS += $(B)/selftests/criu/moves
LONG_TESTS += selftests/criu/moves-long
TIMEOUT_moves-long := 3000
endif
