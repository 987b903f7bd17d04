# SPDX-License-Identifier: Apache-2.0
# What `make demo` shows: two processes on a channel, then the bench's table.

$(B)/selftests/demo/talk: selftests/demo/talk.c $(RINGBUF)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) $(RINGBUF_CFLAGS) -MMD -MP $< $(RINGBUF) -pthread -o $@

DEMOS += $(B)/selftests/demo/talk $(B)/selftests/bench/ring
