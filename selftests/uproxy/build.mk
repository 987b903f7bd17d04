# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of the proxy, which they start and speak to by hand. They need $(CUDA_HOME).

UPROXY_TESTS := session life hostile
UPROXY_TEST_BIN := $(UPROXY_TESTS:%=$(B)/selftests/uproxy/uproxy-%)

$(UPROXY_TEST_BIN): $(B)/selftests/uproxy/uproxy-%: selftests/uproxy/%.c selftests/uproxy/client.h \
		$(RINGBUF) $(GEN)/cuda_info.o $(KSELFTEST_H) | $(B)/uproxy/singvgpu-proxy \
		$(B)/uproxy/softgpu/libsoftcuda.so $(B)/uproxy/softgpu/libsoftjit.so
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(RINGBUF_CFLAGS) $(GEN_CFLAGS) -Iuproxy -MMD -MP \
		-pthread -o $@ $(filter %.c %.o %.a,$^) $(LDFLAGS)

TIMEOUT_uproxy-hostile := 300
HOST_TESTS += $(UPROXY_TEST_BIN)
