# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of the soft device as an H100: SINGVGPU_SOFT_PROFILE=h100. They need $(CUDA_HOME).

HOPPER := $(B)/selftests/hopper
ifneq ($(wildcard $(CUDA_HOME)/bin/nvcc),)
hopper_code = -gencode arch=compute_$(1),code=$(2)_$(1)
HOPPER_IMAGES := $(addprefix $(HOPPER)/,kernels.cubin both.fatbin older.fatbin foreign.fatbin \
	special.fatbin special_ptx.fatbin)
$(HOPPER)/kernels.cubin: HOPPER_FLAGS := -cubin -arch=sm_90
$(HOPPER)/both.fatbin: HOPPER_FLAGS := -fatbin $(call hopper_code,90,sm) $(call hopper_code,90,compute)
$(HOPPER)/older.fatbin: HOPPER_FLAGS := -fatbin $(call hopper_code,80,sm) $(call hopper_code,80,compute)
$(HOPPER)/foreign.fatbin: HOPPER_FLAGS := -fatbin $(call hopper_code,80,sm)
$(HOPPER)/special.fatbin: HOPPER_FLAGS := -fatbin $(call hopper_code,90,sm) $(call hopper_code,90a,sm)
$(HOPPER)/special_ptx.fatbin: HOPPER_FLAGS := -fatbin $(call hopper_code,90a,compute)
$(HOPPER_IMAGES): selftests/hopper/kernels.cu
	@mkdir -p $(@D)
	$(call nvcc,$(HOPPER_FLAGS)) -o $@ $<

$(HOPPER)/api_h100: selftests/hopper/api_h100.c selftests/softgpu/api/api.h \
		$(B)/uproxy/softgpu/libsoftcuda.so $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) -MMD -MP -Ilibintercept/gen $(CUDA_CFLAGS) -o $@ $< \
		$(B)/uproxy/softgpu/libsoftcuda.so -Wl,-rpath,'$$ORIGIN/../../uproxy/softgpu' \
		-lpthread $(LDFLAGS)
$(HOPPER)/api_h100: | $(B)/uproxy/softgpu/libsoftjit.so $(HOPPER_IMAGES)
HOST_TESTS += $(HOPPER)/api_h100
TEST_PROGRAMS += $(HOPPER)/api_h100 $(HOPPER_IMAGES)

# Programs with machine code for 9.0, on the soft device and its proxy.
HOPPER_CUDNN := $(wildcard $(CUDA_HOME)/lib64/libcudnn.so)
$(HOPPER)/start: selftests/hopper/start.cu
	@mkdir -p $(@D)
	$(call nvcc,-arch=sm_90 $(if $(HOPPER_CUDNN),-DHAVE_CUDNN)) -o $@ $< -lcublas -lcublasLt \
		-lcusolver $(if $(HOPPER_CUDNN),-lcudnn) -Xlinker -rpath,$(CUDA_HOME)/lib64
	@rm -f $(@D)/has-cudnn $(if $(HOPPER_CUDNN),&& touch $(@D)/has-cudnn)
$(HOPPER)/occupancy $(HOPPER)/launches: $(HOPPER)/%: selftests/hopper/%.cu
	@mkdir -p $(@D)
	$(call nvcc,-arch=sm_90) -o $@ $<
$(HOPPER)/mapping: selftests/hopper/mapping.cu
	@mkdir -p $(@D)
	$(call nvcc,-arch=compute_90) -o $@ $< -lpthread
$(HOPPER)/rdc: $(wildcard selftests/jobs/process/rdc_*.cu) selftests/jobs/process/rdc.cuh selftests/jobs/job.cuh
	@mkdir -p $(@D)
	$(call nvcc,-rdc=true -arch=sm_90 -Xnvlink -suppress-stack-size-warning) -o $@ $(filter %.cu,$^)
ifeq ($(SAN),)
HOST_TESTS += selftests/hopper/test-hopper
LONG_TESTS += selftests/hopper/test-frameworks
FULL_TESTS += selftests/hopper/test-frameworks
TIMEOUT_test-frameworks := 1800
.PHONY: frameworks
frameworks: setup
	@tools/setup/setup frameworks || echo "going on without PyTorch and JAX"
check-full: frameworks
TEST_PROGRAMS += $(addprefix $(HOPPER)/,start occupancy launches mapping rdc) \
	$(B)/uproxy/softgpu/direct/libcuda.so.1 $(B)/selftests/gpu/trace/libcuda.so.1 \
	$(B)/selftests/bench/calls
endif
endif
