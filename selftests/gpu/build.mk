# SPDX-License-Identifier: Apache-2.0
# build.mk - `make check-gpu`, and the folder that can be carried to a machine that has a GPU.
#
# Everything in the folder is built here, with $(CUDA_HOME). There, only the GPU's driver and a libc
# are needed: our programs are linked once more, with static forms of the other libraries.

$(B)/selftests/gpu/window: selftests/gpu/window.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CUDA_CFLAGS) $(LDFLAGS) $< -ldl -o $@

GPU_KIT := $(B)/gpu-kit
# Programs that check-gpu runs, packed: each brings the CUDA runtime along.
GPU_KIT_RUNS = $(B)/selftests/gpu/window $(B)/selftests/bench/calls $(SAMPLE_JOB_BINS)
gpu_kit_static = $(filter-out -l%,$(1)) $(patsubst -l%,-l:lib%.a,$(filter -l%,$(1)))

# Fragments that define these by variables are read after this one.
GPU_KIT_OURS := $(addprefix $(B)/,tools/singvgpu tools/singvgpu-init uproxy/singvgpu-proxy lib/libcuda.so.1 \
	lib/libnvidia-ml.so.1 lib/libsingvgpu-files.so lib/libsingvgpu-rtc.so)

.PHONY: gpu-kit run-gpu-kit check-gpu
gpu-kit: setup
	$(again) run-gpu-kit
	@du -sh $(GPU_KIT)
run-gpu-kit: $(GPU_KIT)/check-gpu
$(GPU_KIT)/check-gpu: selftests/gpu/check-gpu $(GPU_KIT_OURS) \
		$(B)/selftests/gpu/window $(B)/selftests/bench/calls | sample-jobs
	@rm -rf $(GPU_KIT)
	@mkdir -p $(addprefix $(GPU_KIT)/,tools uproxy lib)
	@$(CC) $(CFLAGS) $(LDFLAGS) -s -o $(GPU_KIT)/tools/singvgpu $(TOOL_PARTS) \
		$(call gpu_kit_static,$(STORE_LIBS)) -lm -ldl
	@$(CC) $(LDFLAGS) -s -o $(GPU_KIT)/uproxy/singvgpu-proxy $(UPROXY_PARTS) \
		$(call gpu_kit_static,$(STORE_LIBS) -llz4) -ldl
	@for f in $(TOOL_INIT) $(filter $(B)/lib/%,$(GPU_KIT_OURS)); do \
		strip -o $(GPU_KIT)/$${f#$(B)/} $$f || exit 1; done
	@for n in libcuda libnvidia-ml; do ln -s $$n.so.1 $(GPU_KIT)/lib/$$n.so || exit 1; done
	@tar cC $(BUILD) --exclude='*.a' --exclude=gconv --exclude=compel --exclude=etc \
		criu/criu criu/nft criu/root | tar xC $(GPU_KIT)
	@for f in $(patsubst $(B)/%,%,$(GPU_KIT_RUNS)); do \
		mkdir -p $(GPU_KIT)/$${f%/*} && strip -o $(GPU_KIT)/$$f $(B)/$$f || exit 1; done
	@tar czf $(GPU_KIT)/programs.tar.gz -C $(GPU_KIT) --remove-files selftests
	@cp LICENSES/GPL-2.0-only $(GPU_KIT)/text	# for gpt to learn
	@cp selftests/gpu/check-gpu $@

check-gpu: gpu-kit
	@SINGVGPU_BUILD=$(GPU_KIT) selftests/gpu/check-gpu || [ $$? -eq 4 ]

ifeq ($(SAN),)
TEST_PROGRAMS += $(GPU_KIT)/check-gpu
HOST_TESTS += selftests/gpu/test-kit
TIMEOUT_test-kit := 600
endif
