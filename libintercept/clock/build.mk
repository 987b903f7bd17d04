# SPDX-License-Identifier: Apache-2.0
# build.mk - libsingvgpu-clock.so, which `singvgpu run` preloads: C++'s steady clock without the time of a freeze.
#
# It sees libc alone. No sanitizer: it goes into programs that have none.

LIBCLOCK := $(B)/lib/libsingvgpu-clock.so
LIBCLOCK_CFLAGS = $(filter-out -fsanitize=%,$(CFLAGS)) -U_FORTIFY_SOURCE -D_GNU_SOURCE -fPIC -fvisibility=hidden

$(LIBCLOCK): libintercept/clock/clock.c libintercept/clock/build.mk
	@mkdir -p $(@D)
	$(CC) $(LIBCLOCK_CFLAGS) -MMD -MP -shared -o $@ $< -Wl,-soname,libsingvgpu-clock.so -Wl,-z,now,-z,defs -ldl

ALL += $(LIBCLOCK)
INSTALL_LIB += $(LIBCLOCK)
