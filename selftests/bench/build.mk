# SPDX-License-Identifier: Apache-2.0
# Benches: each writes $(BUILD)/bench/NAME.json. DPDK is a peer where libdpdk-dev is installed.

DPDK_CFLAGS := $(if $(shell pkg-config --exists libdpdk 2>/dev/null && echo y),-DHAVE_DPDK -mssse3 $(shell pkg-config --cflags-only-I libdpdk))
DPDK_LIBS := $(if $(DPDK_CFLAGS),-lrte_ring -lrte_eal)

$(B)/selftests/bench/%.o: selftests/bench/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(RINGBUF_CFLAGS) -MMD -MP -c $< -o $@

# DPDK's headers are not clean under -Wextra.
$(B)/selftests/bench/peers.o: selftests/bench/peers.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(DPDK_CFLAGS) -Wno-unused-parameter -MMD -MP -c $< -o $@

$(B)/selftests/bench/ring: $(addprefix $(B)/selftests/bench/,ring.o limits.o peers.o) $(RINGBUF)
	$(CC) $(CFLAGS) $(LDFLAGS) $^ $(DPDK_LIBS) -pthread -o $@

BENCHES += $(B)/selftests/bench/ring

include selftests/bench/ckpt.mk
include selftests/bench/coll.mk

# What needs a CUDA toolkit, if there is one: then the generator's folder is known.
ifneq ($(GEN),)
include selftests/bench/job.mk
include selftests/bench/run.mk
include selftests/bench/soft.mk
include selftests/bench/torch.mk
endif
