# SPDX-License-Identifier: Apache-2.0
# build.mk - collectives without a transport: the reduction tree against a reference in Python, over
# any map from ranks to devices; and every interleaving of what ranks post, devices start and abort.

COLL_TESTS := $(B)/selftests/coll/coll-tree $(B)/selftests/coll/coll-step \
	$(B)/selftests/coll/coll-explore
COLL_VECTORS := $(B)/selftests/coll/vectors

$(COLL_TESTS): $(B)/selftests/coll/coll-%: selftests/coll/%.c $(B)/uproxy/libcoll.a $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(COLL_CFLAGS) -MMD -MP -o $@ $(filter %.c %.a,$^) $(LDFLAGS) -lm
$(COLL_VECTORS): selftests/coll/vectors.c $(B)/uproxy/libcoll.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(COLL_CFLAGS) -MMD -MP -o $@ $(filter %.c %.a,$^) $(LDFLAGS) -lm

HOST_TESTS += $(COLL_TESTS)
ifeq ($(SAN),)
HOST_TESTS += selftests/coll/test-vectors
TEST_PROGRAMS += $(COLL_VECTORS)
endif
