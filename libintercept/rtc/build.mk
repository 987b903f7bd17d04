# SPDX-License-Identifier: Apache-2.0
# build.mk - libsingvgpu-rtc.so, which `singvgpu run` preloads: it stands in front of NVRTC, nvJitLink, CUPTI.
#
# It sees libc, libintercept's log.h and the format of fatbins alone. No sanitizer: it goes into programs
# that have none. The driver of direct mode has the same objects in it (uproxy/softgpu/build.mk).

LIBRTC := $(B)/lib/libsingvgpu-rtc.so
LIBRTC_OBJ := $(patsubst %.c,$(B)/%.o,$(wildcard libintercept/rtc/*.c))
LIBRTC_CFLAGS = $(filter-out -fsanitize=%,$(CFLAGS)) -Ilibintercept -Ilibintercept/gen \
	-D_GNU_SOURCE -fPIC -fvisibility=hidden -fno-plt

$(LIBRTC_OBJ): $(B)/%.o: %.c libintercept/rtc/build.mk
	@mkdir -p $(@D)
	$(CC) $(LIBRTC_CFLAGS) -MMD -MP -c -o $@ $<

$(LIBRTC): $(LIBRTC_OBJ)
	@mkdir -p $(@D)
	$(CC) -shared -o $@ $^ -Wl,-soname,libsingvgpu-rtc.so -Wl,-z,now,-z,defs -ldl -lpthread

ALL += $(LIBRTC)
INSTALL_LIB += $(LIBRTC)
