# SPDX-License-Identifier: Apache-2.0
# build.mk - the bench of collectives, beside Open MPI, and gloo where `make torch` has brought it

.PHONY: bench-mpi
bench-mpi: setup
	@tools/setup/setup bench-mpi || echo "going on without Open MPI"
bench-coll bench: bench-mpi

$(B)/selftests/bench/coll: $(addprefix selftests/bench/,coll/coll.c report.c limits.c) \
		selftests/transport/world.c $(B)/uproxy/libcoll.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(COMM_TEST_CFLAGS) $(LDFLAGS) $(filter %.c %.a,$^) -lm -ldl -pthread -o $@
$(B)/selftests/bench/coll-mpi: selftests/bench/coll/coll_mpi.c
	@mkdir -p $(@D)
	mpicc -O2 $< -o $@
$(B)/selftests/bench/coll: | $(B)/uproxy/softgpu/libsoftcomm.so \
	$(if $(shell command -v mpicc 2>/dev/null),$(B)/selftests/bench/coll-mpi)

ifneq ($(NCCL_HEADER),)
$(B)/selftests/bench/coll-call: selftests/bench/coll/coll_call.c selftests/nccl/ranks.h selftests/bench/coll/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Wno-unused-function -isystem $(CUDA_HOME)/include -o $@ $< -L$(NCCL_LIBDIR) -lnccl \
		-lcudart -lm -Wl,-rpath,$(NCCL_LIBDIR)
$(B)/selftests/bench/coll: | $(B)/selftests/bench/coll-call $(LIBNCCL) $(B)/lib/libcuda.so.1 \
	$(B)/uproxy/singvgpu-proxy $(B)/tools/singvgpu
endif

BENCHES += $(B)/selftests/bench/coll
