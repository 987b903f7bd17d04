# SPDX-License-Identifier: Apache-2.0
# build.mk - fuzzers of what a proxy hears: records, conductors, other proxies, shared pages, saved communicators.

# The fuzzer: the core, instrumented, over a driver that minds what it is given. Writable data of
# the core gets sections of its own, to be put back before each input. It is built once.
FUZZ_RECORDS := $(BUILD)/selftests/uproxy/fuzz_records
FUZZ_RECORDS_SRC := $(filter-out $(addprefix uproxy/,proxy.c session.c fail.c worker.c log.c control.c still.c \
	memory/peer.c memory/ipc_event.c modules/print.c $(addprefix rebuild/,freeze.c \
	kept_save.c comms.c content.c plan.c move.c sparse.c channel.c observe.c)), \
	$(wildcard $(addprefix uproxy/,*.c memory/*.c modules/*.c streams/*.c rebuild/*.c comm/*.c))) \
	$(addprefix uproxy/hal/,memory.c notify.c) uproxy/slice/common.c uproxy/slice/crowd.c
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

$(FUZZ_RECORDS): selftests/uproxy/fuzz/fuzz.c selftests/uproxy/fuzz/fuzz_driver.h selftests/uproxy/fuzz/fuzz_comm.h selftests/harness/fuzz.h $(FUZZ_RECORDS_OBJ) $(B)/uproxy/libcoll.a \
		$(GEN)/cuda.stamp
	ld -r -o $@.core.o $(FUZZ_RECORDS_OBJ)
	objcopy --rename-section .bss=svbss --rename-section .data=svdata $@.core.o
	$(FUZZCC) -fsanitize=fuzzer,address,undefined $(FUZZ_RECORDS_CFLAGS) -o $@ $< $@.core.o \
		$(addprefix $(GEN)/cuda_,dispatch.c driver.c info.c) $(B)/uproxy/libcoll.a \
		-lzstd -llz4 -lxxhash -lpthread -lm -ldl

$(eval $(call FUZZER,uproxy/fuzz,records,900,1200))

FUZZ_OUT := $(BUILD)/selftests/uproxy
FUZZ_LINK = $(FUZZCC) -fsanitize=fuzzer,address,undefined $(FUZZ_RECORDS_CFLAGS) -o $@

# The data of control.c gets sections of its own, to be put back before each input.
$(FUZZ_OUT)/fuzz/own/control.o: uproxy/control.c | $(GEN)/cuda.stamp
	@mkdir -p $(@D)
	$(FUZZCC) $(FUZZ_SAN) $(FUZZ_RECORDS_CFLAGS) -Daccept4=fuzz_accept4 -MMD -MP -c $< -o $@
	objcopy --rename-section .bss=svbss --rename-section .data=svdata $@

$(FUZZ_OUT)/fuzz_control: selftests/uproxy/fuzz/fuzz_control.c $(FUZZ_OUT)/fuzz/own/control.o \
		uproxy/ckpt/control_client.c $(wildcard uproxy/include/*.h uproxy/*.h uproxy/memory/*.h uproxy/rebuild/*.h)
	$(FUZZ_LINK) $(filter %.c %.o,$^) -lpthread

# Its watcher sleeps between two looks.
$(FUZZ_OUT)/fuzz/own/ipc_event.o: uproxy/memory/ipc_event.c | $(GEN)/cuda.stamp
	@mkdir -p $(@D)
	$(FUZZCC) $(FUZZ_SAN) $(FUZZ_RECORDS_CFLAGS) -Dnanosleep=fuzz_nanosleep -MMD -MP -c $< -o $@

$(FUZZ_OUT)/fuzz_event: selftests/uproxy/fuzz/fuzz_event.c $(FUZZ_OUT)/fuzz/own/ipc_event.o
	$(FUZZ_LINK) $(filter %.c %.o,$^) -lpthread

$(FUZZ_OUT)/fuzz_peers: selftests/uproxy/fuzz/fuzz_peers.c uproxy/memory/peer.c uproxy/memory/ipc.c \
		$(wildcard uproxy/*.h uproxy/memory/*.h) | $(GEN)/cuda.stamp
	@mkdir -p $(@D)
	$(FUZZ_LINK) $(filter %.c,$^) -lpthread

$(FUZZ_OUT)/fuzz_comms: selftests/uproxy/fuzz/fuzz_comms.c uproxy/comm/saved.c uproxy/coll/tree.c uproxy/comm/saved.h \
		uproxy/coll/step.h $(BUILD)/uproxy/libcoll.a | $(GEN)/cuda.stamp
	@mkdir -p $(@D)
	$(FUZZ_LINK) -Iuproxy/comm $(filter %.c %.a,$^) -lm

$(addprefix $(FUZZ_OUT)/fuzz_,control peers event comms): selftests/harness/fuzz.h
$(foreach f,control peers event comms,$(eval $(call FUZZER,uproxy/fuzz,$(f),600,900)))
