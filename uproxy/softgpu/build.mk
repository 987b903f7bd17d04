# SPDX-License-Identifier: Apache-2.0
# build.mk - the soft device: libsoftcuda.so, its JIT library, and the driver for direct mode.
#
#   $(SOFTGPU)/libsoftcuda.so          the driver API, for a proxy
#   $(SOFTGPU)/libsoftjit.so           PTX to machine code; has LLVM, and is loaded when needed
#   $(SOFTGPU)/direct/libcuda.so.1     the driver with cudart's tables, to be preloaded

CUDA_H := $(CUDA_HOME)/include/cuda.h

SOFTGPU := $(B)/uproxy/softgpu
SOFT_GEN := $(SOFTGPU)/gen
SOFT_API := state device context memory place vmm stream event desc copy host managed array texture pool \
	module library program fatbin launch query procs error graph graph_node graph_exec \
	graph_capture graph_cond
SOFT_API_OBJS := $(SOFT_API:%=$(SOFTGPU)/%.o) $(SOFTGPU)/api_ptsz.o $(SOFTGPU)/api_unsupported.o
SOFT_CFLAGS = $(CFLAGS) -fPIC -pthread -MMD -MP -Iuproxy/softgpu -I$(SOFT_GEN) -Ilibintercept \
	$(CUDA_CFLAGS)
# A sanitizer's symbols come from the program.
SOFT_ZDEFS := $(if $(SAN),,-Wl,-z,defs)
SOFT_LDFLAGS := -Wl,-Bsymbolic -Wl,--version-script=uproxy/softgpu/exports.map $(SOFT_ZDEFS)
SOFT_LIBS := -lzstd -llz4 -lm -ldl -lpthread

# What the JIT's owner adds: SOFT_PTX_OBJS for both drivers, and libsoftjit.so.
-include uproxy/softgpu/jit.mk

$(SOFT_GEN)/api_protos.txt: uproxy/softgpu/gen_api.sh uproxy/softgpu/args.awk \
		uproxy/softgpu/unsupported.def $(CUDA_H) \
		$(wildcard libintercept/newer/*.h)
	@mkdir -p $(@D)
	uproxy/softgpu/gen_api.sh '$(CC)' '$(CUDA_DIRS:%=-I%)' uproxy/softgpu $(SOFT_GEN)

$(SOFT_API_OBJS): $(SOFT_GEN)/api_protos.txt
$(SOFT_GEN)/api_ptsz.c $(SOFT_GEN)/api_unsupported.c: $(SOFT_GEN)/api_protos.txt ;

$(SOFTGPU)/%.o: uproxy/softgpu/%.c
	@mkdir -p $(@D)
	$(CC) $(SOFT_CFLAGS) -c -o $@ $<
$(SOFTGPU)/api_%.o: $(SOFT_GEN)/api_%.c
	@mkdir -p $(@D)
	$(CC) $(SOFT_CFLAGS) -c -o $@ $<

$(SOFTGPU)/libsoftcuda.so: $(SOFT_API_OBJS) $(SOFT_PTX_OBJS) uproxy/softgpu/exports.map
	$(CC) -shared -o $@ $(filter %.o,$^) -Wl,-soname,libsoftcuda.so $(SOFT_LDFLAGS) $(LDFLAGS) \
		$(SOFT_LIBS)

$(SOFTGPU)/direct/%.o: uproxy/softgpu/%.c
	@mkdir -p $(@D)
	$(CC) $(SOFT_CFLAGS) -Ilibintercept -c -o $@ $<
$(SOFTGPU)/direct/%.o: libintercept/%.c
	@mkdir -p $(@D)
	$(CC) $(SOFT_CFLAGS) -Ilibintercept -c -o $@ $<

SOFT_DIRECT := $(SOFTGPU)/direct/libcuda.so.1
$(SOFT_DIRECT): $(SOFT_API_OBJS) $(SOFT_PTX_OBJS) $(SOFTGPU)/direct/direct.o \
		$(SOFTGPU)/direct/export_tables.o uproxy/softgpu/exports.map $(LIBRTC_OBJ)
	$(CC) -shared -o $@ $(filter %.o,$^) -Wl,-soname,libcuda.so.1 $(SOFT_LDFLAGS) $(LDFLAGS) \
		$(SOFT_LIBS)
	ln -sf libcuda.so.1 $(@D)/libcuda.so
	ln -sf ../libsoftjit.so $(@D)/libsoftjit.so

ALL += $(SOFTGPU)/libsoftcuda.so $(SOFT_DIRECT)
