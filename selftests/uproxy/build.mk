# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of the proxy, which they start and speak to by hand. They need $(CUDA_HOME).

UPROXY_TESTS := session life hostile peers shown
UPROXY_TEST_BIN := $(UPROXY_TESTS:%=$(B)/selftests/uproxy/uproxy-%)

$(UPROXY_TEST_BIN): $(B)/selftests/uproxy/uproxy-%: selftests/uproxy/%.c selftests/uproxy/client.h \
		$(RINGBUF) $(GEN)/cuda_info.o $(KSELFTEST_H) | $(B)/uproxy/singvgpu-proxy \
		$(B)/uproxy/softgpu/libsoftcuda.so $(B)/uproxy/softgpu/libsoftjit.so
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(RINGBUF_CFLAGS) $(GEN_CFLAGS) -Iuproxy/include -MMD -MP \
		-pthread -o $@ $(filter %.c %.o %.a,$^) $(LDFLAGS)

# Tests of dumps are their conductor, too.
UPROXY_RESTORE := $(addprefix $(B)/selftests/uproxy/uproxy-,restore conduct)
$(UPROXY_RESTORE): $(B)/selftests/uproxy/uproxy-%: selftests/uproxy/%.c selftests/uproxy/restore.h \
		selftests/uproxy/client.h $(RINGBUF) \
		$(B)/uproxy/ckpt/libsingvgpu-control.a $(B)/ckpt/libstore.a \
		$(GEN)/cuda_info.o $(KSELFTEST_H) | $(B)/uproxy/singvgpu-proxy \
		$(B)/uproxy/softgpu/libsoftcuda.so $(B)/uproxy/softgpu/libsoftjit.so
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(RINGBUF_CFLAGS) $(GEN_CFLAGS) -Iuproxy/include \
		$(STORE_CFLAGS) -MMD -MP -pthread -o $@ $(filter %.c %.o %.a,$^) $(LDFLAGS) $(STORE_LIBS)
UPROXY_COLLS := $(addprefix $(B)/selftests/uproxy/uproxy-,colls comms parked stands)
$(UPROXY_COLLS): $(B)/selftests/uproxy/uproxy-%: selftests/uproxy/%.c selftests/uproxy/colls.h selftests/uproxy/client.h $(RINGBUF) $(B)/uproxy/libcoll.a \
		$(GEN)/cuda_info.o $(KSELFTEST_H) | $(B)/uproxy/singvgpu-proxy \
		$(addprefix $(B)/uproxy/softgpu/libsoft,cuda.so jit.so comm.so)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(RINGBUF_CFLAGS) $(GEN_CFLAGS) -Iuproxy/include \
		-Iuproxy/coll -MMD -MP -pthread -o $@ $(filter %.c %.o %.a,$^) $(LDFLAGS) -lm
UPROXY_COMMSAVED := $(B)/selftests/uproxy/uproxy-commsaved
$(UPROXY_COMMSAVED): selftests/uproxy/commsaved.c selftests/uproxy/restore.h selftests/uproxy/client.h $(RINGBUF) \
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
TIMEOUT_uproxy-restore := 300
TIMEOUT_uproxy-conduct := 300

PESTER := $(B)/selftests/uproxy/pester
$(PESTER): selftests/uproxy/pester.c $(B)/uproxy/ckpt/libsingvgpu-control.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -Iuproxy/include -MMD -MP -o $@ $(filter %.c %.a,$^) $(LDFLAGS)
# The conductor's end alone.
UPROXY_TOLD := $(B)/selftests/uproxy/uproxy-told
$(UPROXY_TOLD): selftests/uproxy/told.c $(B)/uproxy/ckpt/libsingvgpu-control.a $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) -Iuproxy/include -MMD -MP -o $@ $(filter %.c %.a,$^) $(LDFLAGS)
HOST_TESTS += $(UPROXY_TOLD)
# Waits alone: the test is the driver.
UPROXY_NOTIFY := $(B)/selftests/uproxy/uproxy-notify
$(UPROXY_NOTIFY): selftests/uproxy/notify.c $(B)/uproxy/libuproxy.a $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(UPROXY_CFLAGS) -MMD -MP -pthread -o $@ $(filter %.c %.a,$^) \
		$(LDFLAGS) $(UPROXY_LIBS)
HOST_TESTS += $(UPROXY_NOTIFY)

# The end of a step: decisions without a session.
UPROXY_STEPS := $(addprefix $(B)/selftests/uproxy/uproxy-,repeat meeting)
$(UPROXY_STEPS): $(B)/selftests/uproxy/uproxy-%: selftests/uproxy/%.c uproxy/atstep/repeat.c $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(call cc_several,$(CFLAGS) $(KSELFTEST_CFLAGS) -Iuproxy/atstep -Iuproxy/include -pthread) \
		$(filter %.c,$^) $(LDFLAGS)
HOST_TESTS += $(UPROXY_STEPS)

TIMEOUT_test-pester := 300
TIMEOUT_test-pester-long := 3600

# Tests that have the core in their own process.
UPROXY_LOCAL_TESTS := names digests content records held $(if $(UPROXY_NCCL),reduces)
UPROXY_LOCAL_BIN := $(UPROXY_LOCAL_TESTS:%=$(B)/selftests/uproxy/uproxy-%)

