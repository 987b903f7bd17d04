# SPDX-License-Identifier: Apache-2.0
# build.mk - benches: each writes $(BUILD)/bench/NAME.json, and has a room with a .mk of its own. All programs are built
# into one folder.

bench_object = $(CC) $(CFLAGS) $(RINGBUF_CFLAGS) -MMD -MP -c $< -o $@
$(B)/selftests/bench/%.o: selftests/bench/%.c
	@mkdir -p $(@D)
	$(bench_object)
$(B)/selftests/bench/%.o: selftests/bench/ring/%.c
	@mkdir -p $(@D)
	$(bench_object)
$(B)/selftests/bench/%.o: selftests/bench/ckpt/%.c
	@mkdir -p $(@D)
	$(bench_object)

# Without a CUDA toolkit, which is where the generator's folder is not known, these three can be built.
include $(if $(GEN),$(sort $(wildcard selftests/bench/*/build.mk)),$(patsubst %,selftests/bench/%/build.mk,ring ckpt coll))
