# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of the `singvgpu` command, with a proxy and a client that only play their parts.

TOOL_FAKES := $(B)/selftests/tools/fakeproxy $(B)/selftests/tools/fakeclient
$(TOOL_FAKES): $(B)/selftests/tools/%: selftests/tools/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -Iuproxy/include -Ilibintercept/gen -MMD -MP -o $@ $< $(LDFLAGS)

# The job's history and its page, without a job.
TOOL_HISTORY := $(B)/selftests/tools/history
$(TOOL_HISTORY): selftests/tools/history.c $(patsubst %.c,$(B)/%.o,$(filter-out tools/main.c tools/job/init.c, \
	$(wildcard tools/*.c tools/*/*.c))) $(addprefix $(B)/,uproxy/message/message.o libintercept/files/uses.o ckpt/libcriu.a ckpt/libfiles.a ckpt/libstore.a \
	uproxy/ckpt/libsingvgpu-control.a uproxy/libcoll.a) | $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(addprefix -I,tools $(TOOL_SEES_report) tools/report) -MMD -MP -o $@ \
		$(filter %.c %.o %.a,$^) $(LDFLAGS) $(STORE_LIBS) -lm -ldl
HOST_TESTS += $(TOOL_HISTORY)

# What a checkpoint says of its job.
TOOL_FACTS := $(B)/selftests/tools/facts
$(TOOL_FACTS): selftests/tools/facts.c $(patsubst %.c,$(B)/%.o,$(filter-out tools/main.c tools/job/init.c, \
	$(wildcard tools/*.c tools/*/*.c))) $(addprefix $(B)/,uproxy/message/message.o libintercept/files/uses.o ckpt/libcriu.a ckpt/libfiles.a ckpt/libstore.a \
	uproxy/ckpt/libsingvgpu-control.a uproxy/libcoll.a) | $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(addprefix -I,tools tools/ckpt tools/cmd $(TOOL_SEES_ckpt)) -MMD -MP -o $@ \
		$(filter %.c %.o %.a,$^) $(LDFLAGS) $(STORE_LIBS) -lm -ldl
HOST_TESTS += $(TOOL_FACTS)

# What a checkpoint sees of a job's processes, and a restore of its host.
TOOL_LOOKS := $(B)/selftests/tools/looks
$(TOOL_LOOKS): selftests/tools/looks.c $(patsubst %.c,$(B)/%.o,$(filter-out tools/main.c tools/job/init.c, \
	$(wildcard tools/*.c tools/*/*.c))) $(addprefix $(B)/,uproxy/message/message.o libintercept/files/uses.o ckpt/libcriu.a ckpt/libfiles.a ckpt/libstore.a \
	uproxy/ckpt/libsingvgpu-control.a uproxy/libcoll.a) | $(KSELFTEST_H) $(B)/lib/libsingvgpu-clock.so
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(addprefix -I,tools tools/ckpt $(TOOL_SEES_ckpt)) -MMD -MP -o $@ \
		$(filter %.c %.o %.a,$^) $(LDFLAGS) $(STORE_LIBS) -lm -ldl

# Programs without singvgpu.
TOOL_STRAYS := $(B)/selftests/tools/strays
$(TOOL_STRAYS): selftests/tools/strays.c $(patsubst %.c,$(B)/%.o,$(filter-out tools/main.c tools/job/init.c, \
	$(wildcard tools/*.c tools/*/*.c))) $(addprefix $(B)/,uproxy/message/message.o libintercept/files/uses.o ckpt/libcriu.a ckpt/libfiles.a ckpt/libstore.a \
	uproxy/ckpt/libsingvgpu-control.a uproxy/libcoll.a) | $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(addprefix -I,tools tools/ckpt $(TOOL_SEES_ckpt) libintercept/files) -MMD -MP -o $@ \
		$(filter %.c %.o %.a,$^) $(LDFLAGS) $(STORE_LIBS) -lm -ldl
HOST_TESTS += $(TOOL_STRAYS)

TOOL_SEATING := $(B)/selftests/tools/seating
$(TOOL_SEATING): selftests/tools/seating.c tools/job/seating.c | $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(call cc_several,$(CFLAGS) $(KSELFTEST_CFLAGS) -Itools/job -Iuproxy/include) $(filter %.c,$^) $(LDFLAGS)
HOST_TESTS += $(TOOL_SEATING)

FUZZ_PARTS := $(BUILD)/selftests/tools/fuzz_parts
$(FUZZ_PARTS): selftests/tools/fuzz_parts.c tools/ckpt/facts.c tools/history/parse.c tools/job/rundir.c tools/job/seating.c \
		uproxy/ckpt/files/list.c uproxy/ckpt/files/check.c selftests/harness/fuzz.h
	@mkdir -p $(@D)
	$(FUZZCC) -O1 -g -std=gnu11 -Wall -Wextra -Wno-unused-parameter $(WERROR) -Iringbuf/lock $(TOOL_CFLAGS) \
		-fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
		$(addprefix -I,tools tools/ckpt $(TOOL_SEES_ckpt)) -o $@ $(filter %.c,$^)

$(eval $(call FUZZER,tools,parts,600,900))

# Lines for a person, whose reader has stopped.
TOOL_MESSAGE := $(B)/selftests/tools/message
$(TOOL_MESSAGE): selftests/tools/message.c $(B)/uproxy/message/message.o | $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) -Iuproxy/include -pthread -MMD -MP -o $@ $(filter %.c %.o,$^) $(LDFLAGS) -lutil
HOST_TESTS += $(TOOL_MESSAGE)

# A stand-in that stands for nothing, to be preloaded.
TOOL_FAKE_LIB := $(B)/selftests/tools/lib/libcuda.so.1
$(TOOL_FAKE_LIB): selftests/tools/build.mk
	@mkdir -p $(@D)
	echo 'int singvgpu_fake;' | $(CC) -shared -fPIC -x c - -o $@

# Sanitizers want to be the first library of a process; these preload another.
ifeq ($(SAN),)
HOST_TESTS += $(wildcard selftests/tools/test-*) $(TOOL_LOOKS)
TEST_PROGRAMS += $(TOOL_FAKES) $(TOOL_FAKE_LIB)
TIMEOUT_test-run := 300
TIMEOUT_test-deaths := 300
VM_TESTS += selftests/tools/doctor-vm
endif
