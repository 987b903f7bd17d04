# SPDX-License-Identifier: Apache-2.0
# build.mk - trees that CRIU dumps into a store and brings back.

CKPT_CRIU := $(B)/selftests/ckpt/criu
CKPT_CRIU_JOB := $(B)/selftests/ckpt/criu_job
$(CKPT_CRIU): selftests/ckpt/criu/criu.c $(B)/ckpt/libcriu.a $(B)/ckpt/libstore.a $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -O0 $(KSELFTEST_CFLAGS) $(CRIU_LIB_CFLAGS) $(STORE_CFLAGS) -MMD -MP -o $@ $(filter %.c %.a,$^) \
		$(LDFLAGS) $(STORE_LIBS) -lutil
$(addprefix $(B)/selftests/ckpt/,links processes): $(B)/selftests/ckpt/%: selftests/ckpt/criu/%.c $(B)/ckpt/libcriu.a $(B)/ckpt/libstore.a $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(CRIU_LIB_CFLAGS) $(STORE_CFLAGS) -MMD -MP -o $@ $(filter %.c %.a,$^) \
		$(LDFLAGS) $(STORE_LIBS)
HOST_TESTS += $(addprefix $(B)/selftests/ckpt/,links processes)
# They stand for images.c.
CKPT_DUMPED := $(addprefix $(B)/selftests/ckpt/,dumped attributes)
$(CKPT_DUMPED): $(B)/selftests/ckpt/%: selftests/ckpt/criu/%.c \
		$(addprefix $(B)/ckpt/criu/,attributes.o edit.o fd.o inject.o mend.o options.o protobuf.o tree.o) | $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(CRIU_LIB_CFLAGS) -pthread -MMD -MP -o $@ $(filter %.c %.o,$^) $(LDFLAGS)
HOST_TESTS += $(B)/selftests/ckpt/dumped
$(CKPT_CRIU_JOB): selftests/ckpt/criu/criu_job.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -pthread -MMD -MP -o $@ $< $(LDFLAGS)

# CRIU does not know the mappings of a sanitizer's shadow memory.
ifeq ($(SAN),)
HOST_TESTS += $(CKPT_CRIU) $(B)/selftests/ckpt/attributes selftests/ckpt/criu/test-tree
TEST_PROGRAMS += $(CKPT_CRIU_JOB)
TIMEOUT_criu := 600
TIMEOUT_test-tree := 600
endif
