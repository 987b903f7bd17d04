/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.h - a bench's metrics: printed at once, and at the end written as a JSON array of
 * {"metric", "value", "unit"}
 */
#ifndef REPORT_H
#define REPORT_H

/* Prints and keeps a metric. */
void metric(const char *name, double value, const char *unit);
/* A ratio with bounds (NAN: none): prints whether it is within them. */
void metric_bar(const char *name, double value, double least, double most);
/* The value of an earlier metric; NAN if there is none. */
double metric_get(const char *name);
/* Sorts v. Ends the bench if n is 0. */
double median(double *v, int n);
double now_s(void);		/* CLOCK_MONOTONIC */
void write_json(const char *path);

/*
 * Goes on in a child, so that work files are removed however it ends: the parent waits for that, calls
 * clean(arg), and ends with status 0 if the child was successful, else 1.
 */
void guard(void (*clean)(void *arg), void *arg);

/* "NAME: …" on stderr, and the end of the bench with status 1. */
void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
