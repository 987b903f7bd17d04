// SPDX-License-Identifier: Apache-2.0
/*
 * tensor_maps.cu - tensor maps: with good arguments, and with each that cuda.h excludes. Their bytes
 * and errors are printed; a result other than cuda.h's is named, but the driver is right.
 */
#include "../job.cuh"

#include <cuda.h>

enum form { TILED, IM2COL, WIDE };

struct tensor {
	int type;
	cuuint32_t rank;
	uint64_t address;	/* added to that of some memory */
	cuuint64_t dim[6], stride[5];
	cuuint32_t box[6], step[6];
	int lower[4], upper[4];
	cuuint32_t channels, pixels;
	int interleave, mode, swizzle, promotion, fill;
};

static const struct tensor good = {
	CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, 0, { 256, 128, 64, 32, 16, 8 },
	{ 512, 65536, 1 << 22, 1 << 27, 1 << 30 }, { 64, 16, 8, 4, 2, 1 }, { 1, 1, 1, 1, 1, 1 },
	{ -1, -2, -3, 0 }, { 1, 2, 3, 0 }, 64, 128, CU_TENSOR_MAP_INTERLEAVE_NONE, 0,
	CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
	CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
};

static decltype(&cuTensorMapEncodeTiled) encode_tiled;
static decltype(&cuTensorMapEncodeIm2col) encode_im2col;
static decltype(&cuTensorMapReplaceAddress) replace_address;
#if CUDA_VERSION >= 12080
static decltype(&cuTensorMapEncodeIm2colWide) encode_wide;
#endif
static char *memory = (char *)0x200000000000;	/* the same in each run; nothing accesses it */
static bool has_wide;

template <typename F>
static void find(const char *name, unsigned int since, F *to)
{
	cudaDriverEntryPointQueryResult how;

	CHECK(cudaGetDriverEntryPointByVersion(name, (void **)to, since, cudaEnableDefault, &how));
	EXPECT(!how && *to);
}

static CUresult encode(enum form form, const struct tensor &t, CUtensorMap *map)
{
	CUtensorMapDataType type = (CUtensorMapDataType)t.type;
	CUtensorMapInterleave interleave = (CUtensorMapInterleave)t.interleave;
	CUtensorMapSwizzle swizzle = (CUtensorMapSwizzle)t.swizzle;
	CUtensorMapL2promotion promotion = (CUtensorMapL2promotion)t.promotion;
	CUtensorMapFloatOOBfill fill = (CUtensorMapFloatOOBfill)t.fill;
	void *at = memory + t.address;

	switch (form) {
	case TILED:
		return encode_tiled(map, type, t.rank, at, t.dim, t.stride, t.box, t.step,
				    interleave, swizzle, promotion, fill);
	case IM2COL:
		return encode_im2col(map, type, t.rank, at, t.dim, t.stride, t.lower, t.upper,
				     t.channels, t.pixels, t.step, interleave, swizzle, promotion,
				     fill);
	default:
#if CUDA_VERSION >= 12080
		return encode_wide(map, type, t.rank, at, t.dim, t.stride, t.lower[0], t.upper[0],
				   t.channels, t.pixels, t.step, interleave,
				   (CUtensorMapIm2ColWideMode)t.mode, swizzle, promotion, fill);
#else
		return CUDA_ERROR_NOT_SUPPORTED;
#endif
	}
}

static void report(enum form form, const char *what, CUresult r, CUresult wanted,
		   const CUtensorMap *map)
{
	static const char *const name[] = { "tiled", "im2col", "wide" };

	sum_bytes(&r, sizeof(r));
	sum_bytes(map, sizeof(*map));
	printf("%s, %s: %d\n", name[form], what, r);
	if (r != wanted)
		printf("  not as cuda.h says: %d\n", wanted);
}

static CUresult wanted_of(enum form form, CUresult r)
{
	return form == WIDE && !has_wide && r == CUDA_SUCCESS ? CUDA_ERROR_NOT_SUPPORTED : r;
}

#define TRY_MAP(form, result, ...) do {								\
	alignas(128) CUtensorMap _map;								\
	struct tensor t = good;									\
	CUresult _r;										\
												\
	__VA_ARGS__;										\
	memset(&_map, 0x5a, sizeof(_map));							\
	_r = encode(form, t, &_map);								\
	report(form, #__VA_ARGS__, _r, wanted_of(form, result), &_map);				\
} while (0)

#define GOOD(form, ...)	TRY_MAP(form, CUDA_SUCCESS, __VA_ARGS__)
#define BAD(form, ...)	TRY_MAP(form, CUDA_ERROR_INVALID_VALUE, __VA_ARGS__)

static void packed(struct tensor *t, int type)
{
	t->type = type;
	t->box[0] = 128;
	t->channels = 128;
}

