# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of proxies of several ranks: their collectives, their board, what is saved of them.

UPROXY_COLLS := $(addprefix $(B)/selftests/uproxy/uproxy-,colls comms parked stands)
$(UPROXY_COLLS): $(B)/selftests/uproxy/uproxy-%: selftests/uproxy/ranks/%.c selftests/uproxy/ranks/colls.h selftests/uproxy/client.h $(RINGBUF) $(B)/uproxy/libcoll.a \
		$(GEN)/cuda_info.o $(KSELFTEST_H) | $(B)/uproxy/singvgpu-proxy \
		$(addprefix $(B)/uproxy/softgpu/libsoft,cuda.so jit.so comm.so)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(RINGBUF_CFLAGS) $(GEN_CFLAGS) -Iuproxy/include \
		-Iuproxy/coll -MMD -MP -pthread -o $@ $(filter %.c %.o %.a,$^) $(LDFLAGS) -lm
UPROXY_COMMSAVED := $(B)/selftests/uproxy/uproxy-commsaved
$(UPROXY_COMMSAVED): selftests/uproxy/ranks/commsaved.c selftests/uproxy/restore/restore.h selftests/uproxy/client.h $(RINGBUF) \
		$(B)/uproxy/libcoll.a $(B)/uproxy/ckpt/libsingvgpu-control.a $(B)/ckpt/libstore.a \
		$(GEN)/cuda_info.o $(KSELFTEST_H) | $(B)/uproxy/singvgpu-proxy \
		$(addprefix $(B)/uproxy/softgpu/libsoft,cuda.so jit.so comm.so)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(RINGBUF_CFLAGS) $(GEN_CFLAGS) -Iuproxy/include \
		-Iuproxy/coll -Iuproxy/comm $(STORE_CFLAGS) -MMD -MP -pthread -o $@ $(filter %.c %.o %.a,$^) $(LDFLAGS) \
		$(STORE_LIBS) -lm
TIMEOUT_uproxy-colls := 300
TIMEOUT_uproxy-comms := 300
TIMEOUT_uproxy-parked := 300
TIMEOUT_uproxy-stands := 300
TIMEOUT_uproxy-commsaved := 600
ifeq ($(SAN),)
HOST_TESTS += $(UPROXY_COLLS) $(UPROXY_COMMSAVED)
endif
