# SPDX-License-Identifier: Apache-2.0
# build.mk - collectives without a transport: the reduction tree against a reference in Python, over
# any map from ranks to devices; and every interleaving of what ranks post, devices start and abort.

COLL_TESTS := tree step explore robust board boardsaved counts
COLL_TEST_BIN := $(COLL_TESTS:%=$(B)/selftests/coll/coll-%)
COLL_VECTORS := $(B)/selftests/coll/vectors

$(COLL_TEST_BIN): $(B)/selftests/coll/coll-%: selftests/coll/%.c $(B)/uproxy/libcoll.a \
		$(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(COLL_CFLAGS) -Iuproxy/slice -MMD -MP -o $@ $(filter %.c %.a,$^) \
		$(LDFLAGS) -lm
$(COLL_VECTORS): selftests/coll/vectors.c $(B)/uproxy/libcoll.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(COLL_CFLAGS) -MMD -MP -o $@ $(filter %.c %.a,$^) $(LDFLAGS) -lm

# Nothing here has a second thread, but for what kills and counts single instructions: not a sanitizer's.
HOST_TESTS += $(if $(filter thread,$(SAN)),$(B)/selftests/coll/coll-tree,$(if $(SAN),$(filter-out \
	%-robust %-counts,$(COLL_TEST_BIN)),$(COLL_TEST_BIN)))
# Every world of these programs; a part of them under sanitizers.
$(B)/selftests/coll/coll-explore: override CFLAGS += $(if $(SAN),-DCOLL_BRIEF)

# All that there is to explore.
TIMEOUT_coll-explore-long := 3600
LONG_TESTS += $(B)/selftests/coll/coll-explore-long
$(B)/selftests/coll/coll-explore-long: selftests/coll/build.mk $(B)/selftests/coll/coll-explore
	@mkdir -p $(@D)
	@printf '#!/bin/sh\nCOLL_EXPLORE=long exec %s\n' '$(B)/selftests/coll/coll-explore' >$@
	@chmod +x $@
ifeq ($(SAN),)
HOST_TESTS += selftests/coll/test-vectors
TEST_PROGRAMS += $(COLL_VECTORS)
endif
include selftests/coll/fuzz.mk
