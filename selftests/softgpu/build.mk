# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of the soft device: its driver API, and nvcc's programs run in direct mode.
# They need $(CUDA_HOME).

SOFT_API_TESTS := api_device api_memory api_stream api_module api_graph api_symbols \
	api_proxy hostile_ptx
SOFT_API_BINS := $(SOFT_API_TESTS:%=$(B)/selftests/softgpu/%)
$(SOFT_API_BINS): $(B)/selftests/softgpu/%: selftests/softgpu/api/%.c selftests/softgpu/api/api.h \
		$(B)/uproxy/softgpu/libsoftcuda.so $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) -MMD -MP $(CUDA_CFLAGS) -o $@ $< \
		$(B)/uproxy/softgpu/libsoftcuda.so -Wl,-rpath,'$$ORIGIN/../../uproxy/softgpu' \
		-lpthread $(LDFLAGS)
$(SOFT_API_BINS): | $(B)/uproxy/softgpu/libsoftjit.so

# ThreadSanitizer cannot follow kernels that are left by a jump out of a signal, nor has it room for
# the device window where a proxy needs it: what these two are about.
SOFT_API_RUN := $(if $(filter thread,$(SAN)),$(filter-out %/api_proxy %/hostile_ptx,\
	$(SOFT_API_BINS)),$(SOFT_API_BINS))
HOST_TESTS += $(SOFT_API_RUN)
TIMEOUT_hostile_ptx := 300
TEST_PROGRAMS += $(SOFT_API_RUN)

# Programs of direct mode: unmodified, static cudart, nvcc's defaults.
SOFT_DIRECT_TESTS := vector reduce streams symbols graphs errors coop texture exit
SOFT_DIRECT_BINS := $(SOFT_DIRECT_TESTS:%=$(B)/selftests/softgpu/d_%) $(B)/selftests/softgpu/d_rdc
$(SOFT_DIRECT_TESTS:%=$(B)/selftests/softgpu/d_%): $(B)/selftests/softgpu/d_%: \
		selftests/softgpu/direct/d_%.cu selftests/softgpu/direct/direct.cuh
	@mkdir -p $(@D)
	$(call nvcc) -o $@ $<
$(B)/selftests/softgpu/d_rdc: selftests/softgpu/direct/d_rdc_a.cu selftests/softgpu/direct/d_rdc_b.cu \
		selftests/softgpu/direct/direct.cuh
	@mkdir -p $(@D)
	$(call nvcc,-rdc=true) -o $@ $(filter %.cu,$^)

ifeq ($(SAN),)
HOST_TESTS += selftests/softgpu/direct/test-direct selftests/softgpu/direct/test-levels
TIMEOUT_test-levels := 600
TEST_PROGRAMS += $(SOFT_DIRECT_BINS) $(B)/uproxy/softgpu/direct/libcuda.so.1
TIMEOUT_test-direct := 300
endif
