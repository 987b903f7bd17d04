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

$(UPROXY): $(B)/uproxy/proxy.o $(UPROXY_OBJ) $(UPROXY_GEN_OBJ) $(RINGBUF)
	$(CC) -o $@ $^ $(LDFLAGS) -pthread -ldl

ALL += $(UPROXY)
