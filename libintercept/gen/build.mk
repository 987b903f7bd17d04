# SPDX-License-Identifier: Apache-2.0
# build.mk - svgen, and the files that it generates from the headers of $(CUDA_HOME), below $(GEN).
#
# `make opcodes` gives the next numbers to functions that were newly annotated.

GEN := $(B)/gen
SVGEN := $(B)/libintercept/gen/svgen
GEN_LLVM := llvm-config-19
GEN_SRC := $(wildcard libintercept/gen/*.c)
GEN_INC := $(CUDA_DIRS:%=-I %)
GEN_LEDGER := libintercept/gen/opcodes.txt
# Extra flags for compiling generated code.
GEN_CFLAGS := -I$(GEN) -Ilibintercept/gen $(CUDA_CFLAGS)

# A tool of the build: without sanitizers, whatever the rest is built with.
$(SVGEN): $(GEN_SRC) libintercept/gen/gen.h libintercept/gen/build.mk
	@mkdir -p $(@D)
	$(CC) $(filter-out -fsanitize=%,$(CFLAGS)) -D_GNU_SOURCE -I$$($(GEN_LLVM) --includedir) \
		-DRESOURCE_DIR='"'$$($(GEN_LLVM) --libdir)/clang/19'"' -o $@ $(GEN_SRC) \
		-L$$($(GEN_LLVM) --libdir) -Wl,-rpath,$$($(GEN_LLVM) --libdir) -lclang-19 \
		$(filter-out -fsanitize=%,$(LDFLAGS))

GEN_RUN = $(SVGEN) $(GEN_INC) -l $(GEN_LEDGER)

GEN_ANN := cuda
# NCCL's header, 2.22 or newer.
NCCL_HEADER := $(shell [ "0$$(sed -n 's/^.define NCCL_VERSION_CODE //p' $(CUDA_HOME)/include/nccl.h \
	2>/dev/null)" -ge 22200 ] && echo $(CUDA_HOME)/include/nccl.h)
# NVIDIA's transport for collectives, uproxy/hal/nccl, needs nvcc, too.
UPROXY_NCCL := $(if $(NCCL_HEADER),$(wildcard $(CUDA_HOME)/bin/nvcc))
ifneq ($(NCCL_HEADER),)
GEN_ANN += nccl
endif
GEN_HEADERS := $(wildcard $(addprefix $(CUDA_HOME)/include/,cuda.h cudaProfiler.h \
	cudaTypedefs.h cudaProfilerTypedefs.h nccl.h)) \
	$(wildcard libintercept/newer/*.h)

# A stamp must be older than the files that it stands for, else make takes them for out of date.
$(GEN)/%.stamp: libintercept/gen/%.ann $(GEN_LEDGER) $(SVGEN) $(GEN_HEADERS)
	@mkdir -p $(@D)
	@touch $@.new
	$(GEN_RUN) -o $(GEN) $<
	@mv $@.new $@

GEN_OBJ := $(addprefix $(GEN)/,names.o $(foreach l,$(GEN_ANN),$(l)_info.o $(l)_driver.o \
	$(l)_dispatch.o $(l)_stubs.o $(l)_forms.o))
GEN_STAMPS := $(GEN_ANN:%=$(GEN)/%.stamp)
$(GEN)/cuda_%.c: $(GEN)/cuda.stamp ;
$(GEN)/cuda_%.h: $(GEN)/cuda.stamp ;
$(GEN)/names.c: $(GEN)/cuda.stamp ;
$(GEN)/nccl_%.c: $(GEN)/nccl.stamp ;
$(GEN)/%.o: $(GEN)/%.c
	$(CC) $(CFLAGS) -fPIC $(if $(findstring _stubs,$@)$(findstring _forms,$@),,-fvisibility=hidden) -MMD -MP $(GEN_CFLAGS) -c $< -o $@
.PRECIOUS: $(GEN)/cuda_%.c $(GEN)/nccl_%.c $(GEN)/%.stamp

ALL += $(GEN_OBJ)

.PHONY: coverage opcodes
coverage: $(SVGEN)
	@$(GEN_RUN) -c -r selftests/gen/driver-requested.txt libintercept/gen/cuda.ann
ifneq ($(filter nccl,$(GEN_ANN)),)
	@$(GEN_RUN) -c libintercept/gen/nccl.ann
endif
opcodes: $(SVGEN)
	for l in $(GEN_ANN); do $(GEN_RUN) -A libintercept/gen/$$l.ann || exit 1; done
