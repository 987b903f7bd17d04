# SPDX-License-Identifier: Apache-2.0
# build.mk - programs on NVIDIA's own libraries: their results against references in double.

lib_LIBS_cublas := -lcublas
lib_LIBS_cublas_all := -lcublas
lib_LIBS_cublaslt := -lcublasLt
lib_LIBS_cudnn := -lcudnn
lib_LIBS_cudnn_attention := -lcudnn
lib_LIBS_cufft := -lcufft -lnvrtc -lnvJitLink
lib_LIBS_cupti := -lcupti
lib_LIBS_curand_lib := -lcurand
lib_LIBS_cusolver := -lcusolver -lcublas
lib_LIBS_cusolver_eigen := -lcusolver
lib_LIBS_cusolver_systems := -lcusolver -lcusolverMg -lcusparse
lib_LIBS_cusparse := -lcusparse
lib_LIBS_cusparse_formats := -lcusparse -lnvrtc
lib_LIBS_cusparse_solve := -lcusparse -lcublas
lib_LIBS_lto_ops := -lcufft -lcusparse -lnvrtc
# cusolverMg does not say where its own libraries are: they are the program's, used or not
lib_LIBS_several := -lcufft -lcusolverMg -Xlinker --no-as-needed -lcublas -lcublasLt -lnvJitLink
lib_LIBS_nvjitlink := -lnvJitLink -lnvrtc
# callbacks have another form in older toolkits
LIBS_LEFT_OUT := $(if $(CUDA_IS_OLD),lto_ops)
# attention is one operation from cuDNN 9.13 on
LIBS_LEFT_OUT += $(if $(shell grep -ls OPERATION_SDPA_FWD_QDESC $(CUDA_HOME)/include/cudnn_graph.h),,cudnn_attention)
# a library that the toolkit at hand lacks takes its program with it: cuDNN is not part of it
LIB_PROGRAMS := $(foreach p,$(filter-out $(LIBS_LEFT_OUT),$(patsubst selftests/libs/%.cu,%,\
	$(wildcard selftests/libs/*.cu))),$(if \
	$(wildcard $(patsubst -l%,$(CUDA_HOME)/lib64/lib%.so,$(firstword $(lib_LIBS_$(p))))),$(p)))
LIB_BINS := $(LIB_PROGRAMS:%=$(B)/selftests/libs/%)
$(LIB_BINS): $(B)/selftests/libs/%: selftests/libs/%.cu selftests/libs/lib.cuh \
		selftests/libs/solver.cuh \
		selftests/jobs/job.cuh
	@mkdir -p $(@D)
	$(call nvcc) -o $@ $< $(lib_LIBS_$*) -Xlinker -rpath,$(CUDA_HOME)/lib64

.PHONY: lib-programs
lib-programs: $(LIB_BINS)

# A choice that compiles few kernels for `make check`; all of it for `make check-full`.
ifeq ($(SAN),)
HOST_TESTS += selftests/libs/test-libs selftests/libs/test-search
LONG_TESTS += selftests/libs/test-libs-long
FULL_TESTS += selftests/libs/test-libs-long
TEST_PROGRAMS += $(LIB_BINS) $(B)/uproxy/softgpu/direct/libcuda.so.1
TIMEOUT_test-libs := 600
TIMEOUT_test-libs-long := 7200
endif
