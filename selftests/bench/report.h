/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.h - what a bench measured: printed as it comes, in the end a JSON array of
 * {"metric", "value", "unit"}
 */
#ifndef REPORT_H
#define REPORT_H

/* Prints it and keeps it. */
void metric(const char *name, double value, const char *unit);
/* A ratio that is to be at least or at most so much (NAN: no such bound): says whether it is. */
void metric_bar(const char *name, double value, double least, double most);
/* The value of an earlier one; NAN if there is none. */
double metric_get(const char *name);
/* Sorts v. Ends the bench if n is 0. */
double median(double *v, int n);
double now_s(void);		/* CLOCK_MONOTONIC */
void write_json(const char *path);

/* "NAME: …" on stderr, and the end of the bench with status 1. */
void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
