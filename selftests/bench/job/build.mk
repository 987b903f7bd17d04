# SPDX-License-Identifier: Apache-2.0
# build.mk - the bench of checkpoints of jobs with several ranks

ifneq ($(NCCL_HEADER),)
ifeq ($(SAN),)
$(B)/selftests/bench/job_work: selftests/bench/job/job_work.cu selftests/nccl/ranks.h
	@mkdir -p $(@D)
	$(call nvcc,-Xcompiler -Wno-unused-function) -o $@ $< -L$(NCCL_LIBDIR) -lnccl -Xlinker \
		-rpath,$(NCCL_LIBDIR)

BENCH_JOBS := $(addprefix $(B)/selftests/bench/,job slices)
$(BENCH_JOBS): $(B)/selftests/bench/%: selftests/bench/job/%.c $(addprefix selftests/bench/,job/running.c job/running.h \
	report.c report.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Wno-format-truncation $(LDFLAGS) $(filter %.c,$^) -o $@

# What they start.
$(BENCH_JOBS): | $(B)/selftests/bench/job_work $(B)/selftests/nccl/gpt $(B)/lib/libcuda.so.1 \
	$(LIBNCCL) $(B)/uproxy/singvgpu-proxy $(B)/tools/singvgpu $(B)/uproxy/softgpu/libsoftjit.so \
	$(B)/uproxy/softgpu/libsoftcomm.so

BENCHES += $(BENCH_JOBS)
endif
endif
