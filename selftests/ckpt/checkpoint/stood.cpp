// SPDX-License-Identifier: Apache-2.0
/*
 * stood.cpp - a job that takes the time: waits of 1 s by each function that takes a deadline of C++'s steady clock,
 * one after the other, and a loop that looks for leaps of that clock, until a file is there. It prints what is not
 * right, how far CLOCK_MONOTONIC has leapt, and how far the day and CLOCK_BOOTTIME have gone on before it.
 *
 * stood FILE [SECONDS]: what a slow machine may stand still for by itself
 */
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <time.h>
#include <unistd.h>

using namespace std::chrono;
using namespace std::chrono_literals;

static double slow = 0.9;
static std::atomic<bool> ends;

static double plain(clockid_t clock = CLOCK_MONOTONIC)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* Runs wait, which takes 1 s of the steady clock, again and again. */
template <typename F> static std::thread timed(const char *what, F wait)
{
	return std::thread([=] {
		while (!ends) {
			auto start = steady_clock::now();
			bool over = wait();
			double took = duration<double>(steady_clock::now() - start).count();

			if (!over || took < 0.99 || took > 1 + slow)
				printf("%s took %.3f s%s\n", what, took, over ? "" : " and was not over");
		}
	});
}

int main(int argc, char **argv)
{
	slow = argc > 2 ? atof(argv[2]) : slow;

	static std::mutex m;
	static std::condition_variable cv;
	static std::timed_mutex held;
	static std::shared_timed_mutex shared;
	static std::promise<int> promise;
	auto future = promise.get_future().share();
	double leap = 0, before = plain(CLOCK_REALTIME) - plain(), asleep = plain(CLOCK_BOOTTIME) - plain();

	held.lock();
	shared.lock();
	std::thread t[] = {
		timed("a condition", [] {
			std::unique_lock<std::mutex> l(m);
			return !cv.wait_for(l, 1s, [] { return false; });
		}),
		timed("a future", [=] { return future.wait_for(1s) == std::future_status::timeout; }),
		timed("a lock", [] { return !held.try_lock_for(1s); }),
		timed("a lock for readers", [] { return !shared.try_lock_shared_for(1s); }),
		timed("a lock for a writer", [] { return !shared.try_lock_for(1s); }),
		timed("a sleep", [] {
			std::this_thread::sleep_until(steady_clock::now() + 1s);
			return true;
		}),
	};

	puts("there");
	fflush(stdout);
	for (auto last = steady_clock::now(); access(argv[1], F_OK);) {
		double was = plain();

		std::this_thread::sleep_for(5ms);
		auto now = steady_clock::now();

		if (now < last || duration<double>(now - last).count() > slow)
			printf("the clock leaps by %.3f s\n", duration<double>(now - last).count());
		last = now;
		leap = std::max(leap, plain() - was);
	}
	ends = true;
	for (auto &one : t)
		one.join();
	printf("leap %.0f\n", leap > 0.9 ? leap : 0);
	printf("later by %ld h, %ld h\n", lround((plain(CLOCK_REALTIME) - plain() - before) / 3600),
	       lround((plain(CLOCK_BOOTTIME) - plain() - asleep) / 3600));
	return 0;
}
