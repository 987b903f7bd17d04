// SPDX-License-Identifier: Apache-2.0
/*
 * crypto.cu - hashes and ciphers: the same functions on host and device, compared bit by bit and
 * with known answers.
 */
#include "../job.cuh"

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define HD __host__ __device__
#define N 600

HD static inline u32 rol(u32 x, int n) { return x << n | x >> (32 - n); }
HD static inline u64 rol64(u64 x, int n) { return x << n | x >> (64 - n); }

#define SHA_K { \
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, \
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, \
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, \
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, \
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, \
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, \
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, \
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2 }
__constant__ u32 sha_dev[64] = SHA_K;
#ifndef __CUDA_ARCH__
static const u32 sha_host[64] = SHA_K;
#endif

HD static void sha256(const u8 *msg, int len, u8 *out)
{
	u32 h[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
		     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
	int blocks = (len + 9 + 63) / 64;

	for (int b = 0; b < blocks; b++) {
		u32 w[64], v[8];

		for (int i = 0; i < 16; i++) {
			w[i] = 0;
			for (int k = 0; k < 4; k++) {
				int at = b * 64 + i * 4 + k;
				u32 c = at < len ? msg[at] : at == len ? 0x80 : 0;

				if (b == blocks - 1 && i >= 14)
					c = (u64)len * 8 >> (8 * (7 - (i - 14) * 4 - k)) & 255;
				w[i] = w[i] << 8 | c;
			}
		}
		for (int i = 16; i < 64; i++) {
			u32 a = w[i - 15], c = w[i - 2];

			w[i] = w[i - 16] + w[i - 7] + (rol(a, 25) ^ rol(a, 14) ^ a >> 3) +
			       (rol(c, 15) ^ rol(c, 13) ^ c >> 10);
		}
		for (int i = 0; i < 8; i++)
			v[i] = h[i];
		for (int i = 0; i < 64; i++) {
#ifdef __CUDA_ARCH__
			u32 k = sha_dev[i];
#else
			u32 k = sha_host[i];
#endif
			u32 t1 = v[7] + (rol(v[4], 26) ^ rol(v[4], 21) ^ rol(v[4], 7)) +
				 ((v[4] & v[5]) ^ (~v[4] & v[6])) + k + w[i];
			u32 t2 = (rol(v[0], 30) ^ rol(v[0], 19) ^ rol(v[0], 10)) +
				 ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));

			for (int q = 7; q > 0; q--)
				v[q] = v[q - 1];
			v[4] += t1;
			v[0] = t1 + t2;
		}
		for (int i = 0; i < 8; i++)
			h[i] += v[i];
	}
	for (int i = 0; i < 32; i++)
		out[i] = h[i / 4] >> (24 - i % 4 * 8);
}

HD static void chacha20(const u32 key[8], u32 counter, const u32 nonce[3], u32 out[16])
{
	u32 s[16] = { 0x61707865, 0x3320646e, 0x79622d32, 0x6b206574 }, x[16];

	for (int i = 0; i < 8; i++)
		s[4 + i] = key[i];
	s[12] = counter;
	for (int i = 0; i < 3; i++)
		s[13 + i] = nonce[i];
	for (int i = 0; i < 16; i++)
		x[i] = s[i];
#define QR(a, b, c, d)							\
	x[a] += x[b], x[d] = rol(x[d] ^ x[a], 16), x[c] += x[d], x[b] = rol(x[b] ^ x[c], 12),	\
	x[a] += x[b], x[d] = rol(x[d] ^ x[a], 8), x[c] += x[d], x[b] = rol(x[b] ^ x[c], 7)
	for (int i = 0; i < 10; i++) {
		QR(0, 4, 8, 12);
		QR(1, 5, 9, 13);
		QR(2, 6, 10, 14);
		QR(3, 7, 11, 15);
		QR(0, 5, 10, 15);
		QR(1, 6, 11, 12);
		QR(2, 7, 8, 13);
		QR(3, 4, 9, 14);
	}
	for (int i = 0; i < 16; i++)
		out[i] = x[i] + s[i];
}

