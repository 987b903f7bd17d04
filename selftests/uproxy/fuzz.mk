# SPDX-License-Identifier: Apache-2.0
# fuzz.mk - fuzzers of what a proxy hears besides records: conductors, other proxies, shared pages, saved communicators.
#
# As the fuzzer of records: built once, and not for each sanitizer.

FUZZ_OUT := $(BUILD)/selftests/uproxy
FUZZ_LINK = $(FUZZCC) -fsanitize=fuzzer,address,undefined $(FUZZ_RECORDS_CFLAGS) -o $@

# The data of control.c gets sections of its own, to be put back before each input.
$(FUZZ_OUT)/fuzz/own/control.o: uproxy/control.c | $(GEN)/cuda.stamp
	@mkdir -p $(@D)
	$(FUZZCC) $(FUZZ_SAN) $(FUZZ_RECORDS_CFLAGS) -Daccept4=fuzz_accept4 -MMD -MP -c $< -o $@
	objcopy --rename-section .bss=svbss --rename-section .data=svdata $@

$(FUZZ_OUT)/fuzz_control: selftests/uproxy/fuzz_control.c $(FUZZ_OUT)/fuzz/own/control.o \
		uproxy/ckpt/control_client.c $(wildcard uproxy/include/*.h uproxy/*.h uproxy/memory/*.h uproxy/rebuild/*.h)
	$(FUZZ_LINK) $(filter %.c %.o,$^) -lpthread

# Its watcher sleeps between two looks.
$(FUZZ_OUT)/fuzz/own/ipc_event.o: uproxy/memory/ipc_event.c | $(GEN)/cuda.stamp
	@mkdir -p $(@D)
	$(FUZZCC) $(FUZZ_SAN) $(FUZZ_RECORDS_CFLAGS) -Dnanosleep=fuzz_nanosleep -MMD -MP -c $< -o $@

$(FUZZ_OUT)/fuzz_event: selftests/uproxy/fuzz_event.c $(FUZZ_OUT)/fuzz/own/ipc_event.o
	$(FUZZ_LINK) $(filter %.c %.o,$^) -lpthread

$(FUZZ_OUT)/fuzz_peers: selftests/uproxy/fuzz_peers.c uproxy/memory/peer.c uproxy/memory/ipc.c \
		$(wildcard uproxy/*.h uproxy/memory/*.h) | $(GEN)/cuda.stamp
	@mkdir -p $(@D)
	$(FUZZ_LINK) $(filter %.c,$^) -lpthread

$(FUZZ_OUT)/fuzz_comms: selftests/uproxy/fuzz_comms.c uproxy/comm/saved.c uproxy/coll/tree.c uproxy/comm/saved.h \
		uproxy/coll/step.h $(BUILD)/uproxy/libcoll.a | $(GEN)/cuda.stamp
	@mkdir -p $(@D)
	$(FUZZ_LINK) -Iuproxy/comm $(filter %.c %.a,$^) -lm

$(addprefix $(FUZZ_OUT)/fuzz_,control peers event comms): selftests/harness/fuzz.h
$(foreach f,control peers event comms,$(eval $(call FUZZER,uproxy,$(f),600,900)))
