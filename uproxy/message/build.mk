# SPDX-License-Identifier: Apache-2.0
# build.mk - lines for a person, for whatever links $(MESSAGE); it knows no other folder's headers.

MESSAGE := $(B)/uproxy/message/message.o
$(MESSAGE): uproxy/message/message.c uproxy/message/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -fPIC -Iuproxy/include -MMD -MP -c -o $@ $<
ALL += $(MESSAGE)
