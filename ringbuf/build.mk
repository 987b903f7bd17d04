# SPDX-License-Identifier: Apache-2.0
# libringbuf.a, position independent: it is linked into the stand-ins as well as into programs.

RINGBUF := $(B)/ringbuf/libringbuf.a
RINGBUF_CFLAGS := -Iringbuf -Ikmod/include/uapi
RINGBUF_SRC := $(wildcard ringbuf/*.c)
RINGBUF_OBJ := $(RINGBUF_SRC:%.c=$(B)/%.o)

$(B)/ringbuf/%.o: ringbuf/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -fPIC -fvisibility=hidden -MMD -MP -Ikmod/include/uapi -c $< -o $@

$(RINGBUF): $(RINGBUF_OBJ)
	$(AR) rcs $@ $^

ALL += $(RINGBUF)
