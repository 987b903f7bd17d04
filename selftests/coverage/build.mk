# SPDX-License-Identifier: Apache-2.0
# build.mk - docs/coverage.md: which driver functions work, are refused, or are called by no test.
#
#   make coverage-calls   runs test programs on the soft device and writes what they call (minutes)
#   make coverage-page    writes the page from that, the annotations and the soft driver's list

ifneq ($(CUDA_HOME),)
COVERAGE := $(B)/selftests/coverage
COVERAGE_RECORDER := $(COVERAGE)/libcuda.so.1
COVERAGE_PROTOS := $(B)/uproxy/softgpu/gen/api_protos.txt
COVERAGE_CALLS := selftests/coverage/calls.txt

$(COVERAGE)/recorder.c: selftests/coverage/recorder.sh uproxy/softgpu/api/args.awk \
		$(COVERAGE_PROTOS)
	@mkdir -p $(@D)
	$< $(COVERAGE_PROTOS) uproxy/softgpu/api/args.awk >$@

$(COVERAGE_RECORDER): $(COVERAGE)/recorder.c
	$(CC) $(CFLAGS) -D_GNU_SOURCE -fPIC -shared $(CUDA_CFLAGS) -o $@ $< \
		-Wl,-soname,libcuda.so.1 -ldl

.PHONY: coverage-calls coverage-page
coverage-calls: $(COVERAGE_RECORDER)
	@$(MAKE) --no-print-directory all $(TEST_PROGRAMS)
	selftests/coverage/record $(COVERAGE_PROTOS) $(COVERAGE_RECORDER) >$(COVERAGE)/calls.txt
	mv $(COVERAGE)/calls.txt $(COVERAGE_CALLS)

coverage-page: $(GEN)/cuda.stamp
	selftests/coverage/page >docs/coverage.md.new
	mv docs/coverage.md.new docs/coverage.md

# Seconds; the page must be what its sources say.
ifeq ($(SAN),)
HOST_TESTS += selftests/coverage/test-coverage
SIDE_TESTS += selftests/coverage/test-coverage
TEST_PROGRAMS += $(GEN)/cuda.stamp
TIMEOUT_test-coverage := 120
endif
endif
