# SPDX-License-Identifier: Apache-2.0
# build.mk - the bench of the channel. DPDK is a peer where libdpdk-dev is installed.

DPDK_CFLAGS := $(if $(shell pkg-config --exists libdpdk 2>/dev/null && echo y),-DHAVE_DPDK -mssse3 $(shell pkg-config --cflags-only-I libdpdk))
DPDK_LIBS := $(if $(DPDK_CFLAGS),-lrte_ring -lrte_eal)

# DPDK's headers are not clean under -Wextra.
$(B)/selftests/bench/peers.o: selftests/bench/ring/peers.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(DPDK_CFLAGS) -Wno-unused-parameter -MMD -MP -c $< -o $@

$(B)/selftests/bench/ring: $(addprefix $(B)/selftests/bench/,ring.o limits.o peers.o) $(RINGBUF)
	$(CC) $(CFLAGS) $(LDFLAGS) $^ $(DPDK_LIBS) -pthread -o $@

BENCHES += $(B)/selftests/bench/ring
