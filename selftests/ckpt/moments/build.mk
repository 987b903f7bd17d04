# SPDX-License-Identifier: Apache-2.0
# build.mk - jobs that are saved at random moments, and by conductors that fail.

MOMENTS_JOB := $(B)/selftests/ckpt/moments-job
INFLIGHT := $(B)/selftests/ckpt/inflight
$(MOMENTS_JOB): selftests/ckpt/moments/moments.cu selftests/jobs/job.cuh
	@mkdir -p $(@D)
	$(call nvcc,-std=c++17) -o $@ $<

$(INFLIGHT): selftests/ckpt/moments/inflight.cu selftests/jobs/job.cuh
	@mkdir -p $(@D)
	$(call nvcc) -o $@ $<

WAITS := $(B)/selftests/ckpt/waits
REGISTERED := $(B)/selftests/ckpt/registered
VARIABLES := $(B)/selftests/ckpt/variables
$(WAITS) $(REGISTERED) $(VARIABLES): $(B)/selftests/ckpt/%: selftests/ckpt/moments/%.c $(LIBCUDA)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CUDA_CFLAGS) -MMD -MP -pthread -o $@ $< -L$(dir $(LIBCUDA)) -lcuda $(LDFLAGS)

# A driver that is the soft device's, but for what it says of it.
OTHERDEV := $(B)/selftests/ckpt/otherdev.so
$(OTHERDEV): selftests/ckpt/moments/otherdev.c $(B)/uproxy/softgpu/libsoftcuda.so
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CUDA_CFLAGS) -fPIC -shared -o $@ -Wl,--no-as-needed $^ \
		-Wl,-rpath,'$$ORIGIN/../../uproxy/softgpu' -ldl

# CRIU does not know the mappings of a sanitizer's shadow memory.
ifeq ($(SAN),)
ifneq ($(CUDA_HOME),)
TEST_PROGRAMS += $(MOMENTS_JOB) $(INFLIGHT) $(OTHERDEV) $(WAITS) $(REGISTERED) $(VARIABLES) $(CHECKED)/libcuda.so.1
endif
MOMENTS_TRAININGS := $(addprefix selftests/ckpt/moments/moments-,torch jax tensorflow)
HOST_TESTS += $(MOMENTS_TRAININGS) $(addprefix selftests/ckpt/moments/,moments faults faults-ranks test-atstep \
	test-cuts test-elsewhere test-inflight test-ranks test-refusals test-registered test-several test-variables \
	test-waits)
VM_TESTS += selftests/ckpt/moments/several-vm
TIMEOUT_several-vm := 600
LONG_TESTS += $(addsuffix -long,$(MOMENTS_TRAININGS)) \
	$(addprefix selftests/ckpt/moments/,moments-long faults-long moments-vm test-ranks-long)
TIMEOUT_moments := 900
TIMEOUT_moments-long := 7200
TIMEOUT_moments-torch := 900
TIMEOUT_moments-torch-long := 7200
TIMEOUT_moments-jax := 900
TIMEOUT_moments-jax-long := 7200
TIMEOUT_moments-tensorflow := 900
TIMEOUT_moments-tensorflow-long := 7200
TIMEOUT_test-inflight := 600
TIMEOUT_test-ranks := 900
TIMEOUT_test-ranks-long := 14400
TIMEOUT_test-waits := 600
TIMEOUT_test-refusals := 900
TIMEOUT_test-elsewhere := 300
TIMEOUT_moments-vm := 15000
TIMEOUT_faults := 1200
TIMEOUT_faults-long := 7200
TIMEOUT_faults-ranks := 600
TIMEOUT_test-cuts := 600
CKPT_RANKS_LONG := $(addprefix $(B)/selftests/ckpt/,faults-ranks-2-long faults-ranks-4-long faults-slices-long \
	test-ranks-slices-long cuts-slices-long test-cuts-long)
LONG_TESTS += $(CKPT_RANKS_LONG)
TIMEOUT_faults-ranks-2-long := 14400
TIMEOUT_faults-ranks-4-long := 14400
TIMEOUT_faults-slices-long := 14400
TIMEOUT_test-ranks-slices-long := 14400
TIMEOUT_test-cuts-long := 3600
HOST_TESTS += $(addprefix $(B)/selftests/ckpt/,faults-slices cuts-slices)
TIMEOUT_cuts-slices := 600
TIMEOUT_cuts-slices-long := 3600
TIMEOUT_faults-slices := 600
TIMEOUT_test-atstep := 300
TIMEOUT_test-atstep-long := 1200
LONG_TESTS += $(B)/selftests/ckpt/test-atstep-long
# NAME, COMMAND: a test that calls one of this folder's with arguments.
define moments_calls
$(B)/selftests/ckpt/$(1): selftests/ckpt/moments/build.mk
	@mkdir -p $$(@D)
	@printf '#!/bin/sh\nexec selftests/ckpt/moments/%s\n' '$(2)' >$$@
	@chmod +x $$@
endef
$(eval $(call moments_calls,test-atstep-long,test-atstep dp2pool dp4 tp2 pp2 micro2 torch2 idle))
$(eval $(call moments_calls,faults-ranks-2-long,faults-ranks -a -n 2))
$(eval $(call moments_calls,faults-ranks-4-long,faults-ranks -a -n 4))
$(eval $(call moments_calls,faults-slices,faults-ranks -s))
$(eval $(call moments_calls,faults-slices-long,faults-ranks -a -s))
$(eval $(call moments_calls,test-ranks-slices-long,test-ranks -S dp2 tp2 pp2 shard4 grid8 torch2 torch4 hybrid4 tensor4))
$(eval $(call moments_calls,cuts-slices,test-cuts -S create group exchange chain crowded graph many))
$(eval $(call moments_calls,cuts-slices-long,test-cuts -S -a))
$(eval $(call moments_calls,test-cuts-long,test-cuts -a))
endif
