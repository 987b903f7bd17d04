# SPDX-License-Identifier: Apache-2.0
# build.mk - libsingvgpu-files.so, which `singvgpu run` preloads: it logs the files that a job changes.
#
# It sees libc, xxHash's header and libintercept's log.h alone. No sanitizer: it goes into programs that have none.

LIBFILES := $(B)/lib/libsingvgpu-files.so
LIBFILES_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard libintercept/files/*.c))
LIBFILES_CFLAGS = $(filter-out -fsanitize=%,$(CFLAGS)) -U_FORTIFY_SOURCE -Ilibintercept -D_GNU_SOURCE -fPIC \
	-fvisibility=hidden -fno-plt -Wno-deprecated-declarations

$(LIBFILES_OBJ): $(B)/%.o: %.c libintercept/files/build.mk
	@mkdir -p $(@D)
	$(CC) $(LIBFILES_CFLAGS) -MMD -MP -c -o $@ $<

$(LIBFILES): $(LIBFILES_OBJ)
	@mkdir -p $(@D)
	$(CC) -shared -o $@ $^ -Wl,-soname,libsingvgpu-files.so -Wl,-z,now,-z,defs -ldl

ALL += $(LIBFILES)
INSTALL_LIB += $(LIBFILES)
