# SPDX-License-Identifier: Apache-2.0
# build.mk - the sample jobs: plain CUDA C++ built by nvcc with its defaults, and what runs them.

comma := ,

# Each room has programs of one kind; all are built into one folder.
JOB_SOURCES := $(wildcard selftests/jobs/*/*.cu)
job_source = $(filter %/$(1).cu,$(JOB_SOURCES))

# One file each; job_FLAGS_name adds to nvcc's defaults.
job_FLAGS_ampere := -arch=sm_80
job_FLAGS_barriers := -arch=compute_90
job_FLAGS_bulk := -arch=compute_90 --extended-lambda
job_FLAGS_calls := -Xptxas -suppress-stack-size-warning
job_FLAGS_cluster_memory := -arch=compute_90
job_FLAGS_clusters := -arch=compute_90
job_FLAGS_tensor_tiles := -arch=compute_90
job_FLAGS_idioms := --extended-lambda
job_FLAGS_nested := -rdc=true -lcudadevrt
job_FLAGS_raytrace := -Xptxas -suppress-stack-size-warning
job_FLAGS_nvrtc := -lnvrtc -Xlinker -rpath$(comma)$(CUDA_HOME)/lib64
# by the driver API, also by what of it is deprecated
DRIVER_JOBS := $(basename $(notdir $(wildcard selftests/jobs/driver/*.cu)))
$(foreach j,$(DRIVER_JOBS),$(eval job_FLAGS_$(j) := -L$(B)/lib -lcuda -Wno-deprecated-declarations))
job_FLAGS_devices_rows := -L$(B)/lib -lcuda
$(DRIVER_JOBS:%=$(B)/selftests/jobs/%) $(B)/selftests/jobs/devices_rows: selftests/jobs/driver/driver.cuh | $(LIBCUDA)
$(B)/selftests/jobs/gpt: selftests/jobs/programs/gpt.cuh
$(B)/selftests/jobs/driver_ipc $(B)/selftests/jobs/driver_share: selftests/jobs/driver/passfd.cuh
# What only CUDA 13.0 can build: its copies in batches, its libcu++, its ways to compress images,
# its forms of the driver's calls. With an older toolkit the tests skip these by name.
needs_13 := rare scopes scopes_sm80 scopes_sm90 barriers barriers_sm80 bulk cluster_memory tensor_tiles stencil_lz4 stencil_raw devices_rows $(DRIVER_JOBS)
JOBS_LEFT_OUT := $(if $(CUDA_IS_OLD),$(needs_13))
SAMPLE_JOBS := $(filter-out $(JOBS_LEFT_OUT) rdc_%,$(basename $(notdir $(JOB_SOURCES))))
SAMPLE_JOB_BINS := $(SAMPLE_JOBS:%=$(B)/selftests/jobs/%) $(B)/selftests/jobs/rdc \
	$(B)/selftests/jobs/libplugin.so
define sample_job
$(B)/selftests/jobs/$(1): $(call job_source,$(1)) selftests/jobs/job.cuh
	@mkdir -p $$(@D)
	$(call nvcc,$(job_FLAGS_$(1))) -o $$@ $$<
endef
$(foreach j,$(SAMPLE_JOBS),$(eval $(call sample_job,$(j))))

# The same programs built in other ways: $(call job_variant,NAME,SOURCE,FLAGS)
define job_variant
SAMPLE_JOB_BINS += $(B)/selftests/jobs/$(1)
$(B)/selftests/jobs/$(1): $(call job_source,$(2)) selftests/jobs/job.cuh
	@mkdir -p $$(@D)
	$(call nvcc,$(3)) -o $$@ $$<
endef
# 0 is each thread's own stream
$(eval $(call job_variant,nullstream_ptds,nullstream,--default-stream per-thread))
# code for debuggers: no optimisation, line numbers, variables in memory
$(eval $(call job_variant,calls_debug,calls,-G -g $(job_FLAGS_calls)))
$(eval $(call job_variant,algorithms_lines,algorithms,-lineinfo -Xptxas -O1))
# approximate division, root and functions; subnormal numbers as zero
$(eval $(call job_variant,finance_fast,finance,--use_fast_math))
# the runtime as a shared library
$(eval $(call job_variant,capture_shared,capture,-cudart shared -Xlinker -rpath$(comma)$(CUDA_HOME)/lib64))
# images in other wrappings and for other devices: LZ4, not at all, PTX alone, several at once
$(eval $(call job_variant,stencil_lz4,stencil,--compress-mode=speed))
$(eval $(call job_variant,stencil_raw,stencil,--compress-mode=none))
$(eval $(call job_variant,barriers_sm80,barriers,-arch=compute_80))
$(eval $(call job_variant,scopes_sm80,scopes,-arch=compute_80))
$(eval $(call job_variant,scopes_sm90,scopes,-arch=compute_90))
$(eval $(call job_variant,half_sm90,half,-arch=sm_90))
$(eval $(call job_variant,tiles_sm80,tiles,-arch=sm_80))
$(eval $(call job_variant,warp_many,warp,-gencode arch=compute_75$(comma)code=sm_75 \
	-gencode arch=compute_80$(comma)code=[sm_80$(comma)compute_80] \
	-gencode arch=compute_90$(comma)code=[sm_90$(comma)compute_90]))

# separate compilation
$(B)/selftests/jobs/rdc: $(filter selftests/jobs/process/rdc_%,$(JOB_SOURCES)) selftests/jobs/process/rdc.cuh selftests/jobs/job.cuh
	@mkdir -p $(@D)
	$(call nvcc,-rdc=true -Xnvlink -suppress-stack-size-warning) -o $@ $(filter %.cu,$^)

# a library with kernels and a static runtime of its own, for plugin
$(B)/selftests/jobs/libplugin.so: selftests/jobs/process/plugin.cu selftests/jobs/job.cuh
	@mkdir -p $(@D)
	$(call nvcc,-DPLUGIN -shared -Xcompiler -fPIC) -o $@ $<
$(B)/selftests/jobs/plugin: | $(B)/selftests/jobs/libplugin.so

SAMPLE_JOB_BINS := $(filter-out $(JOBS_LEFT_OUT:%=$(B)/selftests/jobs/%),$(SAMPLE_JOB_BINS))

LEFT_OUT_LIST := $(B)/selftests/jobs/left-out
$(LEFT_OUT_LIST): selftests/jobs/build.mk
	@mkdir -p $(@D)
	@printf '%s\n' $(JOBS_LEFT_OUT) >$@

.PHONY: sample-jobs
sample-jobs: $(SAMPLE_JOB_BINS)

# Direct mode on one core and on two; then through the proxy, likewise.
# Machine code alone, as in PyPI's wheels of PyTorch; it cannot run, so it is no sample job.
JOB_WITHOUT_PTX := $(B)/selftests/jobs/no-ptx/sgemm
$(JOB_WITHOUT_PTX): selftests/jobs/programs/sgemm.cu selftests/jobs/job.cuh
	@mkdir -p $(@D)
	$(call nvcc,-gencode arch=compute_90$(comma)code=sm_90) -o $@ $<

$(JOB_WITHOUT_PTX).fatbin: selftests/jobs/programs/sgemm.cu selftests/jobs/job.cuh
	@mkdir -p $(@D)
	$(call nvcc,-gencode arch=compute_90$(comma)code=sm_90) -fatbin -o $@ $<

ifeq ($(SAN),)
TEST_PROGRAMS += $(JOB_WITHOUT_PTX) $(JOB_WITHOUT_PTX).fatbin
STARTS := $(B)/selftests/strays/starts
$(STARTS): selftests/jobs/process/starts.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -o $@ $< $(LDFLAGS)
TEST_PROGRAMS += $(STARTS)
HOST_TESTS += selftests/jobs/test-warm selftests/jobs/test-strays selftests/jobs/test-exec
HOST_TESTS += selftests/jobs/test-jobs selftests/jobs/test-jobs-proxied selftests/jobs/test-ipc \
	selftests/jobs/test-limits selftests/jobs/test-locks selftests/jobs/test-devices \
	selftests/jobs/test-queues
TEST_PROGRAMS += $(CHECKED)/libcuda.so.1 $(LIBNCCL_CHECKED) $(B)/checked/uproxy/singvgpu-proxy \
	$(B)/checked/uproxy/softgpu/libsoftcomm.so
TEST_PROGRAMS += $(SAMPLE_JOB_BINS) $(if $(JOBS_LEFT_OUT),$(LEFT_OUT_LIST)) $(B)/uproxy/softgpu/direct/libcuda.so.1
TIMEOUT_test-jobs := 900
TIMEOUT_test-jobs-proxied := 900
endif