/* What all forms check in the same way. */
static void of_all(enum form f)
{
	GOOD(f, t.rank = 3);
	GOOD(f, t.rank = 4);
	GOOD(f, t.rank = 5);
	BAD(f, t.rank = 0);
	BAD(f, t.rank = 6);
	BAD(f, t.rank = 0xffffffff);
	BAD(f, t.type = 16);
	BAD(f, t.type = -1);
	BAD(f, t.address = 8);
	GOOD(f, t.address = 48);
	GOOD(f, t.dim[0] = t.dim[2] = 1ull << 32);
	BAD(f, t.dim[1] = (1ull << 32) + 1);
	BAD(f, t.dim[2] = 0);
	GOOD(f, t.dim[3] = 0);
	BAD(f, t.stride[0] = 520);
	BAD(f, t.stride[1] = 1ull << 40);
	GOOD(f, t.stride[1] = (1ull << 40) - 16);
	BAD(f, t.rank = 4, t.stride[2] = 8);
	BAD(f, t.step[1] = 0);
	BAD(f, t.step[2] = 9);
	GOOD(f, t.step[0] = 0, t.step[2] = 8);
	BAD(f, t.interleave = 3);
	BAD(f, t.swizzle = 7);
	BAD(f, t.swizzle = CU_TENSOR_MAP_SWIZZLE_64B);
	BAD(f, t.promotion = 4);
	BAD(f, t.fill = 2);
	GOOD(f, t.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA);
	BAD(f, t.type = CU_TENSOR_MAP_DATA_TYPE_UINT16, t.fill = 1);
#if CUDA_VERSION >= 12080
	GOOD(f, packed(&t, CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B));
	GOOD(f, packed(&t, CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B));
	BAD(f, packed(&t, CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B), t.fill = 1);
	BAD(f, packed(&t, CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B), t.address = 16);
	BAD(f, packed(&t, CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B), t.stride[0] = 528);
	BAD(f, packed(&t, CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B), t.dim[0] = 192);
	BAD(f, packed(&t, CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B), t.box[0] = t.channels = 64);
	BAD(f, packed(&t, CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B), t.swizzle = 2);
	BAD(f, packed(&t, CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B), t.swizzle = 6);
	BAD(f, packed(&t, CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B), t.interleave = 1);
	BAD(f, packed(&t, CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B), t.dim[0] = 255);
#endif
}

static void of_tiles(void)
{
	GOOD(TILED, t.rank = 1);
	GOOD(TILED, t.rank = 2);
	BAD(TILED, t.rank = 2, t.interleave = CU_TENSOR_MAP_INTERLEAVE_16B);
	BAD(TILED, t.interleave = CU_TENSOR_MAP_INTERLEAVE_32B);
	GOOD(TILED, t.interleave = CU_TENSOR_MAP_INTERLEAVE_32B, t.swizzle = 1);
	BAD(TILED, t.interleave = CU_TENSOR_MAP_INTERLEAVE_32B, t.swizzle = 1, t.address = 16);
	BAD(TILED, t.interleave = CU_TENSOR_MAP_INTERLEAVE_32B, t.swizzle = 1, t.stride[0] = 528);
	BAD(TILED, t.interleave = CU_TENSOR_MAP_INTERLEAVE_16B, t.step[0] = 0);
	BAD(TILED, t.box[0] = 60);
	BAD(TILED, t.box[1] = 0);
	BAD(TILED, t.box[1] = 257);
	GOOD(TILED, t.box[1] = 256);
	GOOD(TILED, t.box[0] = 16, t.swizzle = 1);
	GOOD(TILED, t.box[0] = 256, t.swizzle = 0);
}

static void of_pixels(void)
{
	BAD(IM2COL, t.rank = 2);
	GOOD(IM2COL, t.lower[0] = -32768);
	BAD(IM2COL, t.lower[0] = -32769);
	BAD(IM2COL, t.upper[0] = 32768);
	BAD(IM2COL, t.lower[0] = 32767, t.upper[0] = -32768);
	BAD(IM2COL, t.rank = 4, t.upper[1] = 128);
	BAD(IM2COL, t.rank = 5, t.lower[2] = -17);
	GOOD(IM2COL, t.rank = 5, t.lower[2] = -16);
	BAD(IM2COL, t.channels = 257, t.swizzle = 0);
	GOOD(IM2COL, t.channels = 256, t.swizzle = 0);
	BAD(IM2COL, t.pixels = 1025);
	GOOD(IM2COL, t.pixels = 1024);
}

static void of_wide(void)
{
	BAD(WIDE, t.rank = 2);
	BAD(WIDE, t.lower[0] = -32769);
	BAD(WIDE, t.upper[0] = 32768);
	BAD(WIDE, t.mode = 2);
	BAD(WIDE, t.pixels = 1025);
	GOOD(WIDE, t.pixels = 1025, t.mode = 1);
	BAD(WIDE, t.swizzle = 0);
	BAD(WIDE, t.swizzle = CU_TENSOR_MAP_SWIZZLE_32B, t.channels = 16);
	GOOD(WIDE, t.swizzle = CU_TENSOR_MAP_SWIZZLE_64B, t.channels = 32);
}

