# SPDX-License-Identifier: Apache-2.0
# build.mk - the bench of training in PyTorch, which `make torch` unpacks, beside direct mode and the CPU

$(B)/selftests/bench/torch: $(addprefix selftests/bench/,torch/torch.c report.c report.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Wno-format-truncation $(LDFLAGS) $(filter %.c,$^) -o $@

$(B)/selftests/bench/torch: | $(B)/lib/libcuda.so.1 $(B)/uproxy/singvgpu-proxy $(B)/tools/singvgpu \
	$(B)/uproxy/softgpu/libsoftjit.so $(B)/uproxy/softgpu/direct/libcuda.so.1

BENCHES += $(B)/selftests/bench/torch
.PHONY: torch
bench-torch: torch
