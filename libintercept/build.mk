# SPDX-License-Identifier: Apache-2.0
# build.mk - what `singvgpu run` preloads: $(B)/lib/libcuda.so.1, from the stubs in $(GEN) and by hand.
#
# Its objects see ringbuf, build/gen and the vendor's headers, and nothing of the proxy. $(CUDA_HOME)

INTERCEPT := $(B)/libintercept
INTERCEPT_OBJ := $(patsubst libintercept/%.c,$(INTERCEPT)/%.o,$(wildcard libintercept/*.c \
	$(addprefix libintercept/,memory/*.c modules/*.c streams/*.c graphs/*.c tables/*.c)))

# The rooms, and whose headers each may include besides its own.
INTERCEPT_SEES_libintercept := . memory modules streams graphs tables
INTERCEPT_SEES_memory := . streams modules
INTERCEPT_SEES_modules := . memory streams
INTERCEPT_SEES_streams := . memory
INTERCEPT_SEES_graphs := . memory modules streams
INTERCEPT_SEES_tables :=
intercept_sees = $(addprefix -Ilibintercept/,\
	$(INTERCEPT_SEES_$(notdir $(patsubst %/,%,$(dir $<)))))
INTERCEPT_CFLAGS = $(CFLAGS) -fPIC -fvisibility=hidden -fno-plt -pthread -MMD -MP -D_GNU_SOURCE \
	$(intercept_sees) $(GEN_CFLAGS) -Iringbuf -Ikmod/include/uapi -Wno-deprecated-declarations \
	$(if $(SAN),-DDEBUG_LOCKS)
LIBCUDA := $(B)/lib/libcuda.so.1

$(INTERCEPT_OBJ): $(INTERCEPT)/%.o: libintercept/%.c $(B)/gen/cuda.stamp
	@mkdir -p $(@D)
	$(CC) $(INTERCEPT_CFLAGS) -c -o $@ $<

# The same library with DEBUG_LOCKS (lock.h), beside the other libraries of a job, for SINGVGPU_LIBDIR; that for
# libnccl uses its checker. Sanitizer builds always have DEBUG_LOCKS.
CHECKED := $(B)/lib/checked
CHECKED_OBJ := $(INTERCEPT_OBJ:$(INTERCEPT)/%=$(INTERCEPT)/checked/%)
$(CHECKED_OBJ): $(INTERCEPT)/checked/%.o: libintercept/%.c $(B)/gen/cuda.stamp
	@mkdir -p $(@D)
	$(CC) $(INTERCEPT_CFLAGS) -DDEBUG_LOCKS -c -o $@ $<

$(CHECKED)/cuda.map: $(B)/gen/cuda.stamp
	@mkdir -p $(@D)
	sed 's/^global:/&\n\tlock_takes; lock_drops; lock_may_wait; assert_held;/' $(B)/gen/cuda.map >$@

$(CHECKED)/libcuda.so.1: $(CHECKED_OBJ) $(B)/ringbuf/lock/lock_check.o $(CHECKED)/cuda.map
$(LIBCUDA): $(INTERCEPT_OBJ) $(if $(SAN),$(B)/ringbuf/lock/lock_check.o)

# The map has the exported names and versions of generated stubs.
$(LIBCUDA) $(CHECKED)/libcuda.so.1: $(addprefix $(B)/gen/,cuda_stubs.o cuda_forms.o cuda_info.o names.o) \
		$(B)/ringbuf/libringbuf.a
	@mkdir -p $(@D)
	$(CC) -shared -o $@ $(filter %.o,$^) $(filter %.a,$^) -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic -Wl,--version-script=$(or $(filter %.map,$^),$(B)/gen/cuda.map) \
		-Wl,-z,now $(if $(SAN),,-Wl,-z,defs) $(LDFLAGS) -lpthread -ldl
	ln -sf libcuda.so.1 $(@D)/libcuda.so
	$(if $(filter $(CHECKED)/%,$@),ln -sf $(addprefix ../,libnvidia-ml.so.1 libnvidia-ml.so \
		$(if $(LIBNCCL),,libnccl.so.2 libnccl.so) libsingvgpu-files.so libsingvgpu-rtc.so libsingvgpu-clock.so) $(@D))

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
