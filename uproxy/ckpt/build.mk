# SPDX-License-Identifier: Apache-2.0

include uproxy/ckpt/plugin/build.mk

# The conductor's side of the control socket, for tools/ and tests.
CONTROL := $(B)/uproxy/ckpt/libsingvgpu-control.a
CONTROL_CFLAGS := -Iuproxy/include
$(B)/uproxy/ckpt/control_client.o: uproxy/ckpt/control_client.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CONTROL_CFLAGS) -MMD -MP -fPIC -c -o $@ $<
$(CONTROL): $(B)/uproxy/ckpt/control_client.o
	rm -f $@
	$(AR) rcs $@ $^
ALL += $(CONTROL)

# The store: no part of the core, so that tools link it too. Link $(STORE) and $(STORE_LIBS).
STORE := $(B)/ckpt/libstore.a
STORE_SRC := $(wildcard uproxy/ckpt/store/*.c)
STORE_CFLAGS := -Iuproxy/ckpt/store -Iuproxy/include
STORE_LIBS := -luring -lxxhash -lzstd -pthread
STORE_OBJ := $(STORE_SRC:uproxy/ckpt/%.c=$(B)/ckpt/%.o)
$(STORE_OBJ): $(B)/ckpt/%.o: uproxy/ckpt/%.c uproxy/ckpt/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -fPIC -pthread -MMD -MP -Iuproxy/include -c -o $@ $<
# -O3: what xxHash wants to be inlined and unrolled.
$(B)/ckpt/store/hash.o: override CFLAGS += -O3
$(STORE): $(STORE_OBJ)
	rm -f $@
	$(AR) rcs $@ $^
ALL += $(if $(STORE_SRC),$(STORE))

# CRIU and its images; criu/images_store.c alone knows the store. Link $(CRIU_LIB) before $(STORE).
CRIU_LIB := $(B)/ckpt/libcriu.a
CRIU_LIB_SRC := $(wildcard uproxy/ckpt/criu/*.c)
CRIU_LIB_CFLAGS := -Iuproxy/ckpt/criu -Iuproxy/include
CRIU_LIB_OBJ := $(CRIU_LIB_SRC:uproxy/ckpt/%.c=$(B)/ckpt/%.o)
$(CRIU_LIB_OBJ): $(B)/ckpt/%.o: uproxy/ckpt/%.c uproxy/ckpt/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -fPIC -pthread -MMD -MP $(STORE_CFLAGS) -c -o $@ $<
$(CRIU_LIB): $(CRIU_LIB_OBJ)
	rm -f $@
	$(AR) rcs $@ $^
ALL += $(CRIU_LIB)

# A job's files, into the store and back. Link $(FILES_LIB) before $(STORE).
FILES_LIB := $(B)/ckpt/libfiles.a
FILES_LIB_OBJ := $(patsubst uproxy/ckpt/%.c,$(B)/ckpt/%.o,$(wildcard uproxy/ckpt/files/*.c))
FILES_LIB_CFLAGS := -Iuproxy/ckpt/files $(STORE_CFLAGS)
$(FILES_LIB_OBJ): $(B)/ckpt/%.o: uproxy/ckpt/%.c uproxy/ckpt/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE -fPIC -MMD -MP $(STORE_CFLAGS) -Ilibintercept/files -c -o $@ $<
$(FILES_LIB): $(FILES_LIB_OBJ)
	rm -f $@
	$(AR) rcs $@ $^
ALL += $(FILES_LIB)
