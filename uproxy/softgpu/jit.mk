# SPDX-License-Identifier: Apache-2.0
# jit.mk - the PTX compiler and executor: objects for the drivers, libsoftjit.so, and their tests.
#
# The front end is linked twice: into the drivers, which run kernels, and into libsoftjit.so, which
# needs its tables; so the library has no undefined symbol but LLVM's.

SOFT_FRONT := ptx_lex ptx_module ptx_body ptx_unit ptx_regs ptx_flow
SOFT_RT := ptx_compile ptx_elf rt_mem rt_warp rt_math rt_printf rt_run rt_turns rt_pool rt_mma rt_tex
SOFT_JIT := jit jit_flow jit_val jit_alu jit_fp jit_cvt jit_mem jit_near jit_warp jit_mma jit_tex
SOFT_PTX_OBJS := $(SOFT_FRONT:%=$(SOFTGPU)/%.o) $(SOFT_RT:%=$(SOFTGPU)/%.o)
SOFT_JIT_OBJS := $(SOFT_FRONT:%=$(SOFTGPU)/jit/%.o) $(SOFT_JIT:%=$(SOFTGPU)/jit/%.o)
SOFT_JIT_SRC := $(wildcard uproxy/softgpu/ptx*.[ch] uproxy/softgpu/jit*.[ch] \
	uproxy/softgpu/rt_warp.h uproxy/softgpu/*.def)

LLVM_CONFIG ?= llvm-config-19
SOFT_LLVM_CFLAGS := -isystem $(shell $(LLVM_CONFIG) --includedir 2>/dev/null)
SOFT_LLVM_LIBS := $(shell $(LLVM_CONFIG) --link-shared --ldflags --libs 2>/dev/null)
SOFT_PTX_CFLAGS = $(CFLAGS) -fPIC -pthread -D_GNU_SOURCE -MMD -MP

# The cache's key changes with anything that may change the code that comes out.
SOFT_BUILD_ID = $(shell cat $(SOFT_JIT_SRC) | sha256sum | cut -c1-32)-$(shell $(LLVM_CONFIG) --version)

$(SOFT_PTX_OBJS): SOFT_CFLAGS = $(SOFT_PTX_CFLAGS)
$(SOFTGPU)/rt_math.o: SOFT_CFLAGS = $(SOFT_PTX_CFLAGS) -frounding-math -ffp-contract=off
$(SOFTGPU)/ptx_compile.o: SOFT_CFLAGS = $(SOFT_PTX_CFLAGS) -DPTX_BUILD_ID='"$(SOFT_BUILD_ID)"'
$(SOFTGPU)/ptx_compile.o: $(SOFT_JIT_SRC)
# A fault leaves a kernel's own stack by a jump. AddressSanitizer, told of it, unpoisons a stack that
# it does not know, and now and then takes it for a wild pointer: what runs there is built without.
ifneq ($(findstring address,$(SAN)),)
$(SOFT_RT:%=$(SOFTGPU)/%.o): SOFT_CFLAGS += -fno-sanitize=address
endif

$(SOFTGPU)/jit/%.o: uproxy/softgpu/%.c
	@mkdir -p $(@D)
	$(CC) $(SOFT_PTX_CFLAGS) -fvisibility=hidden $(SOFT_LLVM_CFLAGS) -c -o $@ $<

$(SOFTGPU)/libsoftjit.so: $(SOFT_JIT_OBJS)
	$(CC) -shared -o $@ $^ -Wl,-soname,libsoftjit.so -Wl,-Bsymbolic $(SOFT_ZDEFS) $(LDFLAGS) \
		$(SOFT_LLVM_LIBS) -lpthread

ALL += $(SOFTGPU)/libsoftjit.so

# Tests of the compiler alone: PTX in, results out. RPATH, not RUNPATH: under AddressSanitizer it is
# that library which calls dlopen, and only the program's RPATH is looked at for others.
PTX_RPATH := -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../../uproxy/softgpu'
PTX_TESTS := ptx_ops ptx_exec ptx_mma ptx_mutants ptx_tiles
PTX_BINS := $(PTX_TESTS:%=$(B)/selftests/softgpu/%)
$(PTX_BINS): $(B)/selftests/softgpu/%: selftests/softgpu/%.c selftests/softgpu/ptx_test.h \
		$(SOFT_PTX_OBJS) $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Wno-psabi -frounding-math -ffp-contract=off $(KSELFTEST_CFLAGS) -MMD -MP -o $@ \
		$(filter %.c %.o,$^) $(PTX_RPATH) $(LDFLAGS) -lm \
		-ldl -lpthread
$(PTX_BINS): | $(SOFTGPU)/libsoftjit.so

# ptx_exec runs what nvcc makes; without CUDA it skips by name.
PTX_KERNELS := $(B)/selftests/softgpu/ptx_kernels.ptx
$(PTX_KERNELS): selftests/softgpu/ptx_kernels.cu
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
$(PTX_CORPUS): selftests/softgpu/ptx_corpus.c $(SOFT_PTX_OBJS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -MMD -MP -o $@ $(filter %.c %.o,$^) \
		$(PTX_RPATH) $(LDFLAGS) -lzstd -llz4 -lm -ldl -lpthread
$(PTX_CORPUS): | $(SOFTGPU)/libsoftjit.so

ifeq ($(SAN),)
TEST_PROGRAMS += $(PTX_CORPUS)
HOST_TESTS += selftests/softgpu/test-corpus
LONG_TESTS += selftests/softgpu/test-corpus-all
FULL_TESTS += selftests/softgpu/test-corpus-all
TIMEOUT_test-corpus := 300
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
