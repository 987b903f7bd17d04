# SPDX-License-Identifier: Apache-2.0
# build.mk - the soft device's transport, between processes without proxies.

COMM_TESTS := matrix failures waits flows links
COMM_TEST_BIN := $(COMM_TESTS:%=$(B)/selftests/transport/transport-%)
# What an address holds, and what an honest end sends, are private.
COMM_TEST_CFLAGS = $(SOFTCOMM_CFLAGS) -Iuproxy/softgpu/transport -Iselftests/transport -Iselftests/coll

$(COMM_TEST_BIN): $(B)/selftests/transport/transport-%: selftests/transport/%.c \
		$(addprefix selftests/transport/,world.c peer.c) $(B)/uproxy/libcoll.a selftests/transport/build.mk
	@mkdir -p $(@D)
	$(call cc_several,$(CFLAGS) $(COMM_TEST_CFLAGS)) $(filter %.c %.a,$^) $(LDFLAGS) -lm -ldl -pthread
$(COMM_TEST_BIN): | $(B)/uproxy/softgpu/libsoftcomm.so

# The same over NCCL's transport, on the soft device, with a fake NCCL.
ifneq ($(UPROXY_NCCL),)
COMM_NCCL_BIN := $(addprefix $(B)/selftests/transport/transport-nccl-,matrix calls)
COMM_FAKE := $(B)/selftests/nccl/fake/libnccl.so.2
$(COMM_NCCL_BIN): $(B)/selftests/transport/transport-nccl-%: selftests/transport/%.c selftests/transport/world.c \
		$(B)/uproxy/libuproxy.a $(RINGBUF) selftests/transport/build.mk
	@mkdir -p $(@D)
	$(call cc_several,$(CFLAGS) -DWORLD_NCCL $(UPROXY_CFLAGS) $(COMM_TEST_CFLAGS) -Iuproxy/hal/nccl) \
		$(filter %.c %.a,$^) $(LDFLAGS) $(UPROXY_LIBS)
$(COMM_NCCL_BIN): | $(COMM_FAKE) $(addprefix $(B)/uproxy/softgpu/libsoft,cuda.so jit.so)
$(COMM_FAKE): selftests/nccl/fake.c selftests/transport/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CUDA_CFLAGS) -fPIC -fvisibility=hidden -shared -MMD -MP -Wl,-soname,libnccl.so.2 -o $@ \
		$< $(LDFLAGS) -ldl -pthread
HOST_TESTS += $(if $(SAN),,$(COMM_NCCL_BIN))
endif

# TSan knows no atomic_thread_fence(): here fences order words that are atomic themselves.
HOST_TESTS += $(COMM_TEST_BIN)

# All that the issue asks for, 500 kills among it.
TIMEOUT_comm-matrix-long := 900
TIMEOUT_comm-failures-long := 1800
COMM_LONG := matrix failures
COMM_LONG_TESTS := $(COMM_LONG:%=$(B)/selftests/transport/transport-%-long)
LONG_TESTS += $(COMM_LONG_TESTS)
$(COMM_LONG_TESTS): $(B)/selftests/transport/transport-%-long: selftests/transport/build.mk $(B)/selftests/transport/transport-%
	@mkdir -p $(@D)
	@printf '#!/bin/sh\nexec %s long\n' '$(B)/selftests/transport/transport-$*' >$@
	@chmod +x $@
include selftests/transport/fuzz.mk
