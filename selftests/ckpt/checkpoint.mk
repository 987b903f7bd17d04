# SPDX-License-Identifier: Apache-2.0
# checkpoint.mk - whole jobs: checkpointed, killed and restored by the commands.

$(B)/selftests/ckpt/worker $(B)/selftests/ckpt/linked: $(B)/%: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -pthread -MMD -MP -o $@ $< $(LDFLAGS)

# CRIU does not know the mappings of a sanitizer's shadow memory.
ifeq ($(SAN),)
TEST_PROGRAMS += $(B)/selftests/ckpt/worker $(B)/selftests/ckpt/linked
HOST_TESTS += selftests/ckpt/test-checkpoint selftests/ckpt/test-linked
TIMEOUT_test-checkpoint := 600
endif
