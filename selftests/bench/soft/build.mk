# SPDX-License-Identifier: Apache-2.0
# build.mk - the bench of the soft device's speed, beside OpenBLAS and a triad of this CPU

$(B)/selftests/bench/soft_work: selftests/bench/soft/soft_work.cu
	@mkdir -p $(@D)
	$(call nvcc) -O2 -Xcompiler -O3,-march=native -o $@ $< -lcublas -lcudnn -ldl -Xlinker \
		-rpath,$(CUDA_HOME)/lib64

$(B)/selftests/bench/soft: $(addprefix selftests/bench/,soft/soft.c report.c report.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Wno-format-truncation $(LDFLAGS) $(filter %.c,$^) -o $@

$(B)/selftests/bench/soft: | $(B)/selftests/bench/soft_work $(B)/selftests/jobs/gpt \
	$(B)/uproxy/softgpu/libsoftjit.so $(B)/uproxy/softgpu/direct/libcuda.so.1

# cuDNN is not part of every toolkit: without it there is no such bench.
ifneq ($(wildcard $(CUDA_HOME)/lib64/libcudnn.so),)
BENCHES += $(B)/selftests/bench/soft
.PHONY: bench-blas
bench-blas: setup
	@tools/setup/setup bench-blas || echo "going on without OpenBLAS"
bench-soft bench: bench-blas
endif
