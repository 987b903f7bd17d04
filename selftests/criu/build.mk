# SPDX-License-Identifier: Apache-2.0
# build.mk - jobs that CRIU dumps and restores in the middle of their traffic.

CRIU_CLIENT := $(B)/selftests/criu/client
CRIU_MOVES := $(B)/selftests/criu/moves

$(B)/selftests/criu/%.o: selftests/criu/%.c $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(RINGBUF_CFLAGS) -MMD -MP -c -o $@ $<

$(CRIU_CLIENT): $(B)/selftests/criu/client.o $(RINGBUF)
	$(CC) -pthread -o $@ $^ $(LDFLAGS)

$(CRIU_MOVES): %: %.o $(B)/selftests/criu/driver.o $(B)/selftests/criu/proxy.o $(RINGBUF)
	$(CC) -pthread -o $@ $^ $(LDFLAGS)

TEST_PROGRAMS += $(CRIU_CLIENT)
HOST_TESTS += $(CRIU_MOVES)
VM_TESTS += $(CRIU_MOVES)
