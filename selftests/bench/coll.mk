# SPDX-License-Identifier: Apache-2.0
# coll.mk - the bench of collectives, beside Open MPI, and gloo where `make torch` has brought it

.PHONY: bench-mpi
bench-mpi: setup
	@tools/setup/setup bench-mpi || echo "going on without Open MPI"
bench-coll bench: bench-mpi

$(B)/selftests/bench/coll: $(addprefix selftests/bench/,coll.c report.c limits.c) \
		selftests/comm/world.c $(B)/uproxy/libcoll.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(COMM_TEST_CFLAGS) $(LDFLAGS) $(filter %.c %.a,$^) -lm -ldl -pthread -o $@
$(B)/selftests/bench/coll-mpi: selftests/bench/coll_mpi.c
	@mkdir -p $(@D)
	mpicc -O2 $< -o $@
$(B)/selftests/bench/coll: | $(B)/uproxy/softgpu/libsoftcomm.so \
	$(if $(shell command -v mpicc 2>/dev/null),$(B)/selftests/bench/coll-mpi)

BENCHES += $(B)/selftests/bench/coll
