# SPDX-License-Identifier: Apache-2.0
# build.mk - the stand-in for NCCL, beside that of $(CUDA_HOME)'s driver, whose sessions it uses.
#
# Its objects see libintercept's core.h, the records (proto.h), build/gen and the vendor's headers.

ifneq ($(NCCL_HEADER),)
LIBNCCL := $(B)/lib/libnccl.so.2
LIBNCCL_OBJ := $(patsubst libintercept/%.c,$(B)/libintercept/%.o,$(wildcard libintercept/nccl/*.c))
LIBNCCL_CFLAGS = $(CFLAGS) -fPIC -fvisibility=hidden -fno-plt -pthread -MMD -MP -D_GNU_SOURCE \
	-Ilibintercept $(GEN_CFLAGS)

$(LIBNCCL_OBJ): $(B)/libintercept/%.o: libintercept/%.c $(B)/gen/cuda.stamp $(B)/gen/nccl.stamp
	@mkdir -p $(@D)
	$(CC) $(LIBNCCL_CFLAGS) -c -o $@ $<

# With DEBUG_LOCKS, beside libcuda of that kind.
LIBNCCL_CHECKED := $(CHECKED)/libnccl.so.2
LIBNCCL_CHECKED_OBJ := $(LIBNCCL_OBJ:$(B)/libintercept/%=$(B)/libintercept/checked/%)
$(LIBNCCL_CHECKED_OBJ): $(B)/libintercept/checked/%.o: libintercept/%.c $(B)/gen/cuda.stamp $(B)/gen/nccl.stamp
	@mkdir -p $(@D)
	$(CC) $(LIBNCCL_CFLAGS) -DDEBUG_LOCKS -c -o $@ $<

$(LIBNCCL): $(LIBNCCL_OBJ) $(LIBCUDA)
$(LIBNCCL_CHECKED): $(LIBNCCL_CHECKED_OBJ) $(CHECKED)/libcuda.so.1
$(LIBNCCL) $(LIBNCCL_CHECKED): $(addprefix $(B)/gen/,nccl_stubs.o nccl_forms.o)
	@mkdir -p $(@D)
	rm -f $@
	$(CC) -shared -o $@ $(filter %.o,$^) -Wl,-soname,libnccl.so.2 -Wl,-Bsymbolic \
		-Wl,--version-script=$(B)/gen/nccl.map -Wl,-z,now $(if $(SAN),,-Wl,-z,defs) \
		-L$(@D) -lcuda $(LDFLAGS) -lpthread
	ln -sf libnccl.so.2 $(@D)/libnccl.so

ALL += $(LIBNCCL)
INSTALL_LIB += $(LIBNCCL)
else
all: note-nccl
.PHONY: note-nccl
note-nccl:
	@echo "No nccl.h of NCCL 2.22 or newer in $(CUDA_HOME): libnccl.so.2 is left out."
endif
