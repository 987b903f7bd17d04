# SPDX-License-Identifier: Apache-2.0
# build.mk - tests that speak to a proxy as a client does, by the ring and the wire.

UPROXY_TESTS := session life hostile peers shown
UPROXY_TEST_BIN := $(UPROXY_TESTS:%=$(B)/selftests/uproxy/uproxy-%)

$(UPROXY_TEST_BIN): $(B)/selftests/uproxy/uproxy-%: selftests/uproxy/session/%.c selftests/uproxy/client.h \
		$(RINGBUF) $(GEN)/cuda_info.o $(KSELFTEST_H) | $(B)/uproxy/singvgpu-proxy \
		$(B)/uproxy/softgpu/libsoftcuda.so $(B)/uproxy/softgpu/libsoftjit.so
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(RINGBUF_CFLAGS) $(GEN_CFLAGS) -Iuproxy/include -MMD -MP \
		-pthread -o $@ $(filter %.c %.o %.a,$^) $(LDFLAGS)

TIMEOUT_uproxy-hostile := 300
TIMEOUT_uproxy-peers := 300
ifeq ($(SAN),)
HOST_TESTS += $(UPROXY_TEST_BIN)
endif
