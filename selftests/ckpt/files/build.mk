# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of the log of changed files, of their collection and of putting them back.

FILES_EACH := $(B)/selftests/ckpt/files-each
FILES_WATCH := $(B)/selftests/ckpt/files-watch
FILES_NOTED := $(B)/selftests/ckpt/files-noted

# Fortified headers would call other functions than those that are named.
$(FILES_EACH): selftests/ckpt/files/files_each.c selftests/ckpt/files/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -U_FORTIFY_SOURCE -D_GNU_SOURCE -Wno-deprecated-declarations -pthread -o $@ $< \
		$(LDFLAGS) -ldl

$(FILES_WATCH): selftests/ckpt/files/files_watch.c selftests/ckpt/files/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -o $@ $< $(LDFLAGS)

$(FILES_NOTED): selftests/ckpt/files/files_noted.c libintercept/files/files_i.h libintercept/files/record.h \
		selftests/ckpt/files/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -U_FORTIFY_SOURCE -D_GNU_SOURCE -Wno-deprecated-declarations \
		-Ilibintercept/files -o $@ $< $(LDFLAGS)

# The library goes into programs without a sanitizer.
ifeq ($(SAN),)
TEST_PROGRAMS += $(FILES_EACH) $(LIBFILES)
HOST_TESTS += $(FILES_WATCH) $(FILES_NOTED) selftests/ckpt/files/test-files-names
endif

FILES_RANDOM := $(BUILD)/selftests/ckpt/files-random
FILES_BACK := $(B)/selftests/ckpt/files-back
FILES_SAVED := $(B)/selftests/ckpt/files-saved
FILES_FORGED := $(B)/selftests/ckpt/files-forged

$(FILES_RANDOM): selftests/ckpt/files/files_random.c selftests/ckpt/files/build.mk
	@mkdir -p $(@D)
	$(CC) -O2 -g -std=gnu11 -Wall -Wextra $(WERROR) -D_GNU_SOURCE -o $@ $<

# By their names, as the fragment that defines $(FILES_LIB) and $(STORE) comes later.
$(FILES_BACK) $(FILES_SAVED): $(B)/selftests/ckpt/files-%: selftests/ckpt/files/files_%.c $(B)/ckpt/libfiles.a $(B)/ckpt/libstore.a $(KSELFTEST_H) \
		selftests/ckpt/files/build.mk | $(FILES_RANDOM)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(FILES_LIB_CFLAGS) -MMD -MP -o $@ $(filter %.c %.a,$^) \
		$(LDFLAGS) $(STORE_LIBS)

$(FILES_FORGED): selftests/ckpt/files/files_forged.c $(B)/ckpt/libfiles.a $(B)/ckpt/libstore.a \
		$(KSELFTEST_H) selftests/ckpt/files/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(FILES_LIB_CFLAGS) -MMD -MP -o $@ $(filter %.c %.a,$^) \
		$(LDFLAGS) $(STORE_LIBS)
HOST_TESTS += $(FILES_FORGED)

FILES_NOTES := $(B)/selftests/ckpt/files-notes
$(FILES_NOTES): selftests/ckpt/files/files_notes.c $(B)/ckpt/libfiles.a $(B)/ckpt/libstore.a \
		$(KSELFTEST_H) selftests/ckpt/files/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(FILES_LIB_CFLAGS) -MMD -MP -o $@ $(filter %.c %.a,$^) \
		$(LDFLAGS) $(STORE_LIBS)
HOST_TESTS += $(FILES_NOTES)

# There are no threads in it.
ifneq ($(SAN),thread)
TEST_PROGRAMS += $(FILES_RANDOM)
HOST_TESTS += $(FILES_BACK) $(FILES_SAVED)
endif

FILES_COST := $(B)/selftests/ckpt/files-cost
$(FILES_COST): selftests/ckpt/files/files_cost.c | $(LIBFILES)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -o $@ $< $(LDFLAGS)
BENCHES += $(FILES_COST)

# Many more rounds than `make check` has.
LONG_TESTS += $(B)/selftests/ckpt/files-back-long
TIMEOUT_files-back-long := 1800
TIMEOUT_files-back := 300
$(B)/selftests/ckpt/files-back-long: selftests/ckpt/files/build.mk
	@mkdir -p $(@D)
	@printf '#!/bin/sh\nFILES_LONG=1 exec %s -t random_jobs_and_users\n' $(FILES_BACK) >$@
	@chmod +x $@
