// SPDX-License-Identifier: Apache-2.0
/*
 * raytrace.cu - pictures of mirrors and glass, by recursion, with classes and operators: the same code on host
 * and device; and rays through a tree of boxes with a stack per thread.
 */
#include "../job.cuh"

#include <algorithm>

#define HD __host__ __device__

struct vec {
	double x, y, z;

	HD vec(double a = 0, double b = 0, double c = 0) : x(a), y(b), z(c) {}
	HD vec operator+(const vec &o) const { return vec(x + o.x, y + o.y, z + o.z); }
	HD vec operator-(const vec &o) const { return vec(x - o.x, y - o.y, z - o.z); }
	HD vec operator*(double f) const { return vec(x * f, y * f, z * f); }
	HD vec operator*(const vec &o) const { return vec(x * o.x, y * o.y, z * o.z); }
	HD double dot(const vec &o) const { return x * o.x + y * o.y + z * o.z; }
	HD vec unit() const { return *this * (1 / sqrt(dot(*this))); }
};

struct sphere {
	vec at;
	double r;
	vec colour;
	double mirror, glass;
};

#define SPHERES 9
__constant__ double scene_dev[SPHERES * sizeof(sphere) / sizeof(double)];

HD static bool hit(const sphere &s, const vec &from, const vec &dir, double *t)
{
	vec o = s.at - from;
	double b = o.dot(dir), d = b * b - o.dot(o) + s.r * s.r;

	if (d < 0)
		return false;
	d = sqrt(d);
	*t = b - d > 1e-6 ? b - d : b + d;
	return *t > 1e-6;
}

HD static vec trace(const sphere *scene, const vec &from, const vec &dir, int depth)
{
	const vec light(5, 10, -8);
	const sphere *best = NULL;
	double near = 1e30, t;

	for (int i = 0; i < SPHERES; i++)
		if (hit(scene[i], from, dir, &t) && t < near) {
			near = t;
			best = &scene[i];
		}
	if (!best)
		return vec(0.4, 0.6, 0.9) * (0.5 + 0.5 * dir.y);
	vec p = from + dir * near, n = (p - best->at).unit(), to = (light - p).unit(), c;
	bool inside = dir.dot(n) > 0, shadow = false;

	if (inside)
		n = n * -1;
	for (int i = 0; i < SPHERES; i++)
		if (hit(scene[i], p, to, &t) && t < 12)
			shadow = true;
	c = best->colour * (0.1 + (shadow ? 0 : fmax(0.0, n.dot(to))));
	if (depth <= 0)
		return c;
	if (best->mirror > 0)
		c = c * (1 - best->mirror) +
		    trace(scene, p, dir - n * (2 * dir.dot(n)), depth - 1) * best->mirror;
	if (best->glass > 0) {
		double eta = inside ? 1.5 : 1 / 1.5, k = -dir.dot(n), q = 1 - eta * eta * (1 - k * k);

		if (q > 0)
			c = c * (1 - best->glass) +
			    trace(scene, p, (dir * eta + n * (eta * k - sqrt(q))).unit(), depth - 1) *
			    best->glass;
	}
	return c;
}

HD static vec pixel(const sphere *scene, int x, int y, int w, int h)
{
	vec sum;

	for (int s = 0; s < 2; s++) {
		vec dir((x + 0.25 + s * 0.5 - w / 2) / h, (h / 2 - y - 0.5) / h, 1);

		sum = sum + trace(scene, vec(0, 0.5, -4), dir.unit(), 4) * 0.5;
	}
	return sum;
}

__global__ void render(vec *out, int w, int h)
{
	int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;

	if (x < w && y < h)
		out[y * w + x] = pixel((const sphere *)scene_dev, x, y, w, h);
}

static void mirrors(void)
{
	const int w = 64, h = 48;
	sphere s[SPHERES];
	unsigned int seed = 230;
	vec *d;
	size_t stack;

	s[0] = { vec(0, -1000.5, 0), 1000, vec(0.5, 0.5, 0.5), 0.2, 0 };
	for (int i = 1; i < SPHERES; i++)
		s[i] = { vec(rndf(&seed) * 2, rndf(&seed) + 0.3, rndf(&seed) * 2 + 1),
			 0.3 + 0.1 * (i % 3), vec(i & 1, i >> 1 & 1, 0.5), i % 3 == 0 ? 0.6 : 0,
			 i % 3 == 1 ? 0.8 : 0 };
	CHECK(cudaMemcpyToSymbol(scene_dev, s, sizeof(s)));
	CHECK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
	CHECK(cudaDeviceSetLimit(cudaLimitStackSize, std::max(stack, (size_t)16 << 10)));
	CHECK(cudaMalloc(&d, w * h * sizeof(vec)));
	render<<<dim3(w / 16, h / 8), dim3(16, 8)>>>(d, w, h);
	CHECK(cudaGetLastError());
	std::vector<vec> got = to_host(d, w * h);
	int off = 0;
	for (int y = 0; y < h; y++)
		for (int x = 0; x < w; x++) {
			vec c = pixel(s, x, y, w, h), g = got[y * w + x], e = c - g;

			/* a ray that grazes an edge may go the other way after another rounding */
			off += !(e.dot(e) < 1e-12);
		}
	EXPECT(off <= 6);
	sum_vector(got);
}

