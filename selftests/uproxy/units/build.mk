# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of parts of the proxy without a client.

# Waits alone: the test is the driver.
UPROXY_NOTIFY := $(B)/selftests/uproxy/uproxy-notify
$(UPROXY_NOTIFY): selftests/uproxy/units/notify.c $(B)/uproxy/libuproxy.a $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(UPROXY_CFLAGS) -MMD -MP -pthread -o $@ $(filter %.c %.a,$^) \
		$(LDFLAGS) $(UPROXY_LIBS)
HOST_TESTS += $(UPROXY_NOTIFY)

# The end of a step: decisions without a session.
UPROXY_STEPS := $(addprefix $(B)/selftests/uproxy/uproxy-,repeat meeting)
$(UPROXY_STEPS): $(B)/selftests/uproxy/uproxy-%: selftests/uproxy/units/%.c uproxy/atstep/repeat.c $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(call cc_several,$(CFLAGS) $(KSELFTEST_CFLAGS) -Iuproxy/atstep -Iuproxy/include -pthread) \
		$(filter %.c,$^) $(LDFLAGS)
HOST_TESTS += $(UPROXY_STEPS)

# Tests that have the core in their own process.
UPROXY_LOCAL_TESTS := names digests content handover records held posts $(if $(UPROXY_NCCL),reduces)
UPROXY_LOCAL_BIN := $(UPROXY_LOCAL_TESTS:%=$(B)/selftests/uproxy/uproxy-%)

$(UPROXY_LOCAL_BIN): $(B)/selftests/uproxy/uproxy-%: selftests/uproxy/units/%.c selftests/uproxy/units/local.h \
		$(B)/uproxy/libuproxy.a $(RINGBUF) $(KSELFTEST_H) | \
		$(B)/uproxy/softgpu/libsoftcuda.so $(B)/uproxy/softgpu/libsoftjit.so
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(UPROXY_CFLAGS) -Iuproxy/hal/nccl -Iselftests/coll -MMD -MP \
		-o $@ $(filter %.c %.o %.a,$^) $(LDFLAGS) $(UPROXY_LIBS)
TIMEOUT_uproxy-content := 600
# ThreadSanitizer has no room for the device window where these have it.
HOST_TESTS += $(if $(filter thread,$(SAN)),,$(UPROXY_LOCAL_BIN))
