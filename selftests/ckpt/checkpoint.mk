# SPDX-License-Identifier: Apache-2.0
# checkpoint.mk - whole jobs: checkpointed, killed and restored by the commands.

$(B)/selftests/ckpt/worker $(B)/selftests/ckpt/linked: $(B)/%: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -pthread -MMD -MP -o $@ $< $(LDFLAGS)

# What PyTorch is written in, whose watchdog it plays.
$(B)/selftests/ckpt/stood: selftests/ckpt/stood.cpp
	@mkdir -p $(@D)
	$(CXX) -O2 -Wall -Wextra -std=c++17 -pthread -MMD -MP -o $@ $<

# One with a clock of its own.
$(B)/selftests/ckpt/stood-static: selftests/ckpt/stood.cpp
	@mkdir -p $(@D)
	$(CXX) -O2 -Wall -Wextra -std=c++17 -pthread -static-libstdc++ -MMD -MP -o $@ $<

# A job whose files are replaced, and two builds of its library.
$(B)/selftests/ckpt/rebuilt: selftests/ckpt/rebuilt.c selftests/ckpt/rebuilt_text.h $(B)/lib/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -isystem $(CUDA_HOME)/include -o $@ $< -L$(B)/lib -lcuda -ldl
$(B)/selftests/ckpt/rebuilt-%.so: selftests/ckpt/rebuilt_plug.c selftests/ckpt/rebuilt_text.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -DNUMBER=$* -fPIC -shared -o $@ $<

$(B)/selftests/ckpt/seated: selftests/ckpt/seated.c $(B)/lib/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -isystem $(CUDA_HOME)/include -o $@ $< -L$(B)/lib -lcuda

# The job of which make-older stores checkpoints.
$(B)/selftests/ckpt/older-job: selftests/ckpt/older_job.c $(B)/lib/libcuda.so.1 $(B)/lib/libnccl.so.2
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -isystem $(CUDA_HOME)/include -o $@ $< -L$(B)/lib -lcuda -lnccl

# Rebuilds the sessions of these checkpoints.
$(B)/selftests/ckpt/older: selftests/ckpt/older.c tools/ckpt/facts.c $(B)/uproxy/libcoll.a \
		$(B)/uproxy/ckpt/libsingvgpu-control.a $(B)/ckpt/libstore.a
	@mkdir -p $(@D)
	$(call cc_several,$(CFLAGS) -D_GNU_SOURCE -DSINGVGPU_VERSION='"test"' -Itools/ckpt -Itools/job -Itools/history \
		-Itools -Iuproxy/include -Iuproxy/ckpt/criu -Iuproxy/coll $(STORE_CFLAGS) -pthread) \
		$(filter %.c %.a,$^) $(LDFLAGS) $(STORE_LIBS) -lm

# Reads a checkpoint back as the command that wrote it does, with a part that cannot be read.
CKPT_READBACK := $(B)/selftests/ckpt/readback
$(CKPT_READBACK): selftests/ckpt/readback.c $(patsubst %.c,$(B)/%.o,$(filter-out tools/main.c tools/job/init.c, \
	$(wildcard tools/*.c tools/*/*.c))) $(addprefix $(B)/,uproxy/message/message.o libintercept/files/uses.o ckpt/libcriu.a ckpt/libfiles.a ckpt/libstore.a \
	uproxy/ckpt/libsingvgpu-control.a uproxy/libcoll.a)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE $(addprefix -I,tools tools/ckpt $(TOOL_SEES_ckpt)) -Wl,--wrap=store_object_open -MMD -MP \
		-o $@ $(filter %.c %.o %.a,$^) $(LDFLAGS) $(STORE_LIBS) -lm -ldl
$(B)/selftests/ckpt/damage.so: selftests/ckpt/damage.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -fPIC -shared -o $@ $< -ldl

# CRIU does not know the mappings of a sanitizer's shadow memory.
ifeq ($(SAN),)
TEST_PROGRAMS += $(CKPT_READBACK) $(B)/selftests/ckpt/damage.so $(B)/selftests/ckpt/worker $(B)/selftests/ckpt/linked \
	$(addprefix $(B)/selftests/ckpt/,rebuilt rebuilt-1.so rebuilt-2.so older older-job seated) \
	$(if $(shell command -v $(CXX)),$(B)/selftests/ckpt/stood $(B)/selftests/ckpt/stood-static)
HOST_TESTS += selftests/ckpt/test-checkpoint selftests/ckpt/test-seating selftests/ckpt/test-linked \
	selftests/ckpt/test-older selftests/ckpt/test-parts selftests/ckpt/test-rebuilt selftests/ckpt/test-sockets \
	selftests/ckpt/test-stood selftests/ckpt/test-stood-torch
HOST_TESTS += selftests/ckpt/test-descriptors
LONG_TESTS += selftests/ckpt/test-stood-long
VM_TESTS += selftests/ckpt/clocks-vm
TIMEOUT_test-checkpoint := 600
TIMEOUT_clocks-vm := 300
TIMEOUT_test-stood-torch := 600
TIMEOUT_test-stood-long := 900
endif
