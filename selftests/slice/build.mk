# SPDX-License-Identifier: Apache-2.0
# build.mk - ranks that take turns with a device's memory: every interleaving of their slices, and whose bytes lie where.

SLICE_TEST_BIN := $(addprefix $(B)/selftests/slice/slice-,turns table)

$(SLICE_TEST_BIN): $(B)/selftests/slice/slice-%: selftests/slice/%.c $(B)/uproxy/libcoll.a $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(COLL_CFLAGS) -Iuproxy/slice -MMD -MP -o $@ $(filter %.c %.a,$^) $(LDFLAGS) -lm

# Nothing here has a second thread.
HOST_TESTS += $(if $(filter thread,$(SAN)),,$(SLICE_TEST_BIN))
# Under sanitizers a part of the worlds.
$(B)/selftests/slice/slice-turns: override CFLAGS += $(if $(SAN),-DSLICE_BRIEF)

# All that there is to explore.
TIMEOUT_slice-turns-long := 3600
LONG_TESTS += $(B)/selftests/slice/slice-turns-long
$(B)/selftests/slice/slice-turns-long: selftests/slice/build.mk $(B)/selftests/slice/slice-turns
	@mkdir -p $(@D)
	@printf '#!/bin/sh\nSLICE_EXPLORE=long exec %s\n' '$(B)/selftests/slice/slice-turns' >$@
	@chmod +x $@