$(UPROXY_LOCAL_BIN): $(B)/selftests/uproxy/uproxy-%: selftests/uproxy/%.c selftests/uproxy/local.h \
		$(B)/uproxy/libuproxy.a $(RINGBUF) $(KSELFTEST_H) | \
		$(B)/uproxy/softgpu/libsoftcuda.so $(B)/uproxy/softgpu/libsoftjit.so
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(UPROXY_CFLAGS) -Iuproxy/hal/nccl -Iselftests/coll -MMD -MP \
		-o $@ $(filter %.c %.o %.a,$^) $(LDFLAGS) $(UPROXY_LIBS)
TIMEOUT_uproxy-content := 600
# ThreadSanitizer has no room for the device window where these have it.
HOST_TESTS += $(if $(filter thread,$(SAN)),,$(UPROXY_LOCAL_BIN))

TIMEOUT_uproxy-hostile := 300
TIMEOUT_uproxy-peers := 300
# Kernels fault here, which sanitizers do not follow; the core runs under them in the fuzzer.
ifeq ($(SAN),)
HOST_TESTS += $(UPROXY_TEST_BIN) $(UPROXY_RESTORE) $(UPROXY_COLLS) $(UPROXY_COMMSAVED) selftests/uproxy/test-pester
TEST_PROGRAMS += $(PESTER)
LONG_TESTS += $(B)/selftests/uproxy/test-pester-long
endif
PESTER_LONG := algorithms atomics calls coop copies cub curand graphs grids half hostfunc hostmem \
	interop managed mem_vmm memory nested nullstream nvrtc pools printing queue rdc reset streams \
	symbols textures threads types vmm warp
$(B)/selftests/uproxy/test-pester-long: selftests/uproxy/build.mk
	@mkdir -p $(@D)
	@printf '#!/bin/sh\nexec selftests/uproxy/test-pester $(PESTER_LONG)\n' >$@
	@chmod +x $@

# The fuzzer: the core, instrumented, over a driver that minds what it is given. Writable data of
# the core gets sections of its own, to be put back before each input. It is built once.
FUZZ_RECORDS := $(BUILD)/selftests/uproxy/fuzz_records
FUZZ_RECORDS_SRC := $(filter-out $(addprefix uproxy/,proxy.c session.c fail.c worker.c log.c control.c still.c \
	memory/peer.c memory/ipc_event.c modules/print.c $(addprefix rebuild/,freeze.c \
	kept_save.c comms.c content.c plan.c move.c sparse.c channel.c observe.c)), \
	$(wildcard $(addprefix uproxy/,*.c memory/*.c modules/*.c streams/*.c rebuild/*.c comm/*.c))) \
	$(addprefix uproxy/hal/,memory.c notify.c)
FUZZ_RECORDS_OBJ := $(FUZZ_RECORDS_SRC:%.c=$(BUILD)/selftests/uproxy/fuzz/%.o)
FUZZ_RECORDS_CFLAGS = -O1 -g -std=gnu11 -Wall -Wextra $(WERROR) -Iringbuf/lock -fno-sanitize-recover=all \
	-fno-sanitize=function $(UPROXY_CFLAGS)
FUZZ_MALLOC := $(foreach f,malloc calloc realloc free mmap,-D$(f)=fuzz_$(f))
# Without sections for each variable, which would not be put back.
FUZZ_SAN := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-address-globals-dead-stripping

$(FUZZ_RECORDS_OBJ): $(BUILD)/selftests/uproxy/fuzz/%.o: %.c | $(GEN_STAMPS)
	@mkdir -p $(@D)
	$(FUZZCC) $(FUZZ_SAN) $(FUZZ_RECORDS_CFLAGS) $(FUZZ_MALLOC) -MMD -MP -c $< -o $@

$(BUILD)/selftests/uproxy/fuzz/uproxy/streams/outside.o: FUZZ_MALLOC += \
	-Dpthread_create=fuzz_pthread_create -Dpthread_detach=fuzz_pthread_detach

$(BUILD)/selftests/uproxy/fuzz/uproxy/comm/comm.o: FUZZ_MALLOC += \
	$(foreach f,pthread_create pthread_detach board_step board_mail board_mailed,-D$(f)=fuzz_$(f))

$(FUZZ_RECORDS): selftests/uproxy/fuzz.c selftests/uproxy/fuzz_driver.h selftests/uproxy/fuzz_comm.h selftests/harness/fuzz.h $(FUZZ_RECORDS_OBJ) $(B)/uproxy/libcoll.a \
		$(GEN)/cuda.stamp
	ld -r -o $@.core.o $(FUZZ_RECORDS_OBJ)
	objcopy --rename-section .bss=svbss --rename-section .data=svdata $@.core.o
	$(FUZZCC) -fsanitize=fuzzer,address,undefined $(FUZZ_RECORDS_CFLAGS) -o $@ $< $@.core.o \
		$(addprefix $(GEN)/cuda_,dispatch.c driver.c info.c) $(B)/uproxy/libcoll.a \
		-lzstd -llz4 -lxxhash -lpthread -lm -ldl

$(eval $(call FUZZER,uproxy,records,900,1200))

include selftests/uproxy/fuzz.mk
