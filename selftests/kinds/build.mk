# SPDX-License-Identifier: Apache-2.0
# build.mk - a process for each kind of resource, saved and restored by CRIU alone and by singvgpu.

KINDS := $(B)/selftests/kinds/kinds
$(KINDS): $(wildcard selftests/kinds/*.c selftests/kinds/*.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -pthread -o $@ $(filter %.c,$^) $(LDFLAGS) -lrt -lutil

# CRIU does not know the mappings of a sanitizer's shadow memory.
ifeq ($(SAN),)
TEST_PROGRAMS += $(KINDS)
HOST_TESTS += selftests/kinds/test-kinds
LONG_TESTS += selftests/kinds/test-kinds-long
TIMEOUT_test-kinds := 300
TIMEOUT_test-kinds-long := 1500
endif
