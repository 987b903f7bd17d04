# SPDX-License-Identifier: Apache-2.0
# build.mk - the sample jobs: plain CUDA C++ built by nvcc with its defaults, and what runs them.

# One file each; job_FLAGS_name adds to nvcc's defaults.
job_FLAGS_ampere := -arch=sm_80
job_FLAGS_nested := -rdc=true -lcudadevrt
job_FLAGS_nvrtc := -lnvrtc -Xlinker -rpath,$(CUDA_HOME)/lib64
SAMPLE_JOBS := $(patsubst selftests/jobs/%.cu,%,$(filter-out selftests/jobs/rdc_%,\
	$(wildcard selftests/jobs/*.cu)))
SAMPLE_JOB_BINS := $(SAMPLE_JOBS:%=$(B)/selftests/jobs/%) $(B)/selftests/jobs/nullstream_ptds \
	$(B)/selftests/jobs/rdc $(B)/selftests/jobs/libplugin.so
$(SAMPLE_JOBS:%=$(B)/selftests/jobs/%): $(B)/selftests/jobs/%: selftests/jobs/%.cu \
		selftests/jobs/job.cuh
	@mkdir -p $(@D)
	$(CUDA_HOME)/bin/nvcc $(job_FLAGS_$*) -o $@ $<

# the same program, where 0 is each thread's own stream
$(B)/selftests/jobs/nullstream_ptds: selftests/jobs/nullstream.cu selftests/jobs/job.cuh
	@mkdir -p $(@D)
	$(CUDA_HOME)/bin/nvcc --default-stream per-thread -o $@ $<

# separate compilation
$(B)/selftests/jobs/rdc: $(wildcard selftests/jobs/rdc_*.cu) selftests/jobs/rdc.cuh selftests/jobs/job.cuh
	@mkdir -p $(@D)
	$(CUDA_HOME)/bin/nvcc -rdc=true -Xnvlink -suppress-stack-size-warning -o $@ $(filter %.cu,$^)

# a library with kernels and a static runtime of its own, for plugin
$(B)/selftests/jobs/libplugin.so: selftests/jobs/plugin.cu selftests/jobs/job.cuh
	@mkdir -p $(@D)
	$(CUDA_HOME)/bin/nvcc -DPLUGIN -shared -Xcompiler -fPIC -o $@ $<
$(B)/selftests/jobs/plugin: | $(B)/selftests/jobs/libplugin.so

.PHONY: sample-jobs
sample-jobs: $(SAMPLE_JOB_BINS)

# Direct mode. Through the proxy: HOST_TESTS += selftests/jobs/test-jobs-proxied
ifeq ($(SAN),)
HOST_TESTS += selftests/jobs/test-jobs
TEST_PROGRAMS += $(SAMPLE_JOB_BINS) $(B)/uproxy/softgpu/direct/libcuda.so.1
TIMEOUT_test-jobs := 600
endif
