# SPDX-License-Identifier: Apache-2.0
# build.mk - the stand-in for NCCL, tested by programs that are linked with the real one of $(CUDA_HOME).

ifneq ($(NCCL_HEADER),)
ifeq ($(SAN),)
NCCL_TEST_DIR := $(B)/selftests/nccl
NCCL_LIBDIR := $(abspath $(firstword $(dir $(wildcard $(addsuffix /libnccl.so.2,$(CUDA_HOME)/lib \
	$(CUDA_HOME)/lib64)))))
NCCL_TESTS := $(addprefix $(NCCL_TEST_DIR)/,alone bind devices ranks)

# The real library's folder is in them, so that the stand-in has to come before that: DT_RPATH, as in
# Debian's PyTorch, and in devices DT_RUNPATH.
$(NCCL_TESTS): $(NCCL_TEST_DIR)/%: selftests/nccl/%.c selftests/nccl/ranks.h selftests/nccl/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Wno-unused-function -isystem $(CUDA_HOME)/include -o $@ $< -L$(NCCL_LIBDIR) -lnccl \
		-lcudart -lm -ldl -Wl,-rpath,$(NCCL_LIBDIR) \
		-Wl,--$(if $(findstring devices,$@),enable,disable)-new-dtags

ifneq ($(NCCL_LIBDIR),)
HOST_TESTS += selftests/nccl/test-nccl
TEST_PROGRAMS += $(NCCL_TESTS) $(CHECKED)/libcuda.so.1
endif
endif
endif
