# SPDX-License-Identifier: Apache-2.0
# build.mk - the bench of running through the proxy, beside direct mode

$(B)/selftests/bench/calls $(B)/selftests/bench/managed: $(B)/selftests/bench/%: selftests/bench/run/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CUDA_CFLAGS) $(LDFLAGS) $< -ldl -o $@

$(B)/selftests/bench/run: $(addprefix selftests/bench/,run/run.c report.c report.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Wno-format-truncation $(LDFLAGS) $(filter %.c,$^) -o $@

# What it starts.
$(B)/selftests/bench/run: | $(B)/selftests/bench/calls $(B)/selftests/softgpu/d_vector \
	$(addprefix $(B)/selftests/jobs/,algorithms atomics calls coop half nbody rdc sgemm stencil \
	warp gpt) \
	$(B)/lib/libcuda.so.1 $(LIBNCCL) $(B)/uproxy/singvgpu-proxy $(B)/tools/singvgpu \
	$(B)/uproxy/softgpu/libsoftjit.so $(B)/uproxy/softgpu/direct/libcuda.so.1

BENCHES += $(B)/selftests/bench/run
