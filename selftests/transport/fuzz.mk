# SPDX-License-Identifier: Apache-2.0
# fuzz.mk - the fuzzer of the soft device's transport.
#
# As the fuzzer of records: built once, and not for each sanitizer. transport.c is a part of it.

FUZZ_WIRE := $(BUILD)/selftests/transport/fuzz_wire
FUZZ_WIRE_SRC := $(addprefix uproxy/softgpu/transport/,flow.c link.c plan.c tcplink.c wire.c) uproxy/coll/tree.c
FUZZ_WIRE_CFLAGS = -O1 -g -std=gnu11 -Wall -Wextra $(WERROR) -Iringbuf/lock -fno-sanitize-recover=all \
	-Iuproxy/softgpu/transport $(SOFTCOMM_CFLAGS)

# What a message is may change while it is taken.
$(BUILD)/selftests/transport/fuzz/memlink.o: uproxy/softgpu/transport/memlink.c $(wildcard uproxy/softgpu/transport/*.h)
	@mkdir -p $(@D)
	$(FUZZCC) -fsanitize=fuzzer-no-link,address,undefined $(FUZZ_WIRE_CFLAGS) \
		-Dflow_message=fuzz_flow_message -c -o $@ $<

# Chunks that were copied are read by the arithmetic.
define FUZZ_ARITH
	$(FUZZCC) -fsanitize=address $(FUZZ_WIRE_CFLAGS) $(COLL_LEVEL_$(1)) -ffp-contract=off \
		-DARITH=arith_$(1) -c -o $(BUILD)/selftests/transport/fuzz/arith_$(1).o uproxy/coll/arith.c

endef

$(FUZZ_WIRE): selftests/transport/fuzz_wire.c selftests/harness/fuzz.h selftests/transport/fuzz.mk $(BUILD)/selftests/transport/fuzz/memlink.o $(FUZZ_WIRE_SRC) \
		$(addprefix uproxy/softgpu/transport/,transport.c drive.c) uproxy/coll/arith.c $(wildcard uproxy/softgpu/transport/*.h uproxy/coll/*.h)
	$(foreach l,$(COLL_LEVELS),$(call FUZZ_ARITH,$(l)))
	$(FUZZCC) -fsanitize=fuzzer,address,undefined $(FUZZ_WIRE_CFLAGS) -o $@ $(BUILD)/selftests/transport/fuzz/*.o \
		$< $(FUZZ_WIRE_SRC) -lm -lpthread

$(eval $(call FUZZER,transport,wire,600,900))
