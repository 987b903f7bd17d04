# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of the soft device: its driver API, and nvcc's programs run in direct mode.

SOFT_API_TESTS := api_device api_memory api_stream api_module api_graph api_symbols
SOFT_API_BINS := $(SOFT_API_TESTS:%=$(B)/selftests/softgpu/%)
$(SOFT_API_BINS): $(B)/selftests/softgpu/%: selftests/softgpu/%.c selftests/softgpu/api.h \
		$(B)/uproxy/softgpu/libsoftcuda.so $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) -MMD -MP -isystem $(CUDA_HOME)/include -o $@ $< \
		$(B)/uproxy/softgpu/libsoftcuda.so -Wl,-rpath,'$$ORIGIN/../../uproxy/softgpu' \
		-lpthread $(LDFLAGS)
$(SOFT_API_BINS): | $(B)/uproxy/softgpu/libsoftjit.so

HOST_TESTS += $(SOFT_API_BINS)
TEST_PROGRAMS += $(SOFT_API_BINS)
