# SPDX-License-Identifier: Apache-2.0
# jit.mk - the PTX compiler and executor: objects for the drivers, libsoftjit.so, and their tests.
#
# The front end is linked twice: into the drivers, which run kernels, and into libsoftjit.so, which
# needs its tables; so the library has no undefined symbol but LLVM's.

soft_room = $(patsubst uproxy/softgpu/%.c,%,$(wildcard uproxy/softgpu/$(1)/*.c))
SOFT_FRONT := $(call soft_room,ptx)
SOFT_RT := $(call soft_room,rt)
SOFT_JIT := $(call soft_room,jit)
SOFT_PTX_OBJS := $(SOFT_FRONT:%=$(SOFTGPU)/%.o) $(SOFT_RT:%=$(SOFTGPU)/%.o)
SOFT_JIT_OBJS := $(SOFT_FRONT:%=$(SOFTGPU)/libjit/%.o) $(SOFT_JIT:%=$(SOFTGPU)/libjit/%.o)
SOFT_JIT_SRC := $(wildcard $(addprefix uproxy/softgpu/,ptx/*.[ch] ptx/*.def jit/*.[ch] rt/rt_warp.h \
	rt/compile.c rt/elf.c))

LLVM_CONFIG ?= llvm-config-19
SOFT_LLVM_CFLAGS := -isystem $(shell $(LLVM_CONFIG) --includedir 2>/dev/null)
SOFT_LLVM_LIBS := $(shell $(LLVM_CONFIG) --link-shared --ldflags --libs 2>/dev/null)
SOFT_PTX_CFLAGS = $(CFLAGS) -fPIC -pthread -D_GNU_SOURCE -MMD -MP $(soft_sees)

# The cache's key changes with anything that may change the code that comes out.
SOFT_BUILD_ID = $(shell cat $(SOFT_JIT_SRC) | sha256sum | cut -c1-32)-$(shell $(LLVM_CONFIG) --version)

$(SOFT_PTX_OBJS): SOFT_CFLAGS = $(SOFT_PTX_CFLAGS)
$(SOFTGPU)/rt/math.o: SOFT_CFLAGS = $(SOFT_PTX_CFLAGS) -frounding-math -ffp-contract=off
$(SOFTGPU)/rt/compile.o: SOFT_CFLAGS = $(SOFT_PTX_CFLAGS) -DPTX_BUILD_ID='"$(SOFT_BUILD_ID)"'
$(SOFTGPU)/rt/compile.o: $(SOFT_JIT_SRC)
# A fault leaves a kernel's own stack by a jump. AddressSanitizer, told of it, unpoisons a stack that
# it does not know, and now and then takes it for a wild pointer: what runs there is built without.
ifneq ($(findstring address,$(SAN)),)
$(SOFT_RT:%=$(SOFTGPU)/%.o): SOFT_CFLAGS += -fno-sanitize=address
endif

$(SOFTGPU)/libjit/%.o: uproxy/softgpu/%.c
	@mkdir -p $(@D)
	$(CC) $(SOFT_PTX_CFLAGS) -fvisibility=hidden $(SOFT_LLVM_CFLAGS) -c -o $@ $<

$(SOFTGPU)/libsoftjit.so: $(SOFT_JIT_OBJS)
	$(CC) -shared -o $@ $^ -Wl,-soname,libsoftjit.so -Wl,-Bsymbolic $(SOFT_ZDEFS) $(LDFLAGS) \
		$(SOFT_LLVM_LIBS) -lpthread

ALL += $(SOFTGPU)/libsoftjit.so

# Tests of the compiler alone: PTX in, results out. RPATH, not RUNPATH: under AddressSanitizer it is
# that library which calls dlopen, and only the program's RPATH is looked at for others.
PTX_RPATH := -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../../uproxy/softgpu'
PTX_TESTS := ptx_ops ptx_approx ptx_async ptx_exec ptx_mma ptx_mutants ptx_tiles
PTX_BINS := $(PTX_TESTS:%=$(B)/selftests/softgpu/%)
$(PTX_BINS): $(B)/selftests/softgpu/%: selftests/softgpu/ptx/%.c selftests/softgpu/ptx/ptx_test.h \
		$(SOFT_PTX_OBJS) $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Wno-psabi -frounding-math -ffp-contract=off $(KSELFTEST_CFLAGS) -MMD -MP -o $@ \
		$(filter %.c %.o,$^) $(PTX_RPATH) $(LDFLAGS) -lm \
		-ldl -lpthread
$(PTX_BINS): | $(SOFTGPU)/libsoftjit.so

# ptx_exec runs what nvcc makes; without CUDA it skips by name.
PTX_KERNELS := $(B)/selftests/softgpu/ptx_kernels.ptx
$(PTX_KERNELS): selftests/softgpu/ptx/ptx_kernels.cu
	@mkdir -p $(@D)
	$(call nvcc,-ptx) -o $@ $<
ifneq ($(wildcard $(CUDA_HOME)/bin/nvcc),)
$(B)/selftests/softgpu/ptx_exec: | $(PTX_KERNELS)
TEST_PROGRAMS += $(PTX_KERNELS)
endif

HOST_TESTS += $(PTX_BINS)
TEST_PROGRAMS += $(PTX_BINS)
TIMEOUT_ptx_ops := 300

# What NVIDIA's libraries bring: see docs/soft-device.md.
PTX_CORPUS := $(B)/selftests/softgpu/ptx_corpus
$(PTX_CORPUS): selftests/softgpu/ptx/ptx_corpus.c $(SOFT_PTX_OBJS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -MMD -MP -o $@ $(filter %.c %.o,$^) \
		$(PTX_RPATH) $(LDFLAGS) -lzstd -llz4 -lm -ldl -lpthread
$(PTX_CORPUS): | $(SOFTGPU)/libsoftjit.so

ifeq ($(SAN),)
TEST_PROGRAMS += $(PTX_CORPUS)
HOST_TESTS += selftests/softgpu/ptx/test-corpus
LONG_TESTS += selftests/softgpu/ptx/test-corpus-all
FULL_TESTS += selftests/softgpu/ptx/test-corpus-all
TIMEOUT_test-corpus := 600
TIMEOUT_test-corpus-all := 3600
endif

# make ptx-corpus: is every entry understood?  Then compile a share of them; the log says what has
# been compiled, and another share (CORPUS_SHARE=1/400) adds to it.
CORPUS ?= $(wildcard $(addprefix $(CUDA_HOME)/lib64/lib,cublas.so.* cublasLt.so.* cudnn_*.so.* \
	cufft.so.* curand.so.* cusolver.so.* cusolverMg.so.* cusparse.so.* npp*.so.* nvjpeg.so.* \
	nccl.so.*))
CORPUS_SHARE ?= 0/400
CORPUS_JOBS ?= 1
.PHONY: ptx-corpus
ptx-corpus: $(PTX_CORPUS) $(SOFTGPU)/libsoftjit.so
	@mkdir -p $(BUILD)/bench
	-$(PTX_CORPUS) -j $(CORPUS_JOBS) $(CORPUS)
	$(PTX_CORPUS) -c -j $(CORPUS_JOBS) -s $(CORPUS_SHARE) -l $(BUILD)/bench/ptx-corpus.log \
		-o $(BUILD)/bench/jit.json $(CORPUS)

# make bench-jit: a share of the corpus, and the entry that takes longest of all that are known.
CORPUS_WORST := _Z6kernelI22getrf_wo_pivot_params_IdLi1ELi256ELi1ELi64ELi64ELi64ELi16ELi1ELi1EEEviiPviS2_iiiiiPi
.PHONY: bench-jit
bench-jit: $(PTX_CORPUS) $(SOFTGPU)/libsoftjit.so
	@mkdir -p $(BUILD)/bench
	rm -f $(BUILD)/bench/jit.log
	-$(PTX_CORPUS) -c -i 116 -e $(CORPUS_WORST) -l $(BUILD)/bench/jit.log \
		$(wildcard $(CUDA_HOME)/lib64/libcusolver.so.12)
	$(PTX_CORPUS) -c -j $(CORPUS_JOBS) -s $(CORPUS_SHARE) -l $(BUILD)/bench/jit.log \
		-o $(BUILD)/bench/jit.json $(CORPUS)
