# SPDX-License-Identifier: Apache-2.0
# build.mk - the soft device: libsoftcuda.so, its JIT library, and the driver for direct mode.
#
#   $(SOFTGPU)/libsoftcuda.so          the driver API, for a proxy
#   $(SOFTGPU)/libsoftjit.so           PTX to machine code; has LLVM, and is loaded when needed
#   $(SOFTGPU)/direct/libcuda.so.1     the driver with cudart's tables, to be preloaded

CUDA_H := $(CUDA_HOME)/include/cuda.h

SOFTGPU := $(B)/uproxy/softgpu
SOFT_GEN := $(SOFTGPU)/gen
SOFT_API_SRC := $(filter-out %/direct.c,$(wildcard $(addprefix uproxy/softgpu/,api/*.c memory/*.c \
	modules/*.c graph/*.c)))
SOFT_API_OBJS := $(SOFT_API_SRC:uproxy/softgpu/%.c=$(SOFTGPU)/%.o) $(SOFTGPU)/api_ptsz.o \
	$(SOFTGPU)/api_unsupported.o $(SOFTGPU)/api_trace.o

# The rooms, and whose headers each may include besides its own.
SOFT_SEES_api := libintercept/tables
SOFT_SEES_memory := $(addprefix uproxy/softgpu/,api ptx)
SOFT_SEES_modules := $(addprefix uproxy/softgpu/,api memory ptx) libintercept/gen
SOFT_SEES_graph := $(addprefix uproxy/softgpu/,api memory modules ptx)
SOFT_SEES_ptx :=
SOFT_SEES_rt := uproxy/softgpu/ptx
SOFT_SEES_jit := $(addprefix uproxy/softgpu/,ptx rt)
soft_sees = $(addprefix -I,$(SOFT_SEES_$(notdir $(patsubst %/,%,$(dir $<)))))
SOFT_CFLAGS = $(CFLAGS) -fPIC -pthread -MMD -MP $(soft_sees) -I$(SOFT_GEN) $(CUDA_CFLAGS)
# A sanitizer's symbols come from the program.
SOFT_ZDEFS := $(if $(SAN),,-Wl,-z,defs)
SOFT_LDFLAGS := -Wl,-Bsymbolic -Wl,--version-script=uproxy/softgpu/api/exports.map $(SOFT_ZDEFS)
SOFT_LIBS := -lzstd -llz4 -lm -ldl -lpthread

# What the JIT's owner adds: SOFT_PTX_OBJS for both drivers, and libsoftjit.so.
include uproxy/softgpu/jit.mk

$(SOFT_GEN)/api_protos.txt: uproxy/softgpu/api/gen_api.sh uproxy/softgpu/api/args.awk \
		uproxy/softgpu/api/unsupported.def $(CUDA_H) \
		$(wildcard libintercept/newer/*.h)
	@mkdir -p $(@D)
	uproxy/softgpu/api/gen_api.sh '$(CC)' '$(CUDA_DIRS:%=-I%)' uproxy/softgpu/api $(SOFT_GEN)

$(SOFT_API_OBJS): $(SOFT_GEN)/api_protos.txt
$(SOFT_GEN)/api_ptsz.c $(SOFT_GEN)/api_unsupported.c $(SOFT_GEN)/api_trace.c: \
		$(SOFT_GEN)/api_protos.txt ;

$(SOFTGPU)/%.o: uproxy/softgpu/%.c
	@mkdir -p $(@D)
	$(CC) $(SOFT_CFLAGS) -c -o $@ $<
$(SOFTGPU)/api_%.o: $(SOFT_GEN)/api_%.c
	@mkdir -p $(@D)
	$(CC) $(SOFT_CFLAGS) -Iuproxy/softgpu/api -c -o $@ $<

$(SOFTGPU)/libsoftcuda.so: $(SOFT_API_OBJS) $(SOFT_PTX_OBJS) uproxy/softgpu/api/exports.map
	$(CC) -shared -o $@ $(filter %.o,$^) -Wl,-soname,libsoftcuda.so $(SOFT_LDFLAGS) $(LDFLAGS) \
		$(SOFT_LIBS)

$(SOFTGPU)/direct/%.o: libintercept/%.c
	@mkdir -p $(@D)
	$(CC) $(SOFT_CFLAGS) -c -o $@ $<

SOFT_DIRECT := $(SOFTGPU)/direct/libcuda.so.1
$(SOFT_DIRECT): $(SOFT_API_OBJS) $(SOFT_PTX_OBJS) $(SOFTGPU)/api/direct.o \
		$(SOFTGPU)/direct/tables/export_tables.o uproxy/softgpu/api/exports.map $(LIBRTC_OBJ)
	$(CC) -shared -o $@ $(filter %.o,$^) -Wl,-soname,libcuda.so.1 $(SOFT_LDFLAGS) $(LDFLAGS) \
		$(SOFT_LIBS)
	ln -sf libcuda.so.1 $(@D)/libcuda.so
	ln -sf ../libsoftjit.so $(@D)/libsoftjit.so

ALL += $(SOFTGPU)/libsoftcuda.so $(SOFT_DIRECT)
