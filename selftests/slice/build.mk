# SPDX-License-Identifier: Apache-2.0
# build.mk - ranks that take turns with a device's memory: every interleaving of their slices, and whose bytes lie where.

SLICE_TEST_BIN := $(addprefix $(B)/selftests/slice/slice-,turns table)

$(SLICE_TEST_BIN): $(B)/selftests/slice/slice-%: selftests/slice/%.c $(B)/uproxy/libcoll.a $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(COLL_CFLAGS) -Iuproxy/slice -MMD -MP -o $@ $(filter %.c %.a,$^) $(LDFLAGS) -lm

# A session's part, over a file instead of a device. GEN: there are CUDA headers.
ifneq ($(GEN_STAMPS),)
SLICE_COMMON := $(B)/selftests/slice/slice-common
$(SLICE_COMMON): selftests/slice/common.c $(B)/uproxy/slice/common.o $(B)/uproxy/libcoll.a $(B)/uproxy/message/message.o $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(UPROXY_CFLAGS) -MMD -MP -o $@ $(filter %.c %.o %.a,$^) $(LDFLAGS) -pthread -lm
HOST_TESTS += $(if $(filter thread,$(SAN)),,$(SLICE_COMMON))
endif

# How ranks share a device.
ifneq ($(GEN_STAMPS),)
ifeq ($(SAN),)
SLICE_BREAKS := $(B)/selftests/slice/breaks
$(SLICE_BREAKS): selftests/slice/breaks.c $(B)/uproxy/libcoll.a selftests/slice/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(COLL_CFLAGS) -Iuproxy/slice -MMD -MP -o $@ $(filter %.c %.a,$^) $(LDFLAGS) -lm
TEST_PROGRAMS += $(SLICE_BREAKS)
HOST_TESTS += selftests/slice/test-share
TIMEOUT_test-share := 300
endif
endif

# Jobs of ranks that take turns.
ifneq ($(NCCL_HEADER),)
ifeq ($(SAN),)
ifneq ($(NCCL_LIBDIR),)
SLICE_FILL := $(B)/selftests/slice/fill
$(SLICE_FILL): selftests/slice/fill.cu selftests/nccl/ranks.h selftests/slice/build.mk
	@mkdir -p $(@D)
	$(call nvcc,-Xcompiler -Wno-unused-function) -o $@ $< -L$(NCCL_LIBDIR) -lnccl -lpthread -Xlinker -rpath,$(NCCL_LIBDIR)
TEST_PROGRAMS += $(SLICE_FILL) $(B)/selftests/bench/job_work
HOST_TESTS += selftests/slice/test-slices
TIMEOUT_test-slices := 600
endif
endif
endif

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