HD static u64 siphash(const u8 *m, int len, u64 k0, u64 k1)
{
	u64 v0 = k0 ^ 0x736f6d6570736575ull, v1 = k1 ^ 0x646f72616e646f6dull,
	    v2 = k0 ^ 0x6c7967656e657261ull, v3 = k1 ^ 0x7465646279746573ull, w = 0;
#define SIP v0 += v1, v1 = rol64(v1, 13) ^ v0, v0 = rol64(v0, 32), v2 += v3, v3 = rol64(v3, 16) ^ v2,	\
	    v0 += v3, v3 = rol64(v3, 21) ^ v0, v2 += v1, v1 = rol64(v1, 17) ^ v2, v2 = rol64(v2, 32)

	for (int i = 0; i <= len; i++) {
		if (i < len)
			w |= (u64)m[i] << (i % 8 * 8);
		if (i == len)
			w |= (u64)len << 56;
		if (i % 8 == 7 || i == len) {
			v3 ^= w;
			SIP;
			SIP;
			v0 ^= w;
			w = 0;
		}
	}
	v2 ^= 0xff;
	SIP;
	SIP;
	SIP;
	SIP;
	return v0 ^ v1 ^ v2 ^ v3;
}

HD static u8 gf_mul(u8 a, u8 b)
{
	u8 r = 0;

	for (; b; b >>= 1) {
		if (b & 1)
			r ^= a;
		a = a << 1 ^ (a & 0x80 ? 0x1b : 0);
	}
	return r;
}

HD static u8 sbox(u8 x)
{
	u8 inv = 1, s;

	for (int i = 0; i < 254; i++)		/* x^254 is the inverse */
		inv = gf_mul(inv, x);
	s = x ? inv : 0;
	u8 r = s;

	for (int i = 0; i < 4; i++) {
		s = s << 1 | s >> 7;
		r ^= s;
	}
	return r ^ 0x63;
}

/* AES-128 of one block; the box is a table that was made before. */
HD static void aes(const u8 *box, const u8 key[16], const u8 in[16], u8 out[16])
{
	u8 k[16], s[16], t[16], rc = 1;

	for (int i = 0; i < 16; i++) {
		k[i] = key[i];
		s[i] = in[i] ^ key[i];
	}
	for (int round = 1; round <= 10; round++) {
		for (int i = 0; i < 16; i++)
			t[i] = box[s[(i + i % 4 * 4) % 16]];
		for (int c = 0; c < 16; c += 4)
			for (int i = 0; i < 4; i++)
				s[c + i] = round == 10 ? t[c + i] :
					   gf_mul(t[c + i], 2) ^ gf_mul(t[c + (i + 1) % 4], 3) ^
					   t[c + (i + 2) % 4] ^ t[c + (i + 3) % 4];
		for (int i = 0; i < 16; i++) {
			u8 p = i < 4 ? box[k[12 + (i + 1) % 4]] : k[i - 4];

			k[i] ^= i == 0 ? p ^ rc : p;
		}
		rc = gf_mul(rc, 2);
		for (int i = 0; i < 16; i++)
			s[i] ^= k[i];
	}
	for (int i = 0; i < 16; i++)
		out[i] = s[i];
}

HD static u64 mulmod(u64 a, u64 b, u64 m)
{
	return (unsigned __int128)a * b % m;
}

/* Miller and Rabin, with bases that decide all of 64 bits. */
HD static int is_prime(u64 n)
{
	const u64 bases[] = { 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37 };
	u64 d = n - 1;
	int r = 0;

	if (n < 2)
		return 0;
	for (u64 p : bases)
		if (n % p == 0)
			return n == p;
	for (; !(d & 1); d >>= 1)
		r++;
	for (u64 p : bases) {
		u64 x = 1, b = p;

		for (u64 e = d; e; e >>= 1) {
			if (e & 1)
				x = mulmod(x, b, n);
			b = mulmod(b, b, n);
		}
		int i = 0;

		if (x == 1 || x == n - 1)
			continue;
		for (; i < r - 1; i++) {
			x = mulmod(x, x, n);
			if (x == n - 1)
				break;
		}
		if (i == r - 1)
			return 0;
	}
	return 1;
}