struct box {
	float lo[3], hi[3];
	int left, right, first, count;
};

struct triangle {
	float3 a, b, c;
};

__device__ bool meets(const box &b, const float3 &o, const float3 &inv, float far)
{
	float t0 = 0, t1 = far;
	const float os[3] = { o.x, o.y, o.z }, is[3] = { inv.x, inv.y, inv.z };

	for (int k = 0; k < 3; k++) {
		float u = (b.lo[k] - os[k]) * is[k], v = (b.hi[k] - os[k]) * is[k];

		t0 = fmaxf(t0, fminf(u, v));
		t1 = fminf(t1, fmaxf(u, v));
	}
	return t0 <= t1 * 1.00001f;
}

HD static float3 sub(float3 a, float3 b) { return make_float3(a.x - b.x, a.y - b.y, a.z - b.z); }
HD static float3 cross(float3 a, float3 b)
{
	return make_float3(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x);
}
HD static float dot(float3 a, float3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }

HD static float strike(const triangle &t, float3 o, float3 d)
{
	float3 e1 = sub(t.b, t.a), e2 = sub(t.c, t.a), p = cross(d, e2), s = sub(o, t.a), q = cross(s, e1);
	float det = dot(e1, p), u = dot(s, p) / det, v = dot(d, q) / det, r = dot(e2, q) / det;

	return fabsf(det) > 1e-9f && u >= 0 && v >= 0 && u + v <= 1 && r > 1e-4f ? r : 1e30f;
}

__global__ void walk(const box *tree, const triangle *tri, const float3 *dir, int *which, int n)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x, stack[32], top = 0, best = -1;
	float far = 1e30f;

	if (i >= n)
		return;
	float3 d = dir[i], o = make_float3(0, 0, -3), inv = make_float3(1 / d.x, 1 / d.y, 1 / d.z);

	stack[top++] = 0;
	while (top) {
		const box &b = tree[stack[--top]];

		if (!meets(b, o, inv, far))
			continue;
		if (!b.count) {
			stack[top++] = b.left;
			stack[top++] = b.right;
			continue;
		}
		for (int k = b.first; k < b.first + b.count; k++) {
			float t = strike(tri[k], o, d);

			if (t < far) {
				far = t;
				best = k;
			}
		}
	}
	which[i] = best;
}

static int build(std::vector<box> &tree, std::vector<triangle> &t, int first, int count)
{
	int me = tree.size();
	box b = { { 1e30f, 1e30f, 1e30f }, { -1e30f, -1e30f, -1e30f }, 0, 0, first, count };

	for (int i = first; i < first + count; i++)
		for (const float3 &p : { t[i].a, t[i].b, t[i].c }) {
			const float v[3] = { p.x, p.y, p.z };

			for (int k = 0; k < 3; k++) {
				b.lo[k] = std::min(b.lo[k], v[k]);
				b.hi[k] = std::max(b.hi[k], v[k]);
			}
		}
	tree.push_back(b);
	if (count > 4) {
		int axis = 0;

		for (int k = 1; k < 3; k++)
			if (b.hi[k] - b.lo[k] > b.hi[axis] - b.lo[axis])
				axis = k;
		std::sort(t.begin() + first, t.begin() + first + count,
			  [&](const triangle &p, const triangle &q) {
				return (&p.a.x)[axis] < (&q.a.x)[axis];
			  });
		int l = build(tree, t, first, count / 2);
		int r = build(tree, t, first + count / 2, count - count / 2);

		tree[me].left = l;
		tree[me].right = r;
		tree[me].count = 0;
	}
	return me;
}

static void tree_of_boxes(void)
{
	const int n = 1000, rays = 2000;
	std::vector<triangle> t(n);
	std::vector<box> tree;
	std::vector<float3> dir(rays);
	unsigned int seed = 231;
	int *d;

	auto point = [&](float r) { return make_float3(rndf(&seed) * r, rndf(&seed) * r, rndf(&seed) * r); };
	for (triangle &x : t) {
		float3 c = point(1), p = point(0.15f), q = point(0.15f);

		x = { c, make_float3(c.x + p.x, c.y + p.y, c.z + p.z),
		      make_float3(c.x + q.x, c.y + q.y, c.z + q.z) };
	}
	build(tree, t, 0, n);
	for (float3 &x : dir)
		x = make_float3(rndf(&seed) * 0.4f, rndf(&seed) * 0.4f, 1);
	CHECK(cudaMalloc(&d, rays * 4));
	walk<<<(rays + 63) / 64, 64>>>(to_device(tree), to_device(t), to_device(dir), d, rays);
	CHECK(cudaGetLastError());
	std::vector<int> got = to_host(d, rays);
	int hits = 0, off = 0;
	for (int i = 0; i < rays; i++) {
		float far = 1e30f;
		int best = -1;

		for (int k = 0; k < n; k++) {
			float r = strike(t[k], make_float3(0, 0, -3), dir[i]);

			if (r < far) {
				far = r;
				best = k;
			}
		}
		hits += best >= 0;
		off += got[i] != best;
	}
	EXPECT(hits > 200 && off <= 4);
	sum_vector(got);
}

int main()
{
	mirrors();
	tree_of_boxes();
	return job_passed("raytrace");
}
