# SPDX-License-Identifier: Apache-2.0
# files.mk - tests of the log of changed files, of their collection and of putting them back.

FILES_EACH := $(B)/selftests/ckpt/files-each
FILES_WATCH := $(B)/selftests/ckpt/files-watch

# Fortified headers would call other functions than those that are named.
$(FILES_EACH): selftests/ckpt/files_each.c selftests/ckpt/files.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -U_FORTIFY_SOURCE -D_GNU_SOURCE -Wno-deprecated-declarations -pthread -o $@ $< \
		$(LDFLAGS) -ldl

$(FILES_WATCH): selftests/ckpt/files_watch.c selftests/ckpt/files.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -o $@ $< $(LDFLAGS)

# The library goes into programs without a sanitizer.
ifeq ($(SAN),)
TEST_PROGRAMS += $(FILES_EACH) $(LIBFILES)
HOST_TESTS += $(FILES_WATCH) selftests/ckpt/test-files-names
endif

FILES_RANDOM := $(BUILD)/selftests/ckpt/files-random
FILES_BACK := $(B)/selftests/ckpt/files-back

$(FILES_RANDOM): selftests/ckpt/files_random.c selftests/ckpt/files.mk
	@mkdir -p $(@D)
	$(CC) -O2 -g -std=gnu11 -Wall -Wextra $(WERROR) -D_GNU_SOURCE -o $@ $<

$(FILES_BACK): selftests/ckpt/files_back.c $(FILES_LIB) $(STORE) $(KSELFTEST_H) \
		selftests/ckpt/files.mk | $(FILES_RANDOM)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) -Iuproxy/ckpt -MMD -MP -o $@ $< $(FILES_LIB) $(STORE) \
		$(LDFLAGS) $(STORE_LIBS)

TEST_PROGRAMS += $(FILES_RANDOM)
HOST_TESTS += $(FILES_BACK)
