# SPDX-License-Identifier: Apache-2.0
# fuzz.mk - the fuzzer of saved boards; built once, and not for each sanitizer.

# image_old.c is a part of it, with smaller limits; the library has the arithmetic, which is not looked at.
FUZZ_BOARD := $(BUILD)/selftests/coll/fuzz_board
$(FUZZ_BOARD): selftests/coll/fuzz_board.c $(addprefix uproxy/coll/,image.c step.c step_index.c step_look.c tree.c) \
		uproxy/coll/image_old.c $(wildcard uproxy/coll/*.h) selftests/harness/fuzz.h $(BUILD)/uproxy/libcoll.a
	@mkdir -p $(@D)
	$(FUZZCC) -O1 -g -std=gnu11 -Wall -Wextra $(WERROR) -Iringbuf/lock -fsanitize=fuzzer,address,undefined \
		-fno-sanitize-recover=all $(COLL_CFLAGS) -o $@ $(filter-out %image_old.c,$(filter %.c,$^)) \
		$(filter %.a,$^) -lm

$(eval $(call FUZZER,coll,board,600,900))
