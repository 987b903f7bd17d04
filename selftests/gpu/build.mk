# SPDX-License-Identifier: Apache-2.0
# build.mk - `make check-gpu`, and the folder that can be carried to a machine that has a GPU.
#
# Everything in the folder is built here, with $(CUDA_HOME). There, only the GPU's driver and a libc
# are needed: our programs are linked once more, with static forms of the other libraries.

GPU_PROBE := $(B)/selftests/gpu/probe
$(B)/selftests/gpu/attributes.h: $(CUDA_HOME)/include/cuda.h
	@mkdir -p $(@D)
	@sed -nE 's/^ *(CU_DEVICE_ATTRIBUTE_[A-Z0-9_]+) += [0-9]+,.*/ATTRIBUTE(\1)/p' $< >$@
$(GPU_PROBE): $(wildcard selftests/gpu/probe*.c) selftests/gpu/probe.h libintercept/gen/windows.h \
		$(B)/selftests/gpu/attributes.h
	$(CC) $(CFLAGS) -I$(B)/selftests/gpu -Ilibintercept/gen $(CUDA_CFLAGS) $(LDFLAGS) \
		$(filter %.c,$^) -ldl -lpthread -o $@

# A libcuda.so.1 that writes down what a program asks of NVIDIA's.
GPU_TRACER := $(B)/selftests/gpu/trace/libcuda.so.1
$(B)/selftests/gpu/tracer_calls.c: $(B)/uproxy/softgpu/gen/api_protos.txt selftests/gpu/tracer.awk \
		uproxy/softgpu/api/args.awk
	@mkdir -p $(@D)
	awk -f uproxy/softgpu/api/args.awk -f selftests/gpu/tracer.awk $< >$@
$(GPU_TRACER): selftests/gpu/tracer.c $(B)/selftests/gpu/tracer_calls.c selftests/gpu/tracer.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Wno-deprecated-declarations -fPIC -shared -Iselftests/gpu \
		$(CUDA_CFLAGS) -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -o $@ $(filter %.c,$^) $(LDFLAGS) \
		-ldl -lpthread

# Where the threads of a step are that does not end.
GPU_STACKS := $(B)/selftests/gpu/stacks
$(GPU_STACKS): selftests/gpu/stacks.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $< $(LDFLAGS)

GPU_KIT := $(B)/gpu-kit
# Programs that check-gpu runs, packed: each brings the CUDA runtime along.
GPU_KIT_TOOLS := $(GPU_PROBE) $(GPU_STACKS) $(GPU_TRACER) $(addprefix $(B)/selftests/,bench/calls bench/managed hopper/start)
GPU_KIT_RUNS = $(GPU_KIT_TOOLS) $(SAMPLE_JOB_BINS) $(LIB_BINS)
GPU_KIT_SCRIPTS := $(addprefix selftests/gpu/,steps steps.sh frameworks.py kernels_of_triton.py)
gpu_kit_static = $(filter-out -l%,$(1)) $(patsubst -l%,-l:lib%.a,$(filter -l%,$(1)))

# Fragments that define these by variables are read after this one.
GPU_KIT_OURS := $(addprefix $(B)/,tools/singvgpu tools/singvgpu-init uproxy/singvgpu-proxy lib/libcuda.so.1 \
	lib/libnvidia-ml.so.1 $(if $(NCCL_HEADER),lib/libnccl.so.2) lib/libsingvgpu-files.so \
	lib/libsingvgpu-rtc.so lib/libsingvgpu-clock.so)

.PHONY: gpu-kit run-gpu-kit check-gpu
gpu-kit: setup
	$(again) run-gpu-kit
	@du -sh $(GPU_KIT)
run-gpu-kit: $(GPU_KIT)/check-gpu
$(GPU_KIT)/check-gpu: selftests/gpu/check-gpu $(GPU_KIT_SCRIPTS) $(GPU_KIT_OURS) $(GPU_KIT_TOOLS) \
		| sample-jobs lib-programs
	@rm -rf $(GPU_KIT)
	@mkdir -p $(addprefix $(GPU_KIT)/,tools uproxy lib)
	@$(CC) $(CFLAGS) $(LDFLAGS) -s -o $(GPU_KIT)/tools/singvgpu $(TOOL_PARTS) \
		$(call gpu_kit_static,$(STORE_LIBS)) -lm -ldl
	@$(CC) $(LDFLAGS) -s -o $(GPU_KIT)/uproxy/singvgpu-proxy $(UPROXY_PARTS) \
		$(call gpu_kit_static,$(STORE_LIBS) -llz4) -ldl
	@for f in $(TOOL_INIT) $(filter $(B)/lib/%,$(GPU_KIT_OURS)); do \
		strip -o $(GPU_KIT)/$${f#$(B)/} $$f || exit 1; done
	@for f in libcuda.so.1 libnvidia-ml.so.1 $(if $(NCCL_HEADER),libnccl.so.2); do \
		ln -s $$f $(GPU_KIT)/lib/$${f%.*} || exit 1; done
	@tar cC $(BUILD) --exclude='*.a' --exclude=gconv --exclude=compel --exclude=etc \
		criu/criu criu/nft criu/root | tar xC $(GPU_KIT)
	@for f in $(patsubst $(B)/%,%,$(GPU_KIT_RUNS)); do \
		mkdir -p $(GPU_KIT)/$${f%/*} && strip -o $(GPU_KIT)/$$f $(B)/$$f || exit 1; done
	@tar czf $(GPU_KIT)/programs.tar.gz -C $(GPU_KIT) --remove-files selftests
	@cp LICENSES/GPL-2.0-only $(GPU_KIT)/text	# for gpt to learn
	@cp $(GPU_KIT_SCRIPTS) $(GPU_KIT)/
	@cp selftests/gpu/check-gpu $@

check-gpu: gpu-kit
	@for call in 1 2; do \
		SINGVGPU_BUILD=$(GPU_KIT) selftests/gpu/check-gpu $$call || [ $$? -eq 4 ] || failed=1; \
	done; [ -z "$$failed" ]

ifeq ($(SAN),)
TEST_PROGRAMS += $(GPU_KIT)/check-gpu
HOST_TESTS += selftests/gpu/test-kit selftests/gpu/test-rehearsals
TIMEOUT_test-kit := 900
endif
