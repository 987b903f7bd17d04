# SPDX-License-Identifier: Apache-2.0
# build.mk - the bench of checkpoints, and the programs that it is measured beside

CKPT_BENCH_OBJ := $(patsubst %.c,$(B)/selftests/bench/%.o,$(notdir $(wildcard selftests/bench/ckpt/*.c)) report.c)
$(CKPT_BENCH_OBJ): override CFLAGS += $(STORE_CFLAGS)

$(B)/selftests/bench/ckpt: $(CKPT_BENCH_OBJ) $(B)/ckpt/libstore.a
	$(CC) $(CFLAGS) $(LDFLAGS) $^ $(STORE_LIBS) -lm -pthread -o $@

# What it starts, where there is a toolkit to build it.
$(B)/selftests/bench/ckpt: | $(B)/tools/singvgpu $(if $(CUDA_HOME),$(B)/selftests/jobs/gpt)

BENCHES += $(B)/selftests/bench/ckpt

# Without them the bench does what it can, and says so.
.PHONY: bench-peers
bench-peers: setup
	@tools/setup/setup bench-peers || echo "going on without fio, restic, borg and casync"
bench-ckpt bench: bench-peers
