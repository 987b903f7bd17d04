# SPDX-License-Identifier: Apache-2.0
# build.mk - whole jobs: checkpointed, killed and restored by the commands.

$(B)/selftests/ckpt/worker $(B)/selftests/ckpt/linked: $(B)/selftests/ckpt/%: selftests/ckpt/checkpoint/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -pthread -MMD -MP -o $@ $< $(LDFLAGS)

# What PyTorch is written in, whose watchdog it plays.
$(B)/selftests/ckpt/stood: selftests/ckpt/checkpoint/stood.cpp
	@mkdir -p $(@D)
	$(CXX) -O2 -Wall -Wextra -std=c++17 -pthread -MMD -MP -o $@ $<

# One with a clock of its own.
$(B)/selftests/ckpt/stood-static: selftests/ckpt/checkpoint/stood.cpp
	@mkdir -p $(@D)
	$(CXX) -O2 -Wall -Wextra -std=c++17 -pthread -static-libstdc++ -MMD -MP -o $@ $<

# A job whose files are replaced, and two builds of its library.
$(B)/selftests/ckpt/rebuilt: selftests/ckpt/checkpoint/rebuilt.c selftests/ckpt/checkpoint/rebuilt_text.h $(B)/lib/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -isystem $(CUDA_HOME)/include -o $@ $< -L$(B)/lib -lcuda -ldl
$(B)/selftests/ckpt/rebuilt-%.so: selftests/ckpt/checkpoint/rebuilt_plug.c selftests/ckpt/checkpoint/rebuilt_text.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -DNUMBER=$* -fPIC -shared -o $@ $<

$(B)/selftests/ckpt/seated: selftests/ckpt/checkpoint/seated.c $(B)/lib/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -isystem $(CUDA_HOME)/include -o $@ $< -L$(B)/lib -lcuda

# Reads a checkpoint back as the command that wrote it does, with a part that cannot be read.
CKPT_READBACK := $(B)/selftests/ckpt/readback
$(CKPT_READBACK): selftests/ckpt/checkpoint/readback.c $(patsubst %.c,$(B)/%.o,$(filter-out tools/main.c tools/job/init.c, \
	$(wildcard tools/*.c tools/*/*.c))) $(addprefix $(B)/,uproxy/message/message.o libintercept/files/uses.o ckpt/libcriu.a ckpt/libfiles.a ckpt/libstore.a \
	uproxy/ckpt/libsingvgpu-control.a uproxy/libcoll.a)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE $(addprefix -I,tools tools/ckpt $(TOOL_SEES_ckpt)) -Wl,--wrap=store_object_open -MMD -MP \
		-o $@ $(filter %.c %.o %.a,$^) $(LDFLAGS) $(STORE_LIBS) -lm -ldl
$(B)/selftests/ckpt/damage.so: selftests/ckpt/checkpoint/damage.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -fPIC -shared -o $@ $< -ldl

# CRIU does not know the mappings of a sanitizer's shadow memory.
ifeq ($(SAN),)
TEST_PROGRAMS += $(CKPT_READBACK) $(B)/selftests/ckpt/damage.so $(B)/selftests/ckpt/worker $(B)/selftests/ckpt/linked \
	$(addprefix $(B)/selftests/ckpt/,rebuilt rebuilt-1.so rebuilt-2.so seated) \
	$(if $(shell command -v $(CXX)),$(B)/selftests/ckpt/stood $(B)/selftests/ckpt/stood-static)
HOST_TESTS += $(addprefix selftests/ckpt/checkpoint/,test-checkpoint test-descriptors test-linked test-parts test-rebuilt \
	test-seating test-sockets test-stood test-stood-torch)
LONG_TESTS += selftests/ckpt/checkpoint/test-stood-long
VM_TESTS += selftests/ckpt/checkpoint/clocks-vm
TIMEOUT_test-checkpoint := 600
TIMEOUT_clocks-vm := 300
TIMEOUT_test-stood-torch := 600
TIMEOUT_test-stood-long := 900
endif
