# SPDX-License-Identifier: Apache-2.0
# build.mk - the stand-in for NCCL, tested by programs that are linked with the real one of $(CUDA_HOME).

ifneq ($(NCCL_HEADER),)
ifeq ($(SAN),)
NCCL_TEST_DIR := $(B)/selftests/nccl
NCCL_LIBDIR := $(abspath $(firstword $(dir $(wildcard $(addsuffix /libnccl.so.2,$(CUDA_HOME)/lib \
	$(CUDA_HOME)/lib64)))))
NCCL_TESTS := $(addprefix $(NCCL_TEST_DIR)/,alone bind captured devices kills ranks)

# The real library's folder is in them, so that the stand-in has to come before that: DT_RPATH, as in
# Debian's PyTorch, and in devices DT_RUNPATH.
$(NCCL_TESTS): $(NCCL_TEST_DIR)/%: selftests/nccl/%.c selftests/nccl/ranks.h selftests/nccl/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Wno-unused-function -isystem $(CUDA_HOME)/include -o $@ $< -L$(NCCL_LIBDIR) -lnccl \
		-lcudart -lm -ldl -Wl,-rpath,$(NCCL_LIBDIR) \
		-Wl,--$(if $(findstring devices,$@),enable,disable)-new-dtags \
		$(if $(findstring ranks,$@),-Wl$(comma)--export-dynamic-symbol=cuStreamDestroy_v2)

# Programs with kernels, by nvcc.
NCCL_PROGRAMS := $(addprefix $(NCCL_TEST_DIR)/,gpt order examples cuts)
$(NCCL_PROGRAMS): $(NCCL_TEST_DIR)/%: selftests/nccl/%.cu selftests/nccl/ranks.h selftests/jobs/job.cuh \
		selftests/jobs/programs/gpt.cuh selftests/nccl/build.mk
	@mkdir -p $(@D)
	$(call nvcc,-Xcompiler -Wno-unused-function) -o $@ $< -L$(NCCL_LIBDIR) -lnccl -lpthread \
		-Xlinker -rpath,$(NCCL_LIBDIR)

ifneq ($(NCCL_LIBDIR),)
HOST_TESTS += $(addprefix selftests/nccl/,test-nccl test-programs test-ahead test-kills test-late test-quiet)
# The fake, and what it is called by, are selftests/transport's.
HOST_TESTS += $(if $(UPROXY_NCCL),selftests/nccl/test-transport selftests/nccl/test-together)
TEST_PROGRAMS += $(NCCL_TESTS) $(NCCL_PROGRAMS) $(CHECKED)/libcuda.so.1
TIMEOUT_test-programs := 900
TIMEOUT_test-kills := 600

NCCL_LONG_TESTS := $(addprefix selftests/nccl/,test-captured-torch test-orders test-maps)
LONG_TESTS += $(NCCL_LONG_TESTS)
FULL_TESTS += $(NCCL_LONG_TESTS)
TIMEOUT_test-captured-torch := 1500
TIMEOUT_test-orders := 1800
TIMEOUT_test-maps := 1800

# 500 kills at random moments.
NCCL_KILLS_LONG := $(NCCL_TEST_DIR)/test-kills-long
LONG_TESTS += $(NCCL_KILLS_LONG)
TIMEOUT_test-kills-long := 1800
$(NCCL_KILLS_LONG): selftests/nccl/build.mk
	@mkdir -p $(@D)
	@printf '#!/bin/sh\nexec selftests/nccl/test-kills 500\n' >$@
	@chmod +x $@
endif
endif
endif
