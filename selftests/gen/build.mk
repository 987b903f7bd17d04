# SPDX-License-Identifier: Apache-2.0
# build.mk - tests of the generator and of what it writes; they need the headers of $(CUDA_HOME).

GEN_TEST := $(B)/selftests/gen
GEN_TEST_OBJ := $(addprefix $(GEN)/,cuda_stubs.o cuda_dispatch.o cuda_driver.o cuda_info.o names.o)
GEN_TEST_CFLAGS := $(GEN_CFLAGS) -Iselftests/gen

$(GEN_TEST)/gen-trip: selftests/gen/trip.c selftests/gen/mock.c selftests/gen/mock.h \
		$(GEN_TEST_OBJ) $(KSELFTEST_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KSELFTEST_CFLAGS) $(GEN_TEST_CFLAGS) -o $@ $(filter %.c %.o,$^) $(LDFLAGS)

# The dispatch always runs under the sanitizers here.
$(GEN_TEST)/gen-fuzz: selftests/gen/fuzz.c selftests/gen/mock.c selftests/gen/mock.h \
		libintercept/gen/dispatch.h $(GEN)/cuda.stamp
	@mkdir -p $(@D)
	$(CC) $(filter-out -fsanitize=%,$(CFLAGS)) -fsanitize=address,undefined \
		$(if $(findstring clang,$(CC)),-fno-sanitize=function) -fno-sanitize-recover=all $(GEN_TEST_CFLAGS) -o $@ \
		selftests/gen/fuzz.c selftests/gen/mock.c $(addprefix $(GEN)/cuda_,dispatch.c \
		driver.c info.c)

HOST_TESTS += $(GEN_TEST)/gen-trip
ifeq ($(SAN),)
TEST_PROGRAMS += $(SVGEN)
HOST_TESTS += selftests/gen/test-gen $(GEN_TEST)/gen-fuzz
endif

# NVIDIA's own library, from Debian's non-free, is what the names are compared with.
$(GEN_TEST)/gen-oracle: selftests/gen/oracle.c $(GEN)/names.o
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -D_GNU_SOURCE $(GEN_CFLAGS) -o $@ $^ -ldl $(LDFLAGS)

ifeq ($(SAN),)
TEST_PROGRAMS += $(GEN_TEST)/gen-oracle
endif
LONG_TESTS += selftests/gen/test-oracle