HD static u32 crc32(const u8 *p, int n)
{
	u32 c = ~0u;

	for (int i = 0; i < n; i++) {
		c ^= p[i];
		for (int k = 0; k < 8; k++)
			c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0);
	}
	return ~c;
}

struct result {
	u8 sha[32], aes[16];
	u32 stream[16], crc;
	u64 sip, xorshift;
	int prime;
};

/* Item i: a message of its own length within the text. */
HD static result work(const u8 *text, const u8 *box, int i)
{
	result r;
	const u8 *m = text + i;
	int len = i % 150;
	u32 key[8], nonce[3];

	memset(&r, 0, sizeof(r));
	sha256(m, len, r.sha);
	aes(box, m, m + 16, r.aes);
	for (int k = 0; k < 8; k++)
		key[k] = m[k] * 0x01010101u + k;
	for (int k = 0; k < 3; k++)
		nonce[k] = m[k + 8];
	chacha20(key, i, nonce, r.stream);
	r.crc = crc32(m, len);
	r.sip = siphash(m, len, key[0], key[1]);
	r.prime = is_prime((u64)i * i * i * 1000003 + 2 * i + 1);
	r.xorshift = i + 1;
	for (int k = 0; k < 64; k++) {
		r.xorshift ^= r.xorshift << 13;
		r.xorshift ^= r.xorshift >> 7;
		r.xorshift ^= r.xorshift << 17;
	}
	return r;
}

__global__ void make_box(u8 *box)
{
	box[threadIdx.x] = sbox(threadIdx.x);
}

__global__ void all(const u8 *text, const u8 *box, result *out, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		out[i] = work(text, box, i);
}

static void known(void)
{
	const u8 abc[] = "abc", abc_sha[4] = { 0xba, 0x78, 0x16, 0xbf };
	u8 box[256], key[16], in[16], out[32];

	sha256(abc, 3, out);
	EXPECT(!memcmp(out, abc_sha, 4));
	for (int i = 0; i < 256; i++)
		box[i] = sbox(i);
	for (int i = 0; i < 16; i++) {
		key[i] = i;
		in[i] = i * 0x11;
	}
	aes(box, key, in, out);			/* FIPS 197, appendix C.1 */
	EXPECT(out[0] == 0x69 && out[1] == 0xc4 && out[15] == 0x5a);
	EXPECT(crc32((const u8 *)"123456789", 9) == 0xcbf43926);
	EXPECT(is_prime(18446744073709551557ull) && !is_prime(18446744073709551556ull));
}

int main()
{
	std::vector<u8> text(N + 200), box;
	unsigned int seed = 170;
	u8 *d_box, *d_text;
	result *d;

	known();
	for (u8 &c : text)
		c = rnd(&seed);
	d_text = to_device(text);
	CHECK(cudaMalloc(&d_box, 256));
	CHECK(cudaMalloc(&d, N * sizeof(*d)));
	make_box<<<1, 256>>>(d_box);
	all<<<(N + 63) / 64, 64>>>(d_text, d_box, d, N);
	CHECK(cudaGetLastError());
	box = to_host(d_box, 256);
	for (int i = 0; i < 256; i++)
		EXPECT_EQ(box[i], sbox(i));
	std::vector<result> got = to_host(d, N);
	for (int i = 0; i < N; i++) {
		result w = work(text.data(), box.data(), i);

		EXPECT(!memcmp(w.sha, got[i].sha, 32));
		EXPECT(!memcmp(w.aes, got[i].aes, 16));
		EXPECT(!memcmp(w.stream, got[i].stream, 64));
		EXPECT_EQ(got[i].crc, w.crc);
		EXPECT_EQ(got[i].sip, w.sip);
		EXPECT_EQ(got[i].prime, w.prime);
		EXPECT_EQ(got[i].xorshift, w.xorshift);
	}
	sum_vector(got);
	return job_passed("crypto");
}
