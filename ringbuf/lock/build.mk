# SPDX-License-Identifier: Apache-2.0
# build.mk - what checks the use of locks, for what is built with DEBUG_LOCKS. lock.h is seen by all rooms.

$(B)/ringbuf/lock/lock_check.o: ringbuf/lock/lock_check.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -fPIC -DDEBUG_LOCKS -MMD -MP -c -o $@ $<

# Dependencies that were noted before the file came here.
libintercept/lock_check.c libintercept/lock.h lock/lock_check.c lock/lock.h: ;
