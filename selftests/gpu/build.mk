# SPDX-License-Identifier: Apache-2.0
# build.mk - `make check-gpu`, and the folder that can be carried to a machine that has a GPU.
#
# What it runs is built with $(CUDA_HOME) here; there, only the driver is needed.

$(B)/selftests/gpu/window: selftests/gpu/window.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CUDA_CFLAGS) $(LDFLAGS) $< -ldl -o $@

GPU_KIT := $(B)/gpu-kit
GPU_KIT_FILES = $(LIBCUDA) $(LIBNVML) $(B)/uproxy/singvgpu-proxy $(B)/tools/singvgpu \
	$(B)/selftests/gpu/window $(B)/selftests/bench/calls $(SAMPLE_JOB_BINS)

.PHONY: gpu-kit check-gpu
gpu-kit: setup
	$(again) run-gpu-kit
run-gpu-kit: all tests $(B)/selftests/gpu/window $(B)/selftests/bench/calls
	@rm -rf $(GPU_KIT)
	@for f in $(GPU_KIT_FILES); do \
		mkdir -p $(GPU_KIT)/$$(dirname $${f#$(B)/}) && \
		strip -o $(GPU_KIT)/$${f#$(B)/} $$f || exit 1; done
	@cp selftests/gpu/check-gpu $(GPU_KIT)
	@du -sh $(GPU_KIT)

check-gpu: gpu-kit
	@SINGVGPU_BUILD=$(GPU_KIT) selftests/gpu/check-gpu || [ $$? -eq 4 ]
