# SPDX-License-Identifier: Apache-2.0
# build.mk - what `singvgpu run` preloads: $(B)/lib/libcuda.so.1, from the stubs in $(GEN) and by hand.
#
# Its objects see ringbuf, build/gen and the vendor's headers, and nothing of the proxy. $(CUDA_HOME)

INTERCEPT := $(B)/libintercept
INTERCEPT_OBJ := $(patsubst libintercept/%.c,$(INTERCEPT)/%.o,$(wildcard libintercept/*.c))
INTERCEPT_CFLAGS = $(CFLAGS) -fPIC -fvisibility=hidden -fno-plt -pthread -MMD -MP -D_GNU_SOURCE \
	-Ilibintercept $(GEN_CFLAGS) -Iringbuf -Ikmod/include/uapi -Wno-deprecated-declarations
LIBCUDA := $(B)/lib/libcuda.so.1

$(INTERCEPT_OBJ): $(INTERCEPT)/%.o: libintercept/%.c $(B)/gen/cuda.stamp
	@mkdir -p $(@D)
	$(CC) $(INTERCEPT_CFLAGS) -c -o $@ $<

# What a generated stub exports, and by which version of a name, is in the map.
$(LIBCUDA): $(INTERCEPT_OBJ) $(addprefix $(B)/gen/,cuda_stubs.o cuda_forms.o cuda_info.o names.o) \
		$(B)/ringbuf/libringbuf.a
	@mkdir -p $(@D)
	$(CC) -shared -o $@ $^ -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -Wl,--version-script=$(B)/gen/cuda.map \
		-Wl,-z,now $(if $(SAN),,-Wl,-z,defs) $(LDFLAGS) -lpthread -ldl
	ln -sf libcuda.so.1 $(@D)/libcuda.so

ALL += $(LIBCUDA)
INSTALL_LIB += $(LIBCUDA)

LIBNVML := $(B)/lib/libnvidia-ml.so.1
$(LIBNVML): libintercept/nvml/nvml.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -fPIC -fvisibility=hidden -MMD -MP $(CUDA_CFLAGS) -shared -o $@ $< \
		-Wl,-soname,libnvidia-ml.so.1 $(if $(SAN),,-Wl,-z,defs) $(LDFLAGS) -lpthread -ldl
	ln -sf libnvidia-ml.so.1 $(@D)/libnvidia-ml.so

ALL += $(LIBNVML)
INSTALL_LIB += $(LIBNVML)
