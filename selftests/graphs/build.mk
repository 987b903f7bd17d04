# SPDX-License-Identifier: Apache-2.0
# build.mk - graphs and stream capture: programs built by nvcc, run over the soft device through the
# proxy, and what the proxy makes of hostile descriptions. They need $(CUDA_HOME).

GRAPH_JOBS := $(patsubst selftests/graphs/%.cu,$(B)/selftests/graphs/%,\
	$(wildcard selftests/graphs/*.cu))
$(GRAPH_JOBS): $(B)/selftests/graphs/%: selftests/graphs/%.cu selftests/jobs/job.cuh
	@mkdir -p $(@D)
	$(call nvcc) -o $@ $<

$(B)/selftests/graphs/graph-hostile: selftests/graphs/hostile.c selftests/uproxy/client.h \
		$(RINGBUF) $(GEN)/cuda_info.o $(KSELFTEST_H) | $(B)/uproxy/singvgpu-proxy \
		$(B)/uproxy/softgpu/libsoftcuda.so $(B)/uproxy/softgpu/libsoftjit.so
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(RINGBUF_CFLAGS) $(GEN_CFLAGS) -Iuproxy/include -MMD -MP \
		-pthread -o $@ $(filter %.c %.o %.a,$^) $(LDFLAGS)

TIMEOUT_graph-hostile := 200
# It starts a proxy, for whose device window ThreadSanitizer has no room.
ifneq ($(SAN),thread)
HOST_TESTS += $(B)/selftests/graphs/graph-hostile
endif

ifeq ($(SAN),)
HOST_TESTS += selftests/graphs/test-graphs
TEST_PROGRAMS += $(GRAPH_JOBS) $(B)/uproxy/softgpu/direct/libcuda.so.1
TIMEOUT_test-graphs := 200
endif