static void of_pointers(void)
{
	alignas(128) char room[256];
	CUtensorMap *map = (CUtensorMap *)room, *odd = (CUtensorMap *)(room + 32);
	struct tensor t = good;
	CUtensorMapDataType type = (CUtensorMapDataType)t.type;

#define TILED_OF(map, dim, stride, box, step) encode_tiled(map, type, t.rank, memory, dim, stride, box, \
		step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,		\
		CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
#define WHERE(what, wanted, ...) do {								\
	memset(room, 0, sizeof(room));								\
	report(TILED, what, __VA_ARGS__, wanted, map);						\
} while (0)
	WHERE("no map", CUDA_ERROR_INVALID_VALUE, TILED_OF(NULL, t.dim, t.stride, t.box, t.step));
	WHERE("a map at 32", CUDA_ERROR_INVALID_VALUE, TILED_OF(odd, t.dim, t.stride, t.box, t.step));
	WHERE("a map at 64", CUDA_SUCCESS,
	      TILED_OF((CUtensorMap *)(room + 64), t.dim, t.stride, t.box, t.step));
	WHERE("no dim", CUDA_ERROR_INVALID_VALUE, TILED_OF(map, NULL, t.stride, t.box, t.step));
	WHERE("no stride", CUDA_ERROR_INVALID_VALUE, TILED_OF(map, t.dim, NULL, t.box, t.step));
	WHERE("no box", CUDA_ERROR_INVALID_VALUE, TILED_OF(map, t.dim, t.stride, NULL, t.step));
	WHERE("no step", CUDA_ERROR_INVALID_VALUE, TILED_OF(map, t.dim, t.stride, t.box, NULL));
	t.rank = 1;
	WHERE("no stride for one dimension", CUDA_SUCCESS, TILED_OF(map, t.dim, NULL, t.box, t.step));
}

/* A map with a new address is the map that would have been encoded with it. */
static void of_addresses(void)
{
	alignas(128) CUtensorMap map, other, kept;
	struct tensor t = good;

	EXPECT_EQ(encode(TILED, t, &map), CUDA_SUCCESS);
	EXPECT_EQ(replace_address(&map, memory + 1024), CUDA_SUCCESS);
	t.address = 1024;
	EXPECT_EQ(encode(TILED, t, &other), CUDA_SUCCESS);
	EXPECT(!memcmp(&map, &other, sizeof(map)));
	kept = map;
	report(TILED, "address 8", replace_address(&map, memory + 8), CUDA_ERROR_INVALID_VALUE, &map);
	EXPECT(!memcmp(&map, &kept, sizeof(map)));
	report(TILED, "no map", replace_address(NULL, memory), CUDA_ERROR_INVALID_VALUE, &map);
}

/* As a framework does before each launch. */
static void again(void)
{
	alignas(128) CUtensorMap first[4], map;
	struct tensor t = good;

	for (int i = 0; i < 1000; i++) {
		t.address = i % 4 * 64;
		EXPECT_EQ(encode(TILED, t, i < 4 ? &first[i] : &map), CUDA_SUCCESS);
		EXPECT(i < 4 || !memcmp(&map, &first[i % 4], sizeof(map)));
	}
}

static void without_context(void)
{
	CUcontext ctx;
	decltype(&cuCtxGetCurrent) get;
	decltype(&cuCtxSetCurrent) set;

	find("cuCtxGetCurrent", 4000, &get);
	find("cuCtxSetCurrent", 4000, &set);
	get(&ctx);
	set(NULL);
	TRY_MAP(TILED, CUDA_ERROR_INVALID_CONTEXT, t.rank = 3);
	TRY_MAP(TILED, CUDA_ERROR_INVALID_CONTEXT, t.rank = 6);
	set(ctx);
}

int main(void)
{
	decltype(&cuDeviceGetAttribute) attribute;
	alignas(128) CUtensorMap map;
	int can = -1, major = 0;

	find("cuTensorMapEncodeTiled", 12000, &encode_tiled);
	find("cuTensorMapEncodeIm2col", 12000, &encode_im2col);
	find("cuTensorMapReplaceAddress", 12000, &replace_address);
	CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
	find("cuDeviceGetAttribute", 2000, &attribute);
	attribute(&can, CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, 0);
	printf("compute capability %d, tensor maps %d\n", major, can);
	has_wide = major >= 10;
	if (major < 9) {
		printf("no tensor maps before 9.0\n");
		return job_passed("tensor_maps");
	}
	CHECK(cudaFree(0));
	/* A driver may want to know the memory. */
	if (encode(TILED, good, &map))
		CHECK(cudaMalloc((void **)&memory, 1 << 20));
	of_all(TILED);
	of_tiles();
	of_all(IM2COL);
	of_pixels();
#if CUDA_VERSION >= 12080
	find("cuTensorMapEncodeIm2colWide", 12080, &encode_wide);
	of_all(WIDE);
	of_wide();
#endif
	of_pointers();
	of_addresses();
	without_context();
	again();
	return job_passed("tensor_maps");
}
