# SPDX-License-Identifier: Apache-2.0
# build.mk - singvgpu-proxy, which owns the device: $(UPROXY). It needs the headers of $(CUDA_HOME).

UPROXY := $(B)/uproxy/singvgpu-proxy
UPROXY_CORE_SRC := $(filter-out uproxy/proxy.c,$(wildcard uproxy/*.c))
UPROXY_ROOM_SRC := $(wildcard $(addprefix uproxy/,memory/*.c modules/*.c streams/*.c rebuild/*.c \
	comm/*.c atstep/*.c)) uproxy/slice/common.c uproxy/slice/crowd.c uproxy/slice/slice.c
UPROXY_NCCL_SRC := $(if $(UPROXY_NCCL),$(wildcard uproxy/hal/nccl/*.c))
UPROXY_NCCL_PTX := $(B)/uproxy/hal/nccl/reduce.ptx
UPROXY_HAL_SRC := $(wildcard uproxy/hal/*.c) $(UPROXY_NCCL_SRC)
UPROXY_GEN_OBJ := $(addprefix $(GEN)/,cuda_dispatch.o cuda_driver.o cuda_info.o \
	$(if $(UPROXY_NCCL),nccl_driver.o))
UPROXY_OBJ := $(patsubst %.c,$(B)/%.o,$(UPROXY_CORE_SRC) $(UPROXY_ROOM_SRC) $(UPROXY_HAL_SRC))

# The rooms, and whose headers each may include besides its own; include/ is what tools see, too.
UPROXY_SEES_uproxy := . include hal memory streams modules comm coll rebuild ckpt/store atstep slice
UPROXY_SEES_slice := . include hal memory streams comm coll
UPROXY_SEES_memory := . include hal streams modules rebuild slice
UPROXY_SEES_modules := . include hal memory streams rebuild
UPROXY_SEES_streams := . include hal memory modules rebuild slice
UPROXY_SEES_comm := . include hal memory streams coll
UPROXY_SEES_rebuild := . include hal memory streams modules comm coll ckpt/store atstep slice
UPROXY_SEES_atstep := . include hal memory streams comm coll slice
UPROXY_SEES_hal := include ckpt/store coll
UPROXY_SEES_nccl := hal include coll
uproxy_sees = $(addprefix -Iuproxy/,$(UPROXY_SEES_$(notdir $(patsubst %/,%,$(dir $<)))))
UPROXY_BASE_CFLAGS := -pthread $(RINGBUF_CFLAGS) $(GEN_CFLAGS)
# For tests that look inside.
UPROXY_CFLAGS := $(addprefix -Iuproxy/,. include hal memory modules streams rebuild ckpt/store comm coll atstep slice) \
	$(UPROXY_BASE_CFLAGS)

$(UPROXY_OBJ) $(B)/uproxy/proxy.o: $(B)/%.o: %.c | $(GEN_STAMPS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -MMD -MP $(UPROXY_BASE_CFLAGS) $(uproxy_sees) -c $< -o $@

$(addprefix $(B)/,uproxy/hal/digest.o checked/uproxy/hal/digest.o): uproxy/hal/digest.ptx
$(addprefix $(B)/,uproxy/hal/transport.o checked/uproxy/hal/transport.o): override CFLAGS += $(if $(UPROXY_NCCL),-DHAVE_NCCL)

# PTX of a version that old drivers take, too, which ptxas confirms. Nothing is contracted into an FMA.
$(UPROXY_NCCL_PTX): uproxy/hal/nccl/reduce.cu uproxy/hal/nccl/reduce_kernel.h uproxy/coll/scalar.h \
		uproxy/coll/tree.h uproxy/build.mk
	@mkdir -p $(@D)
	$(call nvcc,-arch=compute_75) -ptx -O3 -fmad=false -ftz=false -prec-div=true -Iuproxy/coll \
		-o $@.new $<
	sed -e 's/^\.version .*/.version 6.4/; s/^\.target .*/.target sm_70/' $@.new >$@.old
	$(CUDA_HOME)/bin/ptxas -arch=sm_75 -o /dev/null $@.old
	rm $@.new
	mv $@.old $@
$(addprefix $(B)/,uproxy/hal/nccl/reduce.o checked/uproxy/hal/nccl/reduce.o): $(UPROXY_NCCL_PTX)
$(addprefix $(B)/,uproxy/hal/nccl/reduce.o checked/uproxy/hal/nccl/reduce.o): override CFLAGS += -DREDUCE_PTX='"$(UPROXY_NCCL_PTX)"'

# The core, for tests that have it in their own process. What links it links these libraries, too.
$(B)/uproxy/libuproxy.a: $(UPROXY_OBJ) $(UPROXY_GEN_OBJ) $(B)/uproxy/message/message.o $(B)/ckpt/libstore.a $(B)/uproxy/libcoll.a
	rm -f $@
	$(AR) rcs $@ $(filter %.o,$^)
UPROXY_LIBS = $(B)/uproxy/libcoll.a $(B)/ckpt/libstore.a $(STORE_LIBS) -llz4 -pthread -ldl -lm

UPROXY_PARTS := $(B)/uproxy/proxy.o $(UPROXY_OBJ) $(UPROXY_GEN_OBJ) $(B)/uproxy/message/message.o $(RINGBUF) $(B)/ckpt/libstore.a $(B)/uproxy/libcoll.a

$(UPROXY): $(UPROXY_PARTS)
	$(CC) -o $@ $^ $(LDFLAGS) $(UPROXY_LIBS)

ALL += $(UPROXY)

# The proxy, and the soft device's transport, with DEBUG_LOCKS (lock.h): for SINGVGPU_PROXY, and for --driver, beside which
# a proxy looks for the transport. The calls of its drivers are not checked.
UPROXY_CHECKED := $(B)/checked/uproxy/singvgpu-proxy
UPROXY_CHECKED_OBJ := $(patsubst %,$(B)/checked/%.o,$(basename $(UPROXY_CORE_SRC) $(UPROXY_ROOM_SRC) $(UPROXY_HAL_SRC) uproxy/proxy.c))
STORE_CHECKED_OBJ := $(patsubst %.c,$(B)/checked/%.o,$(wildcard uproxy/ckpt/store/*.c))
SOFTCOMM_CHECKED_OBJ := $(patsubst %.c,$(B)/checked/%.o,$(wildcard uproxy/softgpu/transport/*.c))
OTHER_CHECKED_OBJ := $(addprefix $(B)/checked/uproxy/,message/message.o coll/board.o)
CHECKED_CC = $(CC) $(filter-out -O2 -g,$(CFLAGS)) -O1 -DDEBUG_LOCKS -MMD -MP -c $< -o $@

$(UPROXY_CHECKED_OBJ): $(B)/checked/%.o: %.c | $(GEN_STAMPS)
	@mkdir -p $(@D)
	$(CHECKED_CC) $(UPROXY_BASE_CFLAGS) $(uproxy_sees)
$(STORE_CHECKED_OBJ) $(OTHER_CHECKED_OBJ): $(B)/checked/%.o: %.c uproxy/build.mk
	@mkdir -p $(@D)
	$(CHECKED_CC) $(if $(findstring store/,$@),-D_GNU_SOURCE) -pthread -Iuproxy/include -Iuproxy/slice
$(SOFTCOMM_CHECKED_OBJ): $(B)/checked/%.o: %.c uproxy/build.mk
	@mkdir -p $(@D)
	$(CHECKED_CC) -fPIC -fvisibility=hidden -pthread -Iuproxy/hal -Iuproxy/coll -Iuproxy/include

$(UPROXY_CHECKED): $(UPROXY_CHECKED_OBJ) $(OTHER_CHECKED_OBJ) $(B)/ringbuf/lock/lock_check.o $(UPROXY_GEN_OBJ) $(STORE_CHECKED_OBJ) \
		$(RINGBUF) $(B)/uproxy/libcoll.a
	$(CC) -o $@ $^ -Wl,--export-dynamic-symbol=lock_* -Wl,--export-dynamic-symbol=assert_held $(LDFLAGS) $(STORE_LIBS) \
		-llz4 -pthread -ldl -lm

# The transport takes the checker of the proxy.
SOFT_CHECKED := $(B)/checked/uproxy/softgpu/libsoftcomm.so
$(SOFT_CHECKED): $(SOFTCOMM_CHECKED_OBJ) $(B)/uproxy/libcoll.a $(addprefix $(B)/uproxy/softgpu/,libsoftcuda.so libsoftjit.so)
	ln -f $(filter %.so,$^) $(@D)
	$(CC) -shared -o $@ $(filter %.o %.a,$^) -Wl,-soname,libsoftcomm.so -Wl,-Bsymbolic \
		-Wl,--version-script=uproxy/softgpu/transport/exports.map $(LDFLAGS) -lm -pthread
