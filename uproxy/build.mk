# SPDX-License-Identifier: Apache-2.0
# build.mk - singvgpu-proxy, which owns the device: $(UPROXY). It needs the headers of $(CUDA_HOME).

UPROXY := $(B)/uproxy/singvgpu-proxy
UPROXY_CORE_SRC := $(filter-out uproxy/proxy.c,$(wildcard uproxy/*.c))
UPROXY_HAL_SRC := $(wildcard uproxy/hal/*.c)
UPROXY_GEN_OBJ := $(addprefix $(GEN)/,cuda_dispatch.o cuda_driver.o cuda_info.o)
UPROXY_CFLAGS := -pthread -Iuproxy $(RINGBUF_CFLAGS) $(GEN_CFLAGS)
UPROXY_OBJ := $(UPROXY_CORE_SRC:%.c=$(B)/%.o) $(UPROXY_HAL_SRC:%.c=$(B)/%.o)

$(UPROXY_OBJ) $(B)/uproxy/proxy.o: $(B)/%.o: %.c | $(GEN)/cuda.stamp
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -MMD -MP $(UPROXY_CFLAGS) -c $< -o $@

$(B)/uproxy/hal/digest.o: uproxy/hal/digest.ptx

# The core, for tests that have it in their own process. What links it links these libraries, too.
$(B)/uproxy/libuproxy.a: $(UPROXY_OBJ) $(UPROXY_GEN_OBJ) $(B)/uproxy/store.o
	rm -f $@
	$(AR) rcs $@ $^
UPROXY_LIBS = $(STORE_LIBS) -llz4 -pthread -ldl

# The store as one object, of which nothing is seen but store_*: its other names are short.
$(B)/uproxy/store.o: $(B)/ckpt/libstore.a
	ld -r -o $@ --whole-archive $<
	objcopy -w -G 'store_*' $@

$(UPROXY): $(B)/uproxy/proxy.o $(UPROXY_OBJ) $(UPROXY_GEN_OBJ) $(RINGBUF) $(B)/uproxy/store.o
	$(CC) -o $@ $^ $(LDFLAGS) $(UPROXY_LIBS)

ALL += $(UPROXY)
