# SPDX-License-Identifier: Apache-2.0
# build.mk - tests that are the conductor of a dump and of a restore.

# Tests of dumps are their conductor, too.
UPROXY_RESTORE := $(addprefix $(B)/selftests/uproxy/uproxy-,restore conduct)
$(UPROXY_RESTORE): $(B)/selftests/uproxy/uproxy-%: selftests/uproxy/restore/%.c selftests/uproxy/restore/restore.h \
		selftests/uproxy/client.h $(RINGBUF) \
		$(B)/uproxy/ckpt/libsingvgpu-control.a $(B)/ckpt/libstore.a \
		$(GEN)/cuda_info.o $(KSELFTEST_H) | $(B)/uproxy/singvgpu-proxy \
		$(B)/uproxy/softgpu/libsoftcuda.so $(B)/uproxy/softgpu/libsoftjit.so
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(RINGBUF_CFLAGS) $(GEN_CFLAGS) -Iuproxy/include \
		$(STORE_CFLAGS) -MMD -MP -pthread -o $@ $(filter %.c %.o %.a,$^) $(LDFLAGS) $(STORE_LIBS)
TIMEOUT_uproxy-restore := 300
TIMEOUT_uproxy-conduct := 300

PESTER := $(B)/selftests/uproxy/pester
$(PESTER): selftests/uproxy/restore/pester.c $(B)/uproxy/ckpt/libsingvgpu-control.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -Iuproxy/include -MMD -MP -o $@ $(filter %.c %.a,$^) $(LDFLAGS)

# The conductor's end alone.
UPROXY_TOLD := $(B)/selftests/uproxy/uproxy-told
$(UPROXY_TOLD): selftests/uproxy/restore/told.c $(B)/uproxy/ckpt/libsingvgpu-control.a $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) -Iuproxy/include -MMD -MP -o $@ $(filter %.c %.a,$^) $(LDFLAGS)
HOST_TESTS += $(UPROXY_TOLD)
TIMEOUT_test-pester := 300
TIMEOUT_test-pester-long := 3600

PESTER_LONG := algorithms atomics calls coop copies cub curand graphs grids half hostfunc hostmem \
	interop managed mem_vmm memory nested nullstream nvrtc pools printing queue rdc reset streams \
	symbols textures threads types vmm warp
$(B)/selftests/uproxy/test-pester-long: selftests/uproxy/restore/build.mk
	@mkdir -p $(@D)
	@printf '#!/bin/sh\nexec selftests/uproxy/restore/test-pester $(PESTER_LONG)\n' >$@
	@chmod +x $@

ifeq ($(SAN),)
HOST_TESTS += $(UPROXY_RESTORE) selftests/uproxy/restore/test-pester
TEST_PROGRAMS += $(PESTER)
LONG_TESTS += $(B)/selftests/uproxy/test-pester-long
endif
