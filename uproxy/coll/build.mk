# SPDX-License-Identifier: Apache-2.0
# build.mk - collectives without a transport: the reduction tree, and the decision which operation
# starts when; and of ../slice/, who has a shared device's memory. Link $(COLL) and -lm; it knows no other folder's headers,
# and no CUDA.

COLL := $(B)/uproxy/libcoll.a
COLL_CFLAGS := -Iuproxy/coll
COLL_SRC := $(filter-out uproxy/coll/arith.c,$(wildcard uproxy/coll/*.c))
COLL_LEVELS := base $(if $(filter x86_64,$(shell uname -m)),avx2 avx512)
COLL_ARITH := $(COLL_LEVELS:%=$(B)/uproxy/coll/arith_%.o)
# The board has the state of who has the memory of a device that ranks share by slices.
COLL_SLICE := $(addprefix $(B)/uproxy/slice/,turns.o table.o)
COLL_OBJ := $(COLL_SRC:%.c=$(B)/%.o) $(COLL_ARITH) $(COLL_SLICE)

$(COLL_SRC:%.c=$(B)/%.o) $(COLL_SLICE): $(B)/%.o: %.c uproxy/coll/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -fPIC -Iuproxy/slice -MMD -MP -c -o $@ $<

# Loops are vectorised from -O3 on. Without FMA, and without regard to traps, which nobody takes.
COLL_LEVEL_avx2 := -mavx2 -mno-fma
COLL_LEVEL_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mno-fma -mprefer-vector-width=512
$(COLL_ARITH): $(B)/uproxy/coll/arith_%.o: uproxy/coll/arith.c uproxy/coll/build.mk
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -O3 -ffp-contract=off -fno-trapping-math -fno-math-errno $(COLL_LEVEL_$*) \
		-DARITH=arith_$* -fPIC -MMD -MP -c -o $@ $<

$(COLL): $(COLL_OBJ)
	@mkdir -p $(@D)
	rm -f $@
	$(AR) rcs $@ $^
ALL += $(COLL)
