# SPDX-License-Identifier: Apache-2.0
# build.mk - the soft device's transport, libsoftcomm.so: shared memory on one host, TCP otherwise.

SOFTCOMM := $(B)/uproxy/softgpu/libsoftcomm.so
SOFTCOMM_SRC := $(wildcard uproxy/softgpu/transport/*.c)
SOFTCOMM_OBJ := $(SOFTCOMM_SRC:%.c=$(B)/%.o)
SOFTCOMM_CFLAGS := -Iuproxy/hal -Iuproxy/coll -Iuproxy/include

$(SOFTCOMM_OBJ): $(B)/%.o: %.c uproxy/softgpu/transport/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(SOFTCOMM_CFLAGS) -fPIC -fvisibility=hidden -pthread -MMD -MP -c -o $@ $<

$(SOFTCOMM): $(SOFTCOMM_OBJ) $(B)/uproxy/libcoll.a uproxy/softgpu/transport/exports.map
	$(CC) -shared -o $@ $(filter %.o %.a,$^) -Wl,-soname,libsoftcomm.so -Wl,-Bsymbolic \
		-Wl,--version-script=uproxy/softgpu/transport/exports.map \
		$(if $(SAN),,-Wl,-z,defs) $(LDFLAGS) -lm -pthread

ALL += $(SOFTCOMM)
