/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.h - the log of the files that a job has changed: $SINGVGPU_FILES, one for all of its processes
 *
 * `singvgpu run` makes the file, empty, in the job's folder; libsingvgpu-files.so appends. A record
 * is one write(2) to a file opened O_APPEND:
 *
 *   NUL  kind (one byte)  absolute path, at most PATH_MAX - 1 bytes  NUL
 *
 * The path is the kernel's name of the file: without symbolic links, though the file may be one.
 * The leading NUL ends a record that a full disk has cut off: text between NULs that does not
 * begin with a kind and a slash is no record. A path that was cut short does no harm, since a
 * path in the log only means "examine this". Order is that of the first changes; a path may occur
 * often, since each process logs it once.
 *
 *   'C'  the file was not there: this made it         'E'  the file was there before
 *   'T'  a folder came here with its content (rename): examine everything below it
 *   'L'  a record could not be written before (path "/"): the log is not complete
 *
 * An opened file is in the log when open() returns; before that, its fd is open in the process. A
 * name is in the log before it is made, renamed or removed.
 */
#ifndef SINGVGPU_FILES_RECORD_H
#define SINGVGPU_FILES_RECORD_H

#define RECORD_MADE	'C'
#define RECORD_CHANGED	'E'
#define RECORD_TREE	'T'
#define RECORD_LOST	'L'

#define RECORD_ENV	"SINGVGPU_FILES"

#endif
